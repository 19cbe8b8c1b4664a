#include "router/replicated_call.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/cluster/choose_replicas.h"
#include "services/rpc/trace_scope.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;
using State = WorkerHealth::State;

// How often an attempt that takes long is looked at.
constexpr std::chrono::milliseconds kLookInterval{20};

// The worker, or its session, is not there: others may be. Other errors would
// come from any replica.
bool IsAbsence(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsNotFound(status) ||
         absl::IsCancelled(status);
}

}  // namespace

ReplicatedCall::ReplicatedCall(ReplicaSet& replicas, SegmentCall call,
                               absl::Span<const Tensor> operands,
                               ExpertRows rows, Time deadline)
    : replicas_(replicas),
      call_(std::move(call)),
      operands_(operands),
      rows_(std::move(rows)),
      deadline_(deadline) {
  for (const int32_t size : rows_.sizes()) {
    answered_.push_back(size == 0);
    unanswered_ += size > 0;
  }
}

ReplicatedCall::~ReplicatedCall() {
  for (Attempt& attempt : attempts_) Close(attempt, /*cancel=*/true);
}

absl::StatusOr<std::vector<Tensor>> ReplicatedCall::Run(
    Cancellation& cancellation) {
  replicas_.OnCall();
  const uint64_t registration = cancellation.OnCancel([mailbox = mailbox_] {
    std::lock_guard<std::mutex> lock(mailbox->mutex);
    mailbox->cancelled = true;
    mailbox->changed.notify_all();
  });
  const auto run = [&]() -> absl::StatusOr<std::vector<Tensor>> {
    std::vector<int32_t> experts;
    for (size_t e = 0; e < answered_.size(); ++e) {
      if (!answered_[e]) experts.push_back(static_cast<int32_t>(e));
    }
    ASSIGN_OR_RETURN(const std::vector<int32_t> homeless, Send(experts));
    for (const int32_t expert : homeless) {
      lost_.push_back(expert);
      answered_[expert] = true;
      --unanswered_;
    }
    while (unanswered_ > 0) {
      std::vector<Reply> replies;
      {
        std::unique_lock<std::mutex> lock(mailbox_->mutex);
        const Time until = std::min(NextLook(), deadline_);
        mailbox_->changed.wait_until(lock, until, [&] {
          return mailbox_->cancelled || !mailbox_->replies.empty();
        });
        if (mailbox_->cancelled) {
          return absl::CancelledError("the run was cancelled");
        }
        replies.swap(mailbox_->replies);
      }
      for (Reply& reply : replies) RETURN_IF_ERROR(Take(std::move(reply)));
      if (unanswered_ == 0) break;
      const Time now = Clock::now();
      if (now >= deadline_) {
        return absl::DeadlineExceededError(
            absl::StrCat(unanswered_, " experts have not answered in time"));
      }
      RETURN_IF_ERROR(Look(now));
    }
    return Finish();
  };
  auto results = run();
  cancellation.Remove(registration);
  return results;
}

absl::StatusOr<std::vector<int32_t>> ReplicatedCall::Send(
    std::vector<int32_t> experts) {
  // The placement may have changed since the call began.
  const auto group = replicas_.group();
  std::vector<int32_t> sizes(rows_.num_experts(), 0);
  for (const int32_t expert : experts) sizes[expert] = rows_.sizes()[expert];
  std::vector<std::vector<int32_t>> shares(group->holdings.size());
  // Slow workers only where there are no others.
  for (const State worst : {State::kGood, State::kSlow}) {
    std::vector<ReplicaHolder> holders;
    for (const ReplicaHolding& holding : group->holdings) {
      WorkerState& state = holding.connection->state();
      holders.push_back(
          {.experts = holding.experts,
           .outstanding_rows = state.outstanding_rows(),
           .avoided = state.health() > worst || IsTried(holding, experts)});
    }
    const std::vector<int32_t> chosen = ChooseReplicas(sizes, holders);
    std::vector<int32_t> left;
    for (const int32_t expert : experts) {
      if (chosen[expert] < 0) {
        left.push_back(expert);
        continue;
      }
      shares[chosen[expert]].push_back(expert);
      sizes[expert] = 0;
    }
    experts = std::move(left);
    if (experts.empty()) break;
  }
  for (size_t h = 0; h < shares.size(); ++h) {
    if (shares[h].empty()) continue;
    std::sort(shares[h].begin(), shares[h].end());
    RETURN_IF_ERROR(Start(group, group->holdings[h], std::move(shares[h])));
  }
  return experts;
}

bool ReplicatedCall::IsTried(const ReplicaHolding& holding,
                             const std::vector<int32_t>& experts) const {
  if (failed_.count({holding.connection.get(), holding.session}) > 0) {
    return true;
  }
  return std::any_of(
      attempts_.begin(), attempts_.end(), [&](const Attempt& attempt) {
        return attempt.open &&
               attempt.holding->connection == holding.connection &&
               attempt.holding->session == holding.session &&
               std::any_of(experts.begin(), experts.end(), [&](int32_t expert) {
                 return std::binary_search(attempt.experts.begin(),
                                           attempt.experts.end(), expert);
               });
      });
}

absl::Status ReplicatedCall::Start(std::shared_ptr<const ReplicaGroup> group,
                                   const ReplicaHolding& holding,
                                   std::vector<int32_t> experts) {
  Attempt attempt;
  attempt.group = std::move(group);
  attempt.holding = &holding;
  attempt.ranges = rows_.RangesOf(experts);
  attempt.rows = CountRows(attempt.ranges);
  attempt.experts = std::move(experts);
  attempt.sent = Clock::now();
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline_ - attempt.sent);
  if (left.count() <= 0) {
    return absl::DeadlineExceededError("no time is left for expert workers");
  }
  WorkerConnection& connection = *holding.connection;
  attempt.next_look =
      attempt.sent + connection.state().Health([&](WorkerHealth& health) {
        return health.HedgeDelay(attempt.rows);
      });

  ExpertFrame frame;
  frame.header.set_session(holding.session);
  frame.header.set_segment(call_.segment);
  frame.header.set_timeout_ms(left.count());
  for (const TraceContext& trace : CurrentTraces()) {
    frame.header.add_traceparents(trace.Traceparent());
  }
  int64_t bytes = 0;
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (!call_.sent[i]) continue;
    Tensor part = operands_[i];
    if (call_.division[i] == Division::kRows) {
      ASSIGN_OR_RETURN(
          part, gshard::TakeRows(operands_[i], rows_.total(), attempt.ranges));
    } else if (call_.division[i] == Division::kGroupSizes) {
      // Of all that the worker holds: others get no rows here.
      part = Tensor::Zeros(ElementType::kInt32,
                           {static_cast<int64_t>(holding.experts.size())});
      for (size_t k = 0; k < holding.experts.size(); ++k) {
        if (std::binary_search(attempt.experts.begin(), attempt.experts.end(),
                               holding.experts[k])) {
          part.i32()[k] = rows_.sizes()[holding.experts[k]];
        }
      }
    }
    bytes += static_cast<int64_t>(part.bytes());
    frame.Add(call_.names[i], std::move(part));
  }
  replicas_.metrics().sent_bytes.Increment(static_cast<double>(bytes));
  connection.state().AddOutstanding(attempt.rows);
  attempt.call_id = connection.Call(
      std::move(frame), [mailbox = mailbox_, index = attempts_.size()](
                            absl::StatusOr<ExpertFrame> reply) {
        absl::StatusOr<std::vector<Tensor>> tensors = std::vector<Tensor>();
        if (reply.ok()) {
          *tensors = std::move(reply->tensors);
        } else {
          tensors = reply.status();
        }
        std::lock_guard<std::mutex> lock(mailbox->mutex);
        mailbox->replies.push_back({index, std::move(tensors), Clock::now()});
        mailbox->changed.notify_all();
      });
  attempts_.push_back(std::move(attempt));
  return absl::OkStatus();
}

absl::Status ReplicatedCall::Take(Reply reply) {
  Attempt& attempt = attempts_[reply.attempt];
  if (!attempt.open) return absl::OkStatus();  // others were faster
  Close(attempt, /*cancel=*/false);
  if (reply.tensors.ok()) {
    attempt.holding->connection->state().Health([&](WorkerHealth& health) {
      health.OnReply(attempt.rows,
                     std::chrono::duration_cast<std::chrono::microseconds>(
                         reply.at - attempt.sent));
    });
    return TakeRows(attempt, *std::move(reply.tensors));
  }
  return Recover(attempt, reply.tensors.status());
}

absl::Status ReplicatedCall::TakeRows(Attempt& attempt,
                                      std::vector<Tensor> tensors) {
  const auto bad = [&](const auto&... what) {
    return absl::InternalError(
        absl::StrCat("expert worker '", attempt.holding->worker, "', segment ",
                     call_.segment, ": ", what...));
  };
  if (static_cast<int64_t>(tensors.size()) != call_.num_replies) {
    return bad("expected ", call_.num_replies, " replies, got ",
               tensors.size());
  }
  int64_t bytes = 0;
  for (size_t r = 0; r < tensors.size(); ++r) {
    const Tensor& part = tensors[r];
    if (part.empty() || part.rank() < 1 || part.dim(0) != attempt.rows) {
      return bad("expected ", attempt.rows, " rows, got ", part.TypeString());
    }
    bytes += static_cast<int64_t>(part.bytes());
    if (results_.size() < tensors.size()) {
      Dims dims = part.dims();
      dims[0] = rows_.total();
      results_.emplace_back(part.type(), dims);
    }
    Dims dims = results_[r].dims();
    dims[0] = attempt.rows;
    if (part.type() != results_[r].type() || part.dims() != dims) {
      return bad("expected rows like those of others, got ", part.TypeString());
    }
  }
  replicas_.metrics().received_bytes.Increment(static_cast<double>(bytes));
  // Some may have been answered by others: the same bits.
  for (size_t r = 0; r < tensors.size(); ++r) {
    if (attempt.rows == rows_.total()) {
      results_[r] = std::move(tensors[r]);
    } else {
      PutRows(tensors[r], attempt.ranges, results_[r]);
    }
  }
  for (const int32_t expert : attempt.experts) {
    if (answered_[expert]) continue;
    answered_[expert] = true;
    --unanswered_;
  }
  for (Attempt& other : attempts_) {
    const auto is_answered = [&](int32_t e) { return answered_[e]; };
    if (other.open &&
        std::all_of(other.experts.begin(), other.experts.end(), is_answered)) {
      Close(other, /*cancel=*/true);
    }
  }
  return absl::OkStatus();
}

void ReplicatedCall::Close(Attempt& attempt, bool cancel) {
  if (!attempt.open) return;
  attempt.open = false;
  WorkerConnection& connection = *attempt.holding->connection;
  connection.state().AddOutstanding(-attempt.rows);
  if (cancel) connection.Cancel(attempt.call_id);
}

std::vector<int32_t> ReplicatedCall::Unanswered(const Attempt& attempt) const {
  std::vector<int32_t> experts;
  for (const int32_t expert : attempt.experts) {
    const bool elsewhere = std::any_of(
        attempts_.begin(), attempts_.end(), [&](const Attempt& other) {
          return &other != &attempt && other.open &&
                 std::binary_search(other.experts.begin(), other.experts.end(),
                                    expert);
        });
    if (!answered_[expert] && !elsewhere) experts.push_back(expert);
  }
  return experts;
}

absl::Status ReplicatedCall::Recover(const Attempt& attempt,
                                     const absl::Status& why) {
  const bool full = absl::IsResourceExhausted(why);
  if (!full && !IsAbsence(why)) return why;
  const ReplicaHolding& holding = *attempt.holding;
  const RouterMetrics& metrics = replicas_.metrics();
  failed_.insert({holding.connection.get(), holding.session});
  // A session that is gone says nothing against the worker's others.
  if (absl::IsUnavailable(why) || full) {
    const bool changed =
        holding.connection->state().Health([&](WorkerHealth& health) {
          return full ? health.OnSilence(Clock::now())
                      : health.OnFailure(Clock::now());
        });
    if (changed) metrics.worker_ejections.With({holding.worker}).Increment();
    replicas_.WakePings();
  }
  const std::vector<int32_t> experts = Unanswered(attempt);
  if (experts.empty()) return absl::OkStatus();
  metrics.call_retries.With({holding.worker}).Increment();
  // Of which `attempt` may be gone.
  ASSIGN_OR_RETURN(const std::vector<int32_t> homeless, Send(experts));
  if (homeless.empty()) return absl::OkStatus();
  if (full) return why;
  for (const int32_t expert : homeless) {
    lost_.push_back(expert);
    answered_[expert] = true;
    --unanswered_;
  }
  return absl::OkStatus();
}

ReplicatedCall::Time ReplicatedCall::NextLook() const {
  Time next = Time::max();
  for (const Attempt& attempt : attempts_) {
    if (attempt.open) next = std::min(next, attempt.next_look);
  }
  return next;
}

absl::Status ReplicatedCall::Look(Time now) {
  for (size_t i = 0; i < attempts_.size(); ++i) {
    if (!attempts_[i].open || attempts_[i].next_look > now) continue;
    attempts_[i].next_look = now + kLookInterval;
    const ReplicaHolding& holding = *attempts_[i].holding;
    WorkerState& state = holding.connection->state();
    const RouterMetrics& metrics = replicas_.metrics();
    if (!attempts_[i].slow) {
      attempts_[i].slow = true;
      const bool changed = state.Health(
          [&](WorkerHealth& health) { return health.OnSilence(now); });
      if (changed) metrics.worker_ejections.With({holding.worker}).Increment();
      replicas_.WakePings();
    } else if (state.health() == State::kFailed) {
      // It does not answer pings either.
      Close(attempts_[i], /*cancel=*/true);
      RETURN_IF_ERROR(
          Recover(attempts_[i], absl::UnavailableError("it does not answer")));
      continue;
    }
    if (attempts_[i].hedged) continue;
    std::vector<int32_t> experts;
    for (const int32_t expert : attempts_[i].experts) {
      if (!answered_[expert]) experts.push_back(expert);
    }
    // Without a budget again at the next look; without replicas never.
    if (!replicas_.TakeHedge()) continue;
    attempts_[i].hedged = true;
    const size_t before = attempts_.size();
    RETURN_IF_ERROR(Send(std::move(experts)).status());
    if (attempts_.size() > before) {
      metrics.call_hedges.With({holding.worker}).Increment();
    }
  }
  return absl::OkStatus();
}

std::vector<Tensor> ReplicatedCall::Finish() {
  std::sort(lost_.begin(), lost_.end());
  for (const RowRange& range : rows_.RangesOf(lost_)) {
    for (Tensor& result : results_) {
      Tensor rows = result.Rows(range.begin, range.end);
      std::fill_n(rows.raw(), rows.bytes(), std::byte{0});
    }
  }
  return std::move(results_);
}

}  // namespace gshard
