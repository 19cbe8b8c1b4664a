#include "router/batching/batcher.h"

#include <algorithm>
#include <set>
#include <utility>

#include "services/base/check.h"
#include "services/tensor/buffer.h"

namespace gshard {

using Clock = std::chrono::steady_clock;

// After this time memory cached for the next batch is returned to the system.
constexpr std::chrono::seconds kIdle{1};

// `id` and `call` do not change; the rest is guarded by Batcher::mutex_, and
// not used any more once the request is not in requests_.
struct Batcher::Request {
  uint64_t id = 0;
  TranslationRequest call;
  std::vector<Hypotheses> results;
  size_t missing = 0;
  bool promised = false;  // an answer in time, by Admission
  OpenSpan queue, decode;
  int64_t steps = 0;   // maximum over its sentences
  int64_t tokens = 0;  // tokens of the best translations
};

// The next work of a lane.
struct Batcher::Round {
  std::vector<uint64_t> leaving;
  std::vector<JoiningItem> joining;
  Requests keep;   // keeps joining sentences alive
  Requests begun;  // of these, those without a sentence in a batch before
  Clock::time_point deadline;
  std::shared_ptr<Cancellation> stop;
  RoundTraces traces;
  Requests expired;  // ended because of their deadlines
};

Batcher::Batcher(const BatcherOptions& options, RouterMetrics metrics)
    : options_(options),
      metrics_(std::move(metrics)),
      admission_(options.admission, options.batch, options.threads) {
  CHECK(options_.threads >= 1);
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this] { RunThread(); });
  }
  threads_.emplace_back([this] { RunTimer(); });
}

Batcher::~Batcher() {
  Finish(std::chrono::milliseconds(0));
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
    timer_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

absl::Status Batcher::Check(const std::string& caller, uint64_t flow,
                            size_t sentences, int64_t source_tokens,
                            const DecodeOptions& options,
                            Clock::time_point deadline) {
  SentenceCost cost{.source_tokens = source_tokens,
                    .rows = std::max(1, options.beam_size),
                    .max_rounds = options.max_length};
  MutexLock lock(mutex_);
  admission_.SetLanes(CountLanes(nullptr));
  admission_.callers().Estimate(caller, cost);
  const Admission::Decision decision =
      admission_.Decide({.caller = caller,
                         .flow = flow,
                         .costs = std::vector(sentences, cost),
                         .now = Clock::now(),
                         .deadline = deadline});
  // A request that is too large gets the error unchanged.
  if (decision.status.ok() || decision.verdict == Verdict::kTooLarge) {
    return absl::OkStatus();
  }
  metrics_.CountAdmission(decision.verdict);
  return decision.status;
}

absl::StatusOr<uint64_t> Batcher::Add(TranslationRequest call) {
  CHECK(!call.sentences.empty());
  const Clock::time_point now = Clock::now();
  AdmissionRequest asked{.caller = call.caller,
                         .flow = call.flow,
                         .costs = {},
                         .now = now,
                         .deadline = call.deadline};
  for (const SourceSentence& sentence : call.sentences) {
    asked.costs.push_back(
        {.source_tokens = static_cast<int64_t>(sentence.ids.size()),
         .rows = std::max(1, sentence.options.beam_size),
         .positions = call.model->CachedPositions(sentence),
         .max_rounds = sentence.options.max_length,
         .encode_work = EncodeWork(static_cast<int64_t>(sentence.ids.size()),
                                   options_.batch)});
  }
  auto request = std::make_shared<Request>();
  request->results.resize(call.sentences.size());
  request->missing = call.sentences.size();
  request->call = std::move(call);
  MutexLock lock(mutex_);
  if (finishing_) {
    return absl::UnavailableError("the router is shutting down");
  }
  admission_.SetLanes(CountLanes(request->call.model.get()));
  for (SentenceCost& cost : asked.costs) {
    admission_.callers().Estimate(asked.caller, cost);
  }
  const Admission::Decision decision = admission_.Decide(asked);
  metrics_.CountAdmission(decision.verdict);
  if (!decision.status.ok()) return decision.status;
  request->promised = decision.promised;
  request->queue = options_.tracer.Child(request->call.trace, "queue");
  request->decode = OpenSpan(request->call.trace);
  request->id = ++last_id_;
  if (request->call.flow == 0) request->call.flow = request->id;
  requests_[request->id] = request;
  deadlines_.emplace(request->call.deadline, request->id);
  FairQueue& queue = queues_[request->call.model.get()];
  for (size_t i = 0; i < asked.costs.size(); ++i) {
    WaitingSentence sentence{.caller = asked.caller,
                             .flow = request->call.flow,
                             .request = request->id,
                             .sentence = i,
                             .cost = asked.costs[i],
                             .arrival = now,
                             .queued_since = now,
                             .deadline = asked.deadline,
                             .promised = decision.promised};
    admission_.Queued(sentence);
    queue.Add(std::move(sentence));
  }
  UpdateGauges();
  changed_.NotifyAll();
  if (deadlines_.begin()->second == request->id) timer_.NotifyAll();
  return request->id;
}

bool Batcher::HasWorkOf(const std::string& caller) const {
  MutexLock lock(mutex_);
  return admission_.work().TokensOf(caller) > 0;
}

uint64_t Batcher::NewFlow() {
  MutexLock lock(mutex_);
  return ++last_id_;
}

bool Batcher::End(Request& request) {
  if (requests_.erase(request.id) == 0) return false;
  deadlines_.erase({request.call.deadline, request.id});
  const auto queue = queues_.find(request.call.model.get());
  if (queue != queues_.end()) {
    for (const WaitingSentence& sentence : queue->second.Remove(
             request.call.caller, request.call.flow, request.id)) {
      admission_.Dropped(sentence);
    }
    if (queue->second.empty()) queues_.erase(queue);
  }
  for (auto& [lane, running] : running_) {
    if (std::none_of(running.requests.begin(), running.requests.end(),
                     [this](uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                       return requests_.contains(id);
                     })) {
      running.stop->Cancel();
    }
  }
  UpdateGauges();
  return true;
}

void Batcher::Expire(Request& request) {
  if (End(request) && request.promised) admission_.Broken();
}

void Batcher::TellExpired(const Requests& expired) {
  for (const std::shared_ptr<Request>& request : expired) {
    Tell(*request,
         absl::DeadlineExceededError("the translation was not done in time"));
  }
  if (!expired.empty()) over_.NotifyAll();
}

void Batcher::Tell(Request& request, const absl::Status& error) {
  request.queue.End(error);
  request.decode.Set("gshard.sentences",
                     static_cast<int64_t>(request.call.sentences.size()));
  request.decode.Set("gshard.steps", request.steps);
  request.decode.Set("gshard.tokens", request.tokens);
  request.decode.End(error);
  if (error.ok()) {
    request.call.done(std::move(request.results));
  } else {
    request.call.done(error);
  }
}

void Batcher::Cancel(uint64_t id) {
  std::shared_ptr<Request> request;
  {
    MutexLock lock(mutex_);
    const auto found = requests_.find(id);
    if (found == requests_.end()) return;
    request = found->second;
    End(*request);
  }
  Tell(*request, absl::CancelledError("the client cancelled or was lost"));
  over_.NotifyAll();
}

std::vector<std::shared_ptr<TranslationModel>> Batcher::ActiveModels(
    const Lanes& lanes) const {
  std::vector<std::shared_ptr<TranslationModel>> models;
  for (const auto& [model, lane] : lanes) models.push_back(lane->model());
  for (const auto& [model, queue] : queues_) {
    const WaitingSentence* const next = queue.Next();
    if (next == nullptr || lanes.contains(model)) continue;
    models.push_back(requests_.at(next->request)->call.model);
  }
  return models;
}

int64_t Batcher::CountLanes(const TranslationModel* joining) const {
  std::set<const TranslationModel*> beginning;
  if (joining != nullptr) beginning.insert(joining);
  for (const auto& [model, queue] : queues_) beginning.insert(model);
  for (const auto& [lane, running] : running_) {
    beginning.erase(lane->model().get());
  }
  return static_cast<int64_t>(running_.size() + beginning.size());
}

void Batcher::RunThread() {
  Lanes lanes;
  while (true) {
    std::vector<std::shared_ptr<TranslationModel>> models;
    {
      MutexLock lock(mutex_);
      const auto called = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        models = ActiveModels(lanes);
        return stopping_ || !models.empty();
      };
      while (!changed_.WaitFor(lock, kIdle, called)) {
        // No batch is running: free cached tensor memory.
        if (running_.empty()) {
          lock.Unlock();
          TrimBufferCache();
          lock.Lock();
          changed_.Wait(lock, called);
          break;
        }
      }
      if (models.empty()) return;
    }
    // Models alternate by step: none waits for another's sentences.
    for (std::shared_ptr<TranslationModel>& model : models) {
      std::unique_ptr<BatchLane>& lane = lanes[model.get()];
      if (lane == nullptr) {
        lane = std::make_unique<BatchLane>(model, options_.batch, metrics_);
      }
      RunRound(*lane);
      // Removal of the model waits for this.
      if (lane->sentences().empty()) lanes.erase(model.get());
      model = nullptr;
    }
  }
}

std::vector<WaitingSentence> Batcher::TakeJoiningOf(BatchLane& lane,
                                                    Requests& expired) {
  const auto queue = queues_.find(lane.model().get());
  if (queue == queues_.end()) return {};
  BatchLoad load = lane.load();
  for (const auto& [id, waiting] : lane.sentences()) {
    if (!requests_.contains(waiting.request)) load.Remove(waiting);
  }
  const Clock::time_point now = Clock::now();
  admission_.SetLanes(CountLanes(lane.model().get()));
  std::vector<WaitingSentence> joining =
      TakeJoining(queue->second, load, options_.batch, admission_.SlackAt(now));
  if (queue->second.empty()) queues_.erase(queue);
  for (const WaitingSentence& waiting : joining) admission_.Joined(waiting);
  for (const WaitingSentence& waiting : joining) {
    const auto request = requests_.find(waiting.request);
    // The only request is translated in any case, as an idle router accepts it
    // in any case: otherwise nothing new would be measured, and estimates that
    // are too high would stay.
    if (request == requests_.end() || requests_.size() == 1 ||
        !admission_.MissesDeadline(waiting, now)) {
      continue;
    }
    expired.push_back(request->second);
    Expire(*expired.back());
  }
  std::erase_if(joining, [this](const WaitingSentence& waiting)
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                               if (requests_.contains(waiting.request))
                                 return false;
                               admission_.Left(waiting);
                               return true;
                             });
  return joining;
}

Batcher::Round Batcher::PlanRound(BatchLane& lane) {
  Round round;
  round.deadline = Clock::now();
  round.stop = std::make_shared<Cancellation>();
  MutexLock lock(mutex_);
  std::vector<WaitingSentence> joining = TakeJoiningOf(lane, round.expired);
  Running& running = running_[&lane];
  running = {.requests = {}, .stop = round.stop};
  double work_left = 0;
  std::vector<TraceContext>& traces = round.traces.decode;
  const auto stays = [&](Request& request, const WaitingSentence& waiting) {
    request.steps = std::max(request.steps, waiting.rounds + 1);
    work_left += waiting.cost.WorkLeft(waiting.rounds);
    round.deadline = std::max(round.deadline, request.call.deadline);
    running.requests.push_back(request.id);
    // Sentences of a request are mostly adjacent.
    const TraceContext& trace = request.decode.context();
    if (traces.empty() || traces.back() != trace) traces.push_back(trace);
  };
  for (const auto& [id, waiting] : lane.sentences()) {
    const auto request = requests_.find(waiting.request);
    if (request != requests_.end()) {
      stays(*request->second, waiting);
      continue;
    }
    round.leaving.push_back(id);
    admission_.Left(waiting);
    admission_.GivenUp(waiting);
  }
  for (WaitingSentence& waiting : joining) {
    std::shared_ptr<Request> request = requests_.at(waiting.request);
    if (request->queue.recorded()) {
      request->queue.End();
      request->decode = options_.tracer.Child(request->call.trace, "decode");
      round.begun.push_back(request);
    }
    if (round.keep.empty() || round.keep.back() != request) {
      round.traces.encode.push_back(
          options_.tracer.Child(request->call.trace, "encode"));
    }
    stays(*request, waiting);
    const SourceSentence* const sentence =
        &request->call.sentences[waiting.sentence];
    round.joining.push_back({.id = ++last_id_,
                             .waiting = std::move(waiting),
                             .sentence = sentence,
                             .trace_id = request->call.trace.sampled_id()});
    round.keep.push_back(std::move(request));
  }
  admission_.Progress(&lane, work_left, round.deadline);
  UpdateGauges();
  return round;
}

void Batcher::RunRound(BatchLane& lane) {
  Round round = PlanRound(lane);
  TellExpired(round.expired);
  RoundResult result = lane.Round(
      round.leaving, std::move(round.joining),
      {.deadline = round.deadline, .all_cancelled = round.stop.get()},
      std::move(round.traces));
  Settle(lane, std::move(result), round.begun);
}

void Batcher::Settle(BatchLane& lane, RoundResult result,
                     const Requests& begun) {
  std::vector<std::pair<std::shared_ptr<Request>, absl::Status>> ended;
  {
    MutexLock lock(mutex_);
    // Ended requests are not touched any more.
    for (const std::shared_ptr<Request>& request : begun) {
      if (!requests_.contains(request->id)) continue;
      request->decode.StartAt(result.step_start);
    }
    if (result.rows > 0) {
      admission_.times().ObserveRound(result.rows, result.seconds);
    }
    for (RoundOutcome& outcome : result.outcomes) {
      admission_.Left(outcome.waiting);
      if (outcome.rounds > 0) {
        admission_.callers().Observe(outcome.waiting.caller,
                                     outcome.waiting.cost.source_tokens,
                                     outcome.rounds, outcome.row_cost);
      } else if (!outcome.again) {
        admission_.GivenUp(outcome.waiting);
      }
      const auto found = requests_.find(outcome.waiting.request);
      if (found == requests_.end()) continue;
      const std::shared_ptr<Request> request = found->second;
      if (outcome.again) {
        outcome.waiting.rounds = 0;
        outcome.waiting.queued_since = Clock::now();
        admission_.Queued(outcome.waiting);
        queues_[request->call.model.get()].Add(std::move(outcome.waiting));
        continue;
      }
      if (outcome.result.ok()) {
        if (!outcome.result->empty()) {
          request->tokens += outcome.result->front().token_count;
        }
        request->results[outcome.waiting.sentence] = *std::move(outcome.result);
        // One that was given up is the answer to its whole request.
        const bool given_up = outcome.rounds == 0;
        if (--request->missing > 0 && !given_up) continue;
        if (request->promised && !given_up) admission_.Kept();
      }
      End(*request);
      ended.emplace_back(request, outcome.result.status());
    }
    if (lane.sentences().empty()) {
      running_.erase(&lane);
      admission_.Progress(&lane, 0, {});
    } else {
      std::vector<uint64_t>& requests = running_[&lane].requests;
      requests.clear();
      for (const auto& [id, waiting] : lane.sentences()) {
        requests.push_back(waiting.request);
      }
    }
    UpdateGauges();
  }
  for (const auto& [request, status] : ended) Tell(*request, status);
  if (!ended.empty()) over_.NotifyAll();
}

void Batcher::RunTimer() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    Requests expired;
    const Clock::time_point now = Clock::now();
    while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
      expired.push_back(requests_.at(deadlines_.begin()->second));
      Expire(*expired.back());
    }
    if (!expired.empty()) {
      lock.Unlock();
      TellExpired(expired);
      expired.clear();  // a request may be the last that holds its model
      lock.Lock();
    } else if (deadlines_.empty()) {
      timer_.Wait(lock);
    } else {
      const Clock::time_point next = deadlines_.begin()->first;
      timer_.WaitUntil(lock, next);
    }
  }
}

void Batcher::Finish(std::chrono::milliseconds grace) {
  MutexLock lock(mutex_);
  finishing_ = true;
  over_.WaitFor(lock, grace, [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return requests_.empty();
  });
  Requests late;
  for (const auto& [id, request] : requests_) late.push_back(request);
  for (const std::shared_ptr<Request>& request : late) End(*request);
  lock.Unlock();
  for (const std::shared_ptr<Request>& request : late) {
    Tell(*request, absl::UnavailableError("the router is shutting down"));
  }
}

void Batcher::UpdateGauges() {
  metrics_.requests_queued.Set(
      static_cast<double>(admission_.queued_sentences()));
  metrics_.queued_tokens.Set(static_cast<double>(admission_.queued_tokens()));
  metrics_.batch_sentences.Set(
      static_cast<double>(admission_.running_sentences()));
  metrics_.batch_positions.Set(
      static_cast<double>(admission_.running_positions()));
  metrics_.estimated_wait.Set(admission_.EstimatedSeconds());
  metrics_.highest_row_cost.Set(admission_.callers().HighestRowCost());
  metrics_.highest_rounds.Set(admission_.callers().HighestRounds());
}

int64_t Batcher::queued_sentences() const {
  MutexLock lock(mutex_);
  return admission_.queued_sentences();
}

int64_t Batcher::queued_tokens() const {
  MutexLock lock(mutex_);
  return admission_.queued_tokens();
}

int64_t Batcher::running_sentences() const {
  MutexLock lock(mutex_);
  int64_t sentences = 0;
  for (const auto& [lane, running] : running_) {
    sentences += static_cast<int64_t>(running.requests.size());
  }
  return sentences;
}

int64_t Batcher::requests() const {
  MutexLock lock(mutex_);
  return static_cast<int64_t>(requests_.size());
}

}  // namespace gshard
