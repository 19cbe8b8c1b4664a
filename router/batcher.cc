#include "router/batcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/rpc/trace_scope.h"

namespace gshard {

using Clock = std::chrono::steady_clock;

// `id`, `call` and `tokens` do not change; the rest is guarded by
// Batcher::mutex_ until `over`, which is also read without it.
struct Batcher::Request {
  uint64_t id = 0;
  TranslationRequest call;
  int64_t tokens = 0;
  std::atomic<bool> over = false;
  std::vector<Hypotheses> results;
  size_t missing = 0;
};

// Rows that the sentence takes in the encoder and, per position, the decoder.
int64_t Batcher::TokensOf(const SourceSentence& sentence) {
  return static_cast<int64_t>(sentence.ids.size()) *
         std::max(1, sentence.options.beam_size);
}

Batcher::Batcher(const BatcherOptions& options, RouterMetrics metrics)
    : options_(options), metrics_(std::move(metrics)) {
  CHECK(options_.threads >= 1);
  for (int i = 0; i < options_.threads; ++i) {
    threads_.emplace_back([this] { RunThread(); });
  }
  threads_.emplace_back([this] { RunTimer(); });
}

Batcher::~Batcher() {
  Finish(std::chrono::milliseconds(0));
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    timer_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

absl::StatusOr<uint64_t> Batcher::Add(TranslationRequest call) {
  CHECK(!call.sentences.empty());
  auto request = std::make_shared<Request>();
  for (const SourceSentence& sentence : call.sentences) {
    request->tokens += TokensOf(sentence);
  }
  const size_t count = call.sentences.size();
  request->results.resize(count);
  request->missing = count;
  request->call = std::move(call);
  std::lock_guard<std::mutex> lock(mutex_);
  if (finishing_) {
    return absl::UnavailableError("the router is shutting down");
  }
  if (request->tokens > options_.max_queued_tokens ||
      static_cast<int64_t>(count) > options_.max_queued_sentences) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the call has ", count, " sentences and ", request->tokens,
                     " tokens, one for each hypothesis of the beam; at most ",
                     options_.max_queued_sentences, " and ",
                     options_.max_queued_tokens, " are accepted: split it"));
  }
  const auto sentences = static_cast<int64_t>(queue_.size() + count);
  if (sentences > options_.max_queued_sentences ||
      queued_tokens_ + request->tokens > options_.max_queued_tokens) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: ", queue_.size(), " sentences and ", queued_tokens_,
        " tokens wait, at most ", options_.max_queued_sentences, " and ",
        options_.max_queued_tokens, " may"));
  }
  request->id = ++last_id_;
  requests_[request->id] = request;
  const Clock::time_point now = Clock::now();
  for (size_t i = 0; i < count; ++i) queue_.push_back({request, i, now});
  queued_tokens_ += request->tokens;
  UpdateGauges();
  changed_.notify_all();
  timer_.notify_all();
  return request->id;
}

bool Batcher::End(Request& request) {
  if (request.over.exchange(true)) return false;
  requests_.erase(request.id);
  const auto gone = [&](const Item& item) {
    if (item.request.get() != &request) return false;
    queued_tokens_ -= TokensOf(request.call.sentences[item.sentence]);
    return true;
  };
  queue_.erase(std::remove_if(queue_.begin(), queue_.end(), gone),
               queue_.end());
  for (Batch* const batch : running_) {
    if (std::all_of(
            batch->items.begin(), batch->items.end(),
            [](const Item& item) { return item.request->over.load(); })) {
      batch->all_cancelled.Cancel();
    }
  }
  UpdateGauges();
  return true;
}

void Batcher::Tell(Request& request, const absl::Status& error) {
  if (error.ok()) {
    request.call.done(std::move(request.results));
  } else {
    request.call.done(error);
  }
}

void Batcher::Cancel(uint64_t id) {
  std::shared_ptr<Request> request;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = requests_.find(id);
    if (found == requests_.end()) return;
    request = found->second;
    End(*request);
  }
  Tell(*request, absl::CancelledError("the client cancelled or was lost"));
  over_.notify_all();
}

std::shared_ptr<Batcher::Batch> Batcher::TakeBatch() {
  auto batch = std::make_shared<Batch>();
  batch->model = queue_.front().request->call.model;
  std::deque<Item> rest;
  int64_t longest = 0;
  bool full = false;
  for (Item& item : queue_) {
    const TranslationRequest& call = item.request->call;
    const SourceSentence& sentence = call.sentences[item.sentence];
    const int64_t tokens = std::max(longest, TokensOf(sentence));
    const auto count = static_cast<int64_t>(batch->items.size()) + 1;
    full = full || (call.model == batch->model && count > 1 &&
                    tokens * count > options_.max_batch_tokens);
    if (full || call.model != batch->model) {  // waits for its turn
      rest.push_back(std::move(item));
      continue;
    }
    longest = tokens;
    queued_tokens_ -= TokensOf(sentence);
    batch->items.push_back(std::move(item));
  }
  queue_ = std::move(rest);
  UpdateGauges();
  return batch;
}

void Batcher::RunThread() {
  while (true) {
    std::shared_ptr<Batch> batch;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      batch = TakeBatch();
      running_.insert(batch.get());
    }
    RunBatch(*batch);
  }
}

void Batcher::RunBatch(Batch& batch) {
  const Clock::time_point start = Clock::now();
  std::vector<SourceSentence> sentences;
  std::vector<TraceContext> traces;
  Clock::time_point deadline = start;
  for (const Item& item : batch.items) {
    const TranslationRequest& call = item.request->call;
    // Sentences of a request stand together.
    if (traces.empty() || traces.back() != call.trace) {
      traces.push_back(call.trace);
    }
    sentences.push_back(call.sentences[item.sentence]);
    deadline = std::max(deadline, call.deadline);
    metrics_.queue_seconds.Observe(
        std::chrono::duration<double>(start - item.arrival).count());
  }
  const TraceScope trace_scope(std::move(traces));
  absl::StatusOr<std::vector<Hypotheses>> results = batch.model->Translate(
      sentences,
      {.deadline = deadline,
       .cancelled =
           [&batch](size_t i) { return batch.items[i].request->over.load(); },
       .all_cancelled = &batch.all_cancelled});
  metrics_.decode_seconds.Observe(
      std::chrono::duration<double>(Clock::now() - start).count());
  if (results.ok() && results->size() != sentences.size()) {
    results = absl::InternalError(absl::StrCat("the model answered ",
                                               results->size(), " of ",
                                               sentences.size(), " sentences"));
  }
  batch.model = nullptr;
  Requests ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    running_.erase(&batch);
    for (size_t i = 0; i < batch.items.size(); ++i) {
      const std::shared_ptr<Request>& request = batch.items[i].request;
      if (request->over) continue;
      if (results.ok()) {
        request->results[batch.items[i].sentence] = std::move((*results)[i]);
        if (--request->missing > 0) continue;
      }
      End(*request);
      ended.push_back(request);
    }
    UpdateGauges();
  }
  for (const std::shared_ptr<Request>& request : ended) {
    Tell(*request, results.status());
  }
  over_.notify_all();
}

void Batcher::RunTimer() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopping_) {
    const Clock::time_point now = Clock::now();
    Clock::time_point next = Clock::time_point::max();
    Requests expired;
    for (const auto& [id, request] : requests_) {
      if (request->call.deadline <= now) {
        expired.push_back(request);
      } else {
        next = std::min(next, request->call.deadline);
      }
    }
    for (const std::shared_ptr<Request>& request : expired) End(*request);
    if (!expired.empty()) {
      lock.unlock();
      for (const std::shared_ptr<Request>& request : expired) {
        Tell(*request, absl::DeadlineExceededError(
                           "the translation was not done in time"));
      }
      over_.notify_all();
      lock.lock();
    } else if (next == Clock::time_point::max()) {
      timer_.wait(lock);
    } else {
      timer_.wait_until(lock, next);
    }
  }
}

void Batcher::Finish(std::chrono::milliseconds grace) {
  std::unique_lock<std::mutex> lock(mutex_);
  finishing_ = true;
  over_.wait_for(lock, grace, [this] { return requests_.empty(); });
  Requests late;
  for (const auto& [id, request] : requests_) late.push_back(request);
  for (const std::shared_ptr<Request>& request : late) End(*request);
  lock.unlock();
  for (const std::shared_ptr<Request>& request : late) {
    Tell(*request, absl::UnavailableError("the router is shutting down"));
  }
}

void Batcher::UpdateGauges() {
  metrics_.requests_queued.Set(static_cast<double>(queue_.size()));
}

int64_t Batcher::queued_sentences() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(queue_.size());
}

int64_t Batcher::queued_tokens() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return queued_tokens_;
}

int64_t Batcher::running_sentences() const {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t sentences = 0;
  for (const Batch* const batch : running_) {
    sentences += static_cast<int64_t>(batch->items.size());
  }
  return sentences;
}

int64_t Batcher::requests() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(requests_.size());
}

}  // namespace gshard
