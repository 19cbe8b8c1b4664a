// Splits named tensors of any size into TensorFrames of limited size, and
// reassembles them: the contents of PushGradients and PullParameters.

#ifndef SERVICES_RPC_WIRE_TENSOR_PIECES_H_
#define SERVICES_RPC_WIRE_TENSOR_PIECES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/rpc/wire/tensor_frame.h"
#include "services/tensor/tensor.h"

namespace gshard {

using NamedTensors = std::map<std::string, Tensor>;

// Payload bytes of one frame: large enough for full throughput, small enough
// for the second-level cache.
inline constexpr size_t kFramePayloadBytes = size_t{1} << 20;

// Splits `tensors` into frames, in the order of their names. Small tensors
// share frames; one of more than `max_payload_bytes` spans several. Each
// frame's header is `header` with `tensors` and `piece` added. There is at
// least one frame, even without tensors. The frames share the tensors' memory.
// REQUIRES: max_payload_bytes >= 64; no tensor is empty().
std::vector<TensorFrame> SplitTensors(
    const NamedTensors& tensors, const v1::TensorFrameHeader& header,
    size_t max_payload_bytes = kFramePayloadBytes);

// Type and sizes that a tensor must have.
struct ExpectedTensor {
  ElementType type = ElementType::kFloat32;
  Dims dims;
};

// Reassembles the tensors of a sequence of frames. Allocates only tensors that
// are expected, so that a peer cannot make it allocate anything else. Not
// thread-safe.
class TensorCollector {
 public:
  explicit TensorCollector(std::map<std::string, ExpectedTensor> expected);

  // Adds the next frame's tensors. Errors, each naming the tensor:
  // InvalidArgument if a tensor is unknown, is complete already, has another
  // type or shape, or its piece is not the next one; ResourceExhausted if there
  // is no memory for it. The collector is unusable after an error.
  absl::Status Add(TensorFrame frame);

  // The expected tensors. Errors: InvalidArgument naming a tensor that is
  // missing or incomplete.
  absl::StatusOr<NamedTensors> Take();

 private:
  absl::Status AddWhole(const std::string& name, Tensor tensor);
  absl::Status AddPiece(const std::string& name, const v1::TensorPiece& piece,
                        const Tensor& elements);

  std::map<std::string, ExpectedTensor> expected_;
  NamedTensors tensors_;
  // The name of the tensor that is being reassembled, the only one that may be
  // incomplete, and the number of its elements received so far.
  std::string partial_;
  int64_t partial_elements_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_RPC_WIRE_TENSOR_PIECES_H_
