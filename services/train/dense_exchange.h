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
// of these sizes. Tensors may be on a device: they are then copied and summed
// there, and pass through the host only if the group exchanges its memory.

#ifndef SERVICES_TRAIN_DENSE_EXCHANGE_H_
#define SERVICES_TRAIN_DENSE_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/collectives/communicator.h"
#include "services/graph/device.h"
#include "services/graph/executor.h"
#include "services/model/parameters.h"
#include "services/train/parameter_store.h"
#include "services/train/tensor_owners.h"

namespace gshard {

// Large enough that the latency of an exchange does not matter.
inline constexpr size_t kMaxRoundBytes = size_t{16} << 20;

// All members make the same calls in the same order, each on its own
// communicator of the group. Errors of both calls: those of
// Communicator::Exchange and those of the device. Not thread-safe.
class DenseExchange {
 public:
  // All tensors are on `device`, or on the host if it is null. REQUIRES:
  // CheckOwners, one owner for each member of `group`; max_round_bytes >= 4; a
  // device if group->on_device(). `group` and `device` outlive the exchange.
  DenseExchange(const std::vector<ParameterSpec>& specs,
                const TensorOwners& owners, Communicator* group,
                size_t max_round_bytes = kMaxRoundBytes,
                Device* device = nullptr);

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
  };

  absl::StatusOr<std::unique_ptr<DeviceRun>> BeginRun() const;
  // A buffer that the group receives into.
  absl::StatusOr<Tensor> NewReceiving(DeviceRun* run, int64_t elements) const;
  // Sends the first send[r] elements of sending[r] to each other member r, and
  // receives receive[r] into receiving[r], which NewReceiving made.
  absl::Status Exchange(DeviceRun* run, absl::Span<const Tensor> sending,
                        absl::Span<const int64_t> send,
                        std::vector<Tensor>& receiving,
                        absl::Span<const int64_t> receive);

  // Elements of one owner's part per round, of which `copies` are sent.
  int64_t Chunk(int64_t copies) const;
  int64_t Rounds(int64_t chunk) const;
  Range RangeOf(int owner, int64_t chunk, int64_t round) const;

  Communicator* const group_;
  const size_t max_round_bytes_;
  Device* const device_;                           // may be null
  std::vector<std::vector<ParameterSpec>> parts_;  // by owner
  std::vector<int64_t> sizes_;                     // elements of each part
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_DENSE_EXCHANGE_H_
