// The exchange between a router and its expert workers: dividing the operands
// of a segment call among the workers, and putting their replies together.
//
// Rows come sorted by expert, so a worker's share is the runs of rows of its
// experts; with contiguous placements that is one run, passed on as a view.
//
// Letters: E experts, R rows.

#ifndef SERVICES_SEGMENTS_EXCHANGE_H_
#define SERVICES_SEGMENTS_EXCHANGE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/graph/op.h"
#include "services/segments/expert_rows.h"
#include "services/segments/role_split.h"
#include "services/segments/segment_runner.h"

namespace gshard {

// Global ids of the experts of each worker, ascending; together each of
// [0, E) once.
using ExpertsOfWorkers = std::vector<std::vector<int32_t>>;

// How one call is divided.
class Exchange {
 public:
  // `group_sizes` is i32[E].
  //
  // Errors: InvalidArgument if it is not, a size is negative, or `workers` do
  // not hold each of [0, E) once. `workers` is not owned.
  static absl::StatusOr<Exchange> Create(const Tensor& group_sizes,
                                         const ExpertsOfWorkers& workers);

  // Rows of worker w.
  int64_t num_rows(int w) const { return num_rows_[w]; }

  // Worker w's part of an operand. A view where possible.
  //
  // Errors: InvalidArgument if the operand does not have R rows.
  absl::StatusOr<Tensor> Part(const Tensor& operand, Division division,
                              int w) const;

  // The inverse for rows: parts[w] holds worker w's rows, or is absent if it
  // has none.
  //
  // Errors: InvalidArgument if a part is not f32 or bf16 with its worker's rows
  // and the type and sizes of the others.
  absl::StatusOr<Tensor> Merge(std::vector<Tensor> parts) const;

 private:
  const ExpertsOfWorkers* workers_ = nullptr;
  ExpertRows rows_;
  std::vector<int64_t> num_rows_;
  std::vector<std::vector<RowRange>> runs_;  // of each worker
};

// What one worker is asked.
struct WorkerCall {
  int worker = 0;
  std::string segment;
  std::vector<std::pair<std::string, Tensor>> inputs;  // names as the segment's
  int64_t num_replies = 0;
};

// A SegmentRunner that divides each call among workers. Subclasses bring the
// calls to them: in this process (local_segments.h) or over the network.
class DividingRunner : public SegmentRunner {
 public:
  // With `skip_idle`, workers without rows are not called: right where nothing
  // depends on it, that is, when no gradients are summed there.
  //
  // With `slices`, each entry of `workers` stands for as many workers, that
  // hold slices of its experts: slice s of entry w is worker w * slices + s.
  DividingRunner(ExpertsOfWorkers workers, bool skip_idle, int slices = 1)
      : workers_(std::move(workers)), skip_idle_(skip_idle), slices_(slices) {}

  absl::StatusOr<std::vector<Tensor>> Call(
      const Node& node, absl::Span<const Tensor> operands) final;

 protected:
  // Makes the calls, at the same time if it can. Returns the replies of each
  // call, num_replies tensors, in the order of `calls`.
  virtual absl::StatusOr<std::vector<std::vector<Tensor>>> CallWorkers(
      std::vector<WorkerCall> calls) = 0;

 private:
  const ExpertsOfWorkers workers_;
  const bool skip_idle_;
  const int slices_;
};

}  // namespace gshard

#endif  // SERVICES_SEGMENTS_EXCHANGE_H_
