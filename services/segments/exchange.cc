#include "services/segments/exchange.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::StatusOr<Exchange> Exchange::Create(const Tensor& group_sizes,
                                          const ExpertsOfWorkers& workers) {
  Exchange exchange;
  exchange.workers_ = &workers;
  ASSIGN_OR_RETURN(exchange.rows_, ExpertRows::Create(group_sizes));
  const int64_t E = exchange.rows_.num_experts();
  std::vector<bool> placed(E, false);
  int64_t num_experts = 0;
  for (const std::vector<int32_t>& experts : workers) {
    for (const int32_t e : experts) {
      if (e < 0 || e >= E) {
        return absl::InvalidArgumentError(absl::StrCat(
            "expert ", e, " of the placement is not in [0, ", E, ")"));
      }
      if (placed[e]) {
        return absl::InvalidArgumentError(
            absl::StrCat("expert ", e, " is placed twice"));
      }
      placed[e] = true;
      ++num_experts;
    }
    exchange.runs_.push_back(exchange.rows_.RangesOf(experts));
    exchange.num_rows_.push_back(CountRows(exchange.runs_.back()));
  }
  if (num_experts != E) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the placement must hold ", E, " experts, got ", num_experts));
  }
  return exchange;
}

absl::StatusOr<Tensor> Exchange::Part(const Tensor& operand, Division division,
                                      int w) const {
  if (division == Division::kWhole) return operand;
  if (division == Division::kRows) {
    return TakeRows(operand, rows_.total(), runs_[w]);
  }
  const std::vector<int32_t>& experts = (*workers_)[w];
  Tensor sizes(ElementType::kInt32, {static_cast<int64_t>(experts.size())});
  for (size_t i = 0; i < experts.size(); ++i) {
    sizes.i32()[i] = rows_.sizes()[experts[i]];
  }
  return sizes;
}

absl::StatusOr<Tensor> Exchange::Merge(std::vector<Tensor> parts) const {
  CHECK(parts.size() == runs_.size());
  Dims dims;
  ElementType type = ElementType::kFloat32;
  for (size_t w = 0; w < parts.size(); ++w) {
    const Tensor& part = parts[w];
    if (part.empty() && num_rows_[w] == 0) continue;
    const bool of_type =
        !part.empty() &&
        (dims.empty() ? part.type() == ElementType::kFloat32 ||
                            part.type() == ElementType::kBFloat16
                      : part.type() == type);
    const bool fits =
        of_type && part.rank() >= 1 && part.dim(0) == num_rows_[w];
    Dims expected = dims.empty() ? part.dims() : dims;
    if (fits) expected[0] = num_rows_[w];
    if (!fits || part.dims() != expected) {
      return absl::InvalidArgumentError(absl::StrCat(
          "worker ", w, " must reply with f32 or bf16 of ", num_rows_[w],
          " rows like the others, got ", part.TypeString()));
    }
    dims = expected;
    type = part.type();
  }
  if (parts.size() == 1) return std::move(parts[0]);
  // No rows at all and nobody was asked: the width is the caller's to know.
  if (dims.empty()) return absl::InternalError("no worker was called");
  dims[0] = rows_.total();
  Tensor whole(type, dims);
  for (size_t w = 0; w < parts.size(); ++w) {
    if (!parts[w].empty()) PutRows(parts[w], runs_[w], whole);
  }
  return whole;
}

namespace {

// Adds what another slice of the same experts sends.
absl::Status AddSlice(const Tensor& slice, Tensor& sum) {
  if (slice.type() != ElementType::kFloat32 || slice.type() != sum.type() ||
      slice.dims() != sum.dims()) {
    return absl::InvalidArgumentError(
        absl::StrCat("slices of one expert must reply alike, got ",
                     sum.TypeString(), " and ", slice.TypeString()));
  }
  if (!sum.unique()) sum = sum.Clone();
  for (int64_t i = 0; i < sum.size(); ++i) sum.f32()[i] += slice.f32()[i];
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<Tensor>> DividingRunner::Call(
    const Node& node, absl::Span<const Tensor> operands) {
  const SegmentCall call = GetSegmentCall(node);
  ASSIGN_OR_RETURN(const Exchange exchange,
                   Exchange::Create(operands[0], workers_));
  std::vector<WorkerCall> calls;
  for (size_t w = 0; w < workers_.size(); ++w) {
    // Worker 0 is called even so: its reply says how wide a row is.
    if (skip_idle_ && w > 0 && exchange.num_rows(w) == 0) continue;
    WorkerCall worker_call{.worker = 0,
                           .segment = call.segment,
                           .inputs = {},
                           .num_replies = call.num_replies};
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!call.sent[i]) continue;
      ASSIGN_OR_RETURN(Tensor part,
                       exchange.Part(operands[i], call.division[i], w));
      worker_call.inputs.emplace_back(call.names[i], std::move(part));
    }
    for (int slice = 0; slice < slices_; ++slice) {
      worker_call.worker = static_cast<int>(w) * slices_ + slice;
      calls.push_back(worker_call);
    }
  }
  std::vector<int> called;
  for (const WorkerCall& worker_call : calls) {
    called.push_back(worker_call.worker);
  }
  ASSIGN_OR_RETURN(std::vector<std::vector<Tensor>> replies,
                   CallWorkers(std::move(calls)));
  std::vector<Tensor> results;
  for (int64_t r = 0; r < call.num_replies; ++r) {
    std::vector<Tensor> parts(workers_.size());
    for (size_t i = 0; i < called.size(); ++i) {
      if (replies[i].size() != static_cast<size_t>(call.num_replies)) {
        return absl::InternalError(absl::StrCat(
            "worker ", called[i], " must send ", call.num_replies,
            " replies to ", call.segment, ", got ", replies[i].size()));
      }
      // Slices come in order.
      Tensor& part = parts[called[i] / slices_];
      if (called[i] % slices_ == 0) {
        part = std::move(replies[i][r]);
      } else if (call.summed[r]) {
        RETURN_IF_ERROR(AddSlice(replies[i][r], part));
      }
    }
    auto merged = exchange.Merge(std::move(parts));
    if (!merged.ok()) return Annotate(merged.status(), call.segment);
    results.push_back(*std::move(merged));
  }
  return results;
}

}  // namespace gshard
