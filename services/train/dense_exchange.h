// DenseExchange: what the members of a group tell each other when they sum
// gradients and update parameters among themselves, each the tensors that it
// owns.
//
// Sums have the bits of OrderedSum over all microbatches in one process: an
// owner adds strictly in order of the microbatches, whoever ran them. Nothing
// is added up on the way, for that would be another order.
//
// Everything travels in rounds, an exchange each, in which a member sends at
// most `max_round_bytes` and receives at most as many (or one element of each
// microbatch, if that is more). Buffers of these sizes are all the memory that
// is taken beside arguments and results.

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

// So many that the delay of an exchange does not count.
inline constexpr size_t kMaxRoundBytes = size_t{16} << 20;

// All members make the same calls in the same order, on their communicators of
// one group. Errors of both are those of Communicator::Exchange. Not
// thread-safe.
class DenseExchange {
 public:
  // REQUIRES: CheckOwners, one owner for each member of `group` (not owned);
  // max_round_bytes >= 4.
  DenseExchange(const std::vector<ParameterSpec>& specs,
                const TensorOwners& owners, Communicator* group,
                size_t max_round_bytes = kMaxRoundBytes);

  // What this member owns, in order of name.
  const std::vector<ParameterSpec>& own() const;

  // The sums of the gradients of what this member owns. `ran[m]` is the rank of
  // who ran microbatch m; `gradients` has, of those that this member ran, all
  // dense gradients by name. REQUIRES: at least one microbatch; ranks of the
  // group; gradients in the shapes of the parameters.
  absl::StatusOr<GradientList> SumGradients(
      absl::Span<const int> ran, const std::map<int32_t, TensorMap>& gradients);

  // All dense parameters; `own` has this member's. Those of others are new
  // tensors.
  absl::StatusOr<TensorMap> GatherParameters(const TensorMap& own);

 private:
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
    int64_t size() const { return end - begin; }
    size_t bytes() const { return size() * sizeof(float); }
  };

  // Elements of an owner's part in a round where `copies` of them travel.
  int64_t Chunk(int64_t copies) const;
  int64_t Rounds(int64_t chunk) const;
  Range RangeOf(int owner, int64_t chunk, int64_t round) const;

  Communicator* const group_;
  const size_t max_round_bytes_;
  std::vector<std::vector<ParameterSpec>> parts_;  // by owner
  std::vector<int64_t> sizes_;                     // of parts, elements
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_DENSE_EXCHANGE_H_
