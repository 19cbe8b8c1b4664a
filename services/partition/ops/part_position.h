// PartPosition: the position of a device's part in the whole tensor, for
// operators whose results depend on it: random numbers indexed by element,
// causal masks, words of a vocabulary.
//
// Such an operator has attributes with one entry per dimension of the tensor:
//
//   axes    mesh axes that split it, separated by ";": "router;;model"
//   sizes   its whole size, 0 if that is the parts' sizes together (a symbol)
//   parts   number of parts, 0 along an elastic axis

#ifndef SERVICES_PARTITION_OPS_PART_POSITION_H_
#define SERVICES_PARTITION_OPS_PART_POSITION_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/collectives/device_groups.h"
#include "services/graph/op.h"
#include "services/sharding/sharding.h"

namespace gshard {

struct PartPosition {
  Dims begin;  // position of the part's first element
  Dims whole;  // sizes
};

// Adds the attributes of a tensor of whole shape `shape` to `more`.
Attributes PositionAttributes(const Shape& shape, const Sharding& sharding,
                              const DeviceMesh& mesh, Attributes more = {});

// Checks for `infer`: that the attributes exist, for `rank` dimensions; that
// "parts" is the number of an operator's devices.
absl::Status ExpectPosition(const Attributes& attributes, size_t rank);
absl::Status ExpectParts(const Attributes& attributes);

// The devices of the run, and this one's index along the node's "axes". Errors:
// FailedPrecondition outside of a partitioned program; those of
// DeviceGroups::Index.
absl::StatusOr<DeviceGroups*> DevicesOf(const KernelContext& context);
absl::StatusOr<int64_t> DeviceIndex(const KernelContext& context);

// Position of this device's part, which has the sizes `local`.
//
// Errors: those of DevicesOf() and DeviceGroups::Index.
absl::StatusOr<PartPosition> FindPosition(const KernelContext& context,
                                          const Dims& local);

}  // namespace gshard

#endif  // SERVICES_PARTITION_OPS_PART_POSITION_H_
