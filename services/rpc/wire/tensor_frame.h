// Frame: a message of a header and tensors, such as gshard.v1.ExpertFrame,
// whose tensor bytes are not copied into a protobuf string and out again.
//
// On the wire it is exactly the message that the .proto declares,
//
//   message XFrame { XFrameHeader header = 1; bytes payload = 2; }
//
// where the header has `repeated TensorHeader tensors` and tensor i begins in
// the payload at the first multiple of 64 bytes at or after the end of tensor
// i - 1. Encoding references the tensors' memory; decoding checks the header
// and then copies the payload once, to one 64-byte aligned buffer that the
// decoded tensors share.

#ifndef SERVICES_RPC_WIRE_TENSOR_FRAME_H_
#define SERVICES_RPC_WIRE_TENSOR_FRAME_H_

#include <google/protobuf/message_lite.h>
#include <google/protobuf/repeated_ptr_field.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "proto/gshard/v1/expert.pb.h"
#include "proto/gshard/v1/tensor.pb.h"
#include "services/rpc/wire/message_limits.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Where tensors begin in a payload.
inline constexpr size_t kPayloadAlignment = 64;

// What a decoded frame may have; `max_bytes` is of the whole message. More
// bytes or tensors are RESOURCE_EXHAUSTED before memory is taken for the
// payload, a higher rank INVALID_ARGUMENT. The header is parsed before, which
// may take some 50 times its bytes, as its parts may be tiny.
struct FrameLimits {
  size_t max_bytes = kDefaultMaxMessageBytes;
  size_t max_header_bytes = size_t{1} << 20;
  int max_tensors = 4096;
  int max_rank = 8;
};

template <typename Header>
struct Frame {
  // header.tensors(i) describes tensors[i]: fill both by Add().
  Header header;
  std::vector<Tensor> tensors;

  // Appends a tensor; shares its memory, which must then not be written until
  // the frame has been sent and destroyed (see Tensor::unique()).
  // REQUIRES: !tensor.empty().
  void Add(absl::string_view name, Tensor tensor);
};

using ExpertFrame = Frame<v1::ExpertFrameHeader>;
using TensorFrame = Frame<v1::TensorFrameHeader>;

// Type and dims of a tensor, as the wire writes them.
v1::TensorHeader MakeTensorHeader(absl::string_view name, const Tensor& tensor);

// Checks type, rank, sizes and that the byte count fits. Errors:
// InvalidArgument.
absl::StatusOr<size_t> CheckedTensorBytes(const v1::TensorHeader& header,
                                          int max_rank = 8);

// Bytes of the payload of these tensors, padding included.
size_t PayloadBytes(const std::vector<Tensor>& tensors);

// Serializes. The result references the tensors' memory and keeps it alive.
// REQUIRES: header.tensors describes the tensors.
template <typename Header>
grpc::ByteBuffer EncodeFrame(const Frame<Header>& frame);

// Parses a message of a peer that is not trusted. Errors: InvalidArgument if
// the bytes are no such message, or a tensor's type, rank or sizes are not
// valid, or the payload's length is not what the header says;
// ResourceExhausted beyond the limits.
template <typename Header>
absl::StatusOr<Frame<Header>> DecodeFrame(grpc::ByteBuffer buffer,
                                          const FrameLimits& limits = {});

// Implementation.

grpc::ByteBuffer EncodeParts(const google::protobuf::MessageLite& header,
                             const std::vector<Tensor>& tensors);

using TensorHeaders = google::protobuf::RepeatedPtrField<v1::TensorHeader>;

// Errors: ResourceExhausted.
absl::Status CheckFrameBytes(size_t bytes, const FrameLimits& limits);
absl::Status CheckHeaderBytes(size_t bytes, const FrameLimits& limits);

// Where each tensor begins in a payload of so many bytes. Errors: as
// DecodeFrame().
absl::StatusOr<std::vector<size_t>> CheckedTensorPlaces(
    const TensorHeaders& headers, size_t payload_bytes,
    const FrameLimits& limits);

// The tensors of such a payload, which share its memory.
std::vector<Tensor> WrapTensors(const TensorHeaders& headers,
                                const std::vector<size_t>& places,
                                const std::shared_ptr<std::byte>& payload);

absl::StatusOr<std::vector<Tensor>> DecodeParts(
    grpc::ByteBuffer buffer, const FrameLimits& limits,
    google::protobuf::MessageLite& header, const TensorHeaders& tensor_headers);

template <typename Header>
void Frame<Header>::Add(absl::string_view name, Tensor tensor) {
  CHECK(!tensor.empty());
  *header.add_tensors() = MakeTensorHeader(name, tensor);
  tensors.push_back(std::move(tensor));
}

template <typename Header>
grpc::ByteBuffer EncodeFrame(const Frame<Header>& frame) {
  CHECK(frame.header.tensors_size() == static_cast<int>(frame.tensors.size()));
  return EncodeParts(frame.header, frame.tensors);
}

template <typename Header>
absl::StatusOr<Frame<Header>> DecodeFrame(grpc::ByteBuffer buffer,
                                          const FrameLimits& limits) {
  Frame<Header> frame;
  absl::StatusOr<std::vector<Tensor>> tensors = DecodeParts(
      std::move(buffer), limits, frame.header, frame.header.tensors());
  if (!tensors.ok()) return tensors.status();
  frame.tensors = *std::move(tensors);
  return frame;
}

}  // namespace gshard

#endif  // SERVICES_RPC_WIRE_TENSOR_FRAME_H_
