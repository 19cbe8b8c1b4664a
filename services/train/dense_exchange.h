// DenseExchange: sums gradients and exchanges parameters among the members of a
// group, each of which owns and updates a part of the dense tensors.
//
// Sums have the bits of OrderedSum over all microbatches in one process: an
// owner adds strictly in order of the microbatches, whichever members ran them.
// Contributions are not reduced on the way, as this would change the order.
//
// Data travels in rounds of one exchange each, in which a member sends and
// receives at most `max_round_bytes` (or one element per microbatch, if that is
// more). Besides arguments and results, the only memory used is that of buffers
// of these sizes.

#ifndef SERVICES_TRAIN_DENSE_EXCHANGE_H_
#define SERVICES_TRAIN_DENSE_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/collectives/communicator.h"
#include "services/graph/executor.h"
#include "services/model/parameters.h"
#include "services/train/parameter_store.h"
#include "services/train/tensor_owners.h"

namespace gshard {

// Large enough that the latency of an exchange does not matter.
inline constexpr size_t kMaxRoundBytes = size_t{16} << 20;

// All members make the same calls in the same order, each on its own
// communicator of the group. Errors of both calls: those of
// Communicator::Exchange. Not thread-safe.
class DenseExchange {
 public:
  // REQUIRES: CheckOwners, one owner for each member of `group` (not owned);
  // max_round_bytes >= 4.
  DenseExchange(const std::vector<ParameterSpec>& specs,
                const TensorOwners& owners, Communicator* group,
                size_t max_round_bytes = kMaxRoundBytes);

  // The tensors that this member owns, in the order of `owners`.
  const std::vector<ParameterSpec>& own() const;

  // The summed gradients of the tensors that this member owns. `ran[m]` is the
  // rank that ran microbatch m; `gradients` holds, for each microbatch that
  // this member ran, all dense gradients by name. REQUIRES: at least one
  // microbatch; ranks are in the group; gradients have the shapes of the
  // parameters.
  absl::StatusOr<GradientList> SumGradients(
      absl::Span<const int> ran, const std::map<int32_t, TensorMap>& gradients);

  // All dense parameters. `own` holds those of this member; the others are new
  // tensors.
  absl::StatusOr<TensorMap> GatherParameters(const TensorMap& own);

 private:
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t size() const { return end - begin; }
    size_t bytes() const { return size() * sizeof(float); }
  };

  // Elements of one owner's part per round, of which `copies` are sent.
  int64_t Chunk(int64_t copies) const;
  int64_t Rounds(int64_t chunk) const;
  Range RangeOf(int owner, int64_t chunk, int64_t round) const;

  Communicator* const group_;
  const size_t max_round_bytes_;
  std::vector<std::vector<ParameterSpec>> parts_;  // by owner
  std::vector<int64_t> sizes_;                     // elements of each part
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_DENSE_EXCHANGE_H_
