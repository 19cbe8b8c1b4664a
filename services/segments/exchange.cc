#include "services/segments/exchange.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {

absl::StatusOr<Exchange> Exchange::Create(const Tensor& group_sizes,
                                          const ExpertsOfWorkers& workers) {
  Exchange exchange;
  exchange.workers_ = &workers;
  exchange.group_sizes_ = group_sizes;
  if (group_sizes.type() != ElementType::kInt32 || group_sizes.rank() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group sizes must be i32[E], got ", group_sizes.TypeString()));
  }
  const int64_t E = group_sizes.dim(0);
  std::vector<int64_t> begin_of(E);
  for (int64_t e = 0; e < E; ++e) {
    const int32_t size = group_sizes.i32()[e];
    if (size < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "group sizes must not be negative, got ", size, " for expert ", e));
    }
    begin_of[e] = exchange.total_rows_;
    exchange.total_rows_ += size;
  }
  std::vector<bool> placed(E, false);
  int64_t num_experts = 0;
  for (const std::vector<int32_t>& experts : workers) {
    std::vector<Run> runs;
    int64_t rows = 0;
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
      const int64_t count = group_sizes.i32()[e];
      if (count > 0) {
        if (!runs.empty() &&
            runs.back().begin + runs.back().count == begin_of[e]) {
          runs.back().count += count;
        } else {
          runs.push_back({begin_of[e], count});
        }
      }
      rows += count;
      ++num_experts;
    }
    exchange.runs_.push_back(std::move(runs));
    exchange.num_rows_.push_back(rows);
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
  if (division == Division::kGroupSizes) {
    const std::vector<int32_t>& experts = (*workers_)[w];
    Tensor sizes(ElementType::kInt32, {static_cast<int64_t>(experts.size())});
    for (size_t i = 0; i < experts.size(); ++i) {
      sizes.i32()[i] = group_sizes_.i32()[experts[i]];
    }
    return sizes;
  }
  if (operand.rank() < 1 || operand.dim(0) != total_rows_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected ", total_rows_, " rows, got ", operand.TypeString()));
  }
  const std::vector<Run>& runs = runs_[w];
  if (runs.empty()) return operand.Rows(0, 0);
  if (runs.size() == 1) {
    return operand.Rows(runs[0].begin, runs[0].begin + runs[0].count);
  }
  Dims dims = operand.dims();
  dims[0] = num_rows_[w];
  Tensor part(operand.type(), dims);
  std::byte* to = part.raw();
  for (const Run& run : runs) {
    const Tensor rows = operand.Rows(run.begin, run.begin + run.count);
    std::memcpy(to, rows.raw(), rows.bytes());
    to += rows.bytes();
  }
  return part;
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
  dims[0] = total_rows_;
  Tensor whole(type, dims);
  for (size_t w = 0; w < parts.size(); ++w) {
    if (parts[w].empty()) continue;
    const std::byte* from = parts[w].raw();
    for (const Run& run : runs_[w]) {
      Tensor rows = whole.Rows(run.begin, run.begin + run.count);
      std::memcpy(rows.raw(), from, rows.bytes());
      from += rows.bytes();
    }
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
