#include "services/exchange/exchange_call.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/base/parallel.h"
#include "services/base/retry_delay.h"
#include "services/base/status_macros.h"
#include "services/exchange/segment_calls.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

// Interval of the checks of a late piece.
constexpr std::chrono::milliseconds kLateInterval{20};

// When to call a worker again that failed so, if others keep the call waiting.
Clock::time_point AgainAt(const absl::Status& why) {
  constexpr std::chrono::milliseconds kDelay{1'000};
  const auto delay = RetryDelay(why);
  // Without a delay the call is too long for it.
  if (absl::IsResourceExhausted(why) && !delay.has_value()) {
    return Clock::time_point::max();
  }
  return Clock::now() + delay.value_or(kDelay);
}

bool Holds(const std::vector<int32_t>& ascending, int32_t expert) {
  return std::binary_search(ascending.begin(), ascending.end(), expert);
}

int64_t BytesOf(const std::vector<Tensor>& tensors) {
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.bytes();
  return bytes;
}

}  // namespace

ExchangeCall::ExchangeCall(ExchangePolicy& policy, const ExchangeRun& run,
                           const SegmentCall& call,
                           absl::Span<const Tensor> operands, ExpertRows rows,
                           int64_t first_piece,
                           std::shared_ptr<ReplyMailbox> mailbox)
    : policy_(policy),
      run_(run),
      call_(call),
      operands_(operands),
      rows_(std::move(rows)),
      first_piece_(first_piece),
      mailbox_(std::move(mailbox)),
      in_time_(rows_.num_experts(), 0),
      results_(call.num_replies) {
  for (const int32_t size : rows_.sizes()) answered_.push_back(size == 0);
}

ExchangeCall::~ExchangeCall() {
  for (SentPiece& sent : sent_) Close(sent, /*cancel=*/true);
}

absl::StatusOr<std::vector<Tensor>> ExchangeCall::Run() {
  policy_.OnCall();
  std::vector<int32_t> experts;
  for (size_t e = 0; e < answered_.size(); ++e) {
    if (!answered_[e]) experts.push_back(static_cast<int32_t>(e));
  }
  RETURN_IF_ERROR(Send(experts, absl::OkStatus()));
  if (open_ > 0) RestHelpers();
  while (open_ > 0) {
    auto replies = mailbox_->WaitUntil(std::min(NextWakeup(), run_.deadline));
    if (!replies.has_value()) {
      return absl::CancelledError("the run was cancelled");
    }
    for (ReplyMailbox::Reply& reply : *replies) {
      RETURN_IF_ERROR(Take(std::move(reply)));
    }
    if (open_ == 0) break;
    const Time now = Clock::now();
    if (now >= run_.deadline) return DeadlineError();
    RETURN_IF_ERROR(Look(now));
  }
  return Finish();
}

absl::Status ExchangeCall::Send(const std::vector<int32_t>& experts,
                                const absl::Status& why) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> left, SendIfHeld(experts));
  if (left.empty()) return absl::OkStatus();
  RETURN_IF_ERROR(policy_.OnNoHolder(left, why));
  for (const int32_t expert : left) answered_[expert] = true;
  lost_.insert(lost_.end(), left.begin(), left.end());
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ExchangeCall::SendIfHeld(
    const std::vector<int32_t>& experts) {
  // The placement may have changed since the call began.
  const ExchangePolicy::Group group = policy_.group();
  std::vector<ReplicaHolder> holders;
  for (const ReplicaHolding& holding : group->holdings) {
    holders.push_back(
        {.experts = holding.experts,
         .outstanding_rows = holding.stub->state().outstanding_rows(),
         .state = IsTried(holding, experts) ? WorkerHealth::State::kFailed
                                            : policy_.StateOf(holding)});
  }
  const bool idle_too = run_.step > 0 && sent_.empty();
  RowPlan plan = PlanExchange(rows_, experts, holders, idle_too);
  for (RowPiece& piece : plan.pieces) {
    RETURN_IF_ERROR(Start(group, std::move(piece)));
  }
  return std::move(plan.no_holder);
}

bool ExchangeCall::IsTried(const ReplicaHolding& holding,
                           const std::vector<int32_t>& experts) const {
  const auto failed = failed_.find({holding.stub.get(), holding.session});
  if (failed != failed_.end() && Clock::now() < failed->second) return true;
  return std::any_of(sent_.begin(), sent_.end(), [&](const SentPiece& sent) {
    return sent.open && sent.holding->stub == holding.stub &&
           sent.holding->session == holding.session &&
           std::any_of(experts.begin(), experts.end(), [&](int32_t expert) {
             return Holds(sent.piece.experts, expert);
           });
  });
}

absl::Status ExchangeCall::Start(ExchangePolicy::Group group, RowPiece piece) {
  const ReplicaHolding& holding = group->holdings[piece.holder];
  SentPiece sent{.group = std::move(group),
                 .holding = &holding,
                 .piece = std::move(piece),
                 .sent = Clock::now()};
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      run_.deadline - sent.sent);
  if (left.count() <= 0) {
    return absl::DeadlineExceededError("no time is left for expert workers");
  }
  sent.late_at = policy_.LateAt(holding, sent.piece.rows, sent.sent);
  ASSIGN_OR_RETURN(WorkerCall call, CallOf(holding, sent.piece));
  call.timeout = left;
  int64_t bytes = 0;
  for (const auto& [name, tensor] : call.inputs) bytes += tensor.bytes();
  policy_.metrics().sent_bytes.Increment(static_cast<double>(bytes));
  bytes_ += bytes;
  holding.stub->state().AddOutstanding(sent.piece.rows);
  sent.call_id = holding.stub->Call(
      call,
      [mailbox = mailbox_, number = first_piece_ + num_pieces()](auto reply) {
        mailbox->Put({number, std::move(reply), Clock::now()});
      });
  Count(sent, 1);
  sent_.push_back(std::move(sent));
  ++open_;
  return absl::OkStatus();
}

absl::StatusOr<WorkerCall> ExchangeCall::CallOf(const ReplicaHolding& holding,
                                                const RowPiece& piece) const {
  WorkerCall call{.session = holding.session,
                  .segment = call_.segment,
                  .step = run_.step,
                  .microbatch = run_.microbatch,
                  .attempt = run_.attempt};
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (!call_.sent[i]) continue;
    ASSIGN_OR_RETURN(Tensor part, PieceOf(operands_[i], call_.division[i],
                                          rows_, piece, holding.experts));
    call.inputs.emplace_back(call_.names[i], std::move(part));
  }
  return call;
}

absl::Status ExchangeCall::Take(ReplyMailbox::Reply reply) {
  const int64_t index = reply.number - first_piece_;
  if (index < 0) return absl::OkStatus();  // belongs to an earlier call
  SentPiece& sent = sent_[index];
  if (!sent.open) return absl::OkStatus();  // others were faster
  const ReplicaHolding& holding = *sent.holding;
  if (!reply.tensors.ok()) {
    Close(sent, /*cancel=*/true);
    return Recover(sent, reply.tensors.status());
  }
  policy_.OnReply(holding, sent.piece.rows,
                  std::chrono::duration_cast<std::chrono::microseconds>(
                      reply.at - sent.sent));
  const int64_t bytes = BytesOf(*reply.tensors);
  policy_.metrics().received_bytes.Increment(static_cast<double>(bytes));
  bytes_ += bytes;
  const auto bad = [&](const auto&... what) {
    return absl::InternalError(absl::StrCat(holding.stub->name(), ", segment ",
                                            call_.segment, ": ", what...));
  };
  if (static_cast<int64_t>(reply.tensors->size()) != call_.num_replies) {
    return bad("expected ", call_.num_replies, " replies, got ",
               reply.tensors->size());
  }
  for (int64_t r = 0; r < call_.num_replies; ++r) {
    const Tensor& rows = (*reply.tensors)[r];
    if (!rows.empty() && rows.type() == call_.reply_types[r].type &&
        rows.dims() == ReplyDims(call_, r, sent.piece.rows)) {
      continue;
    }
    return bad("expected ", sent.piece.rows, " rows of ",
               call_.reply_types[r].ToString(), ", got ", rows.TypeString());
  }
  Close(sent, /*cancel=*/false);
  return Merge(sent, *std::move(reply.tensors));
}

absl::Status ExchangeCall::Merge(const SentPiece& sent, Replies replies) {
  // Some rows may have arrived from other holders already: their bits are the
  // same.
  for (int64_t r = 0; r < call_.num_replies; ++r) {
    if (sent.piece.rows == rows_.total()) {
      results_[r] = std::move(replies[r]);
      continue;
    }
    if (results_[r].empty()) {
      results_[r] =
          Tensor(call_.reply_types[r].type, ReplyDims(call_, r, rows_.total()));
    }
    PutRows(replies[r], sent.piece.ranges, results_[r]);
  }
  for (const int32_t expert : sent.piece.experts) answered_[expert] = true;
  for (SentPiece& other : sent_) {
    const std::vector<int32_t>& experts = other.piece.experts;
    if (other.open && !experts.empty() &&
        std::all_of(experts.begin(), experts.end(),
                    [&](int32_t e) { return answered_[e]; })) {
      GiveUp(other);
    }
  }
  return absl::OkStatus();
}

void ExchangeCall::Close(SentPiece& sent, bool cancel) {
  if (!sent.open) return;
  sent.open = false;
  --open_;
  if (!sent.late_since) Count(sent, -1);
  WorkerStub& stub = *sent.holding->stub;
  stub.state().AddOutstanding(-sent.piece.rows);
  if (cancel) stub.Cancel(sent.call_id);
}

void ExchangeCall::GiveUp(SentPiece& sent) {
  if (sent.late_since) policy_.OnUnanswered(*sent.holding, Clock::now());
  Close(sent, /*cancel=*/true);
}

std::vector<int32_t> ExchangeCall::Unanswered(const SentPiece& sent) const {
  std::vector<int32_t> experts;
  for (const int32_t expert : sent.piece.experts) {
    const bool elsewhere =
        std::any_of(sent_.begin(), sent_.end(), [&](const SentPiece& other) {
          return &other != &sent && other.open &&
                 Holds(other.piece.experts, expert);
        });
    if (!answered_[expert] && !elsewhere) experts.push_back(expert);
  }
  return experts;
}

void ExchangeCall::Count(const SentPiece& sent, int32_t by) {
  for (const int32_t expert : sent.piece.experts) in_time_[expert] += by;
}

absl::Status ExchangeCall::Recover(const SentPiece& sent,
                                   const absl::Status& why) {
  const ReplicaHolding& holding = *sent.holding;
  RETURN_IF_ERROR(policy_.OnFailure(holding, why));
  failed_[{holding.stub.get(), holding.session}] = AgainAt(why);
  const std::vector<int32_t> experts = Unanswered(sent);
  if (experts.empty()) return absl::OkStatus();
  policy_.metrics().workers->CountRetry(holding.worker);
  return Send(experts, why);  // may invalidate `sent`
}

ExchangeCall::Time ExchangeCall::NextWakeup() const {
  Time next = Time::max();
  for (const SentPiece& sent : sent_) {
    if (sent.open) next = std::min(next, sent.late_at);
  }
  return next;
}

absl::Status ExchangeCall::Look(Time now) {
  for (size_t i = 0; i < sent_.size(); ++i) {
    if (!sent_[i].open || sent_[i].late_at > now) continue;
    const ReplicaHolding& holding = *sent_[i].holding;
    if (!sent_[i].late_since) {
      sent_[i].late_since = now;
      Count(sent_[i], -1);
    }
    // Whoever was asked since may have failed, or be late as well.
    std::vector<int32_t> experts;
    for (const int32_t expert : sent_[i].piece.experts) {
      if (!answered_[expert] && in_time_[expert] == 0) {
        experts.push_back(expert);
      }
    }
    const LateAction late = policy_.OnLate(
        holding, *sent_[i].late_since, /*others_asked=*/experts.empty(), now);
    sent_[i].late_at = now + kLateInterval;
    if (late == LateAction::kGiveUp) {
      GiveUp(sent_[i]);
      RETURN_IF_ERROR(
          Recover(sent_[i], absl::UnavailableError("it does not answer")));
    } else if (late == LateAction::kHedge) {
      const int64_t before = num_pieces();
      RETURN_IF_ERROR(SendIfHeld(experts).status());
      if (num_pieces() > before) {
        policy_.OnHedge();
        policy_.metrics().workers->CountHedge(holding.worker);
      }
    }
  }
  return absl::OkStatus();
}

absl::Status ExchangeCall::DeadlineError() {
  std::vector<std::string> names;
  for (SentPiece& sent : sent_) {
    if (!sent.open) continue;
    names.push_back(sent.holding->stub->name());
    GiveUp(sent);
  }
  return absl::DeadlineExceededError(
      absl::StrCat(absl::StrJoin(names, ", "), " did not answer in time"));
}

std::vector<Tensor> ExchangeCall::Finish() {
  std::sort(lost_.begin(), lost_.end());
  const std::vector<RowRange> lost = rows_.RangesOf(lost_);
  for (int64_t r = 0; r < call_.num_replies; ++r) {
    if (results_[r].empty()) {
      results_[r] = Tensor::Zeros(call_.reply_types[r].type,
                                  ReplyDims(call_, r, rows_.total()));
      continue;
    }
    for (const RowRange& range : lost) {
      Tensor rows = results_[r].Rows(range.begin, range.end);
      std::fill_n(rows.raw(), rows.bytes(), std::byte{0});
    }
  }
  return std::move(results_);
}

}  // namespace gshard
