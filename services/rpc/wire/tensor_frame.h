// Frame: a message of a header and tensors, such as gshard.v1.ExpertFrame. Its
// tensor bytes are not copied through a protobuf string.
//
// On the wire it is exactly the message that the .proto declares,
//
//   message XFrame { XFrameHeader header = 1; bytes payload = 2; }
//
// where the header has `repeated TensorHeader tensors`, and tensor i begins in
// the payload at the first multiple of 64 bytes at or after the end of tensor i
// - 1. Encoding references the tensors' memory. Decoding checks the header and
// then copies the payload once, to one 64-byte aligned buffer that the decoded
// tensors share.

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

// Alignment of tensors in a payload, in bytes.
inline constexpr size_t kPayloadAlignment = 64;
inline constexpr char kPayloadPadding[kPayloadAlignment] = {};

// Limits of a decoded frame; `max_bytes` is the size of the whole message. Too
// many bytes or tensors are RESOURCE_EXHAUSTED, before memory is allocated for
// the payload; too high a rank is INVALID_ARGUMENT. The header is parsed before
// these checks, which may take about 50 times its bytes, since its fields may
// be tiny.
struct FrameLimits {
  size_t max_bytes = kDefaultMaxMessageBytes;
  size_t max_header_bytes = size_t{1} << 20;
  int max_tensors = 4096;
};

template <typename Header>
struct Frame {
  // header.tensors(i) describes tensors[i]; Add() fills both.
  Header header;
  std::vector<Tensor> tensors;

  // Appends a tensor and shares its memory, which must not be written until the
  // frame has been sent and destroyed (see Tensor::unique()).
  // REQUIRES: !tensor.empty().
  void Add(absl::string_view name, Tensor tensor);
};

using ExpertFrame = Frame<v1::ExpertFrameHeader>;
using TensorFrame = Frame<v1::TensorFrameHeader>;

// A header with the tensor's type and dims.
v1::TensorHeader MakeTensorHeader(absl::string_view name, const Tensor& tensor);

// The bytes of the described tensor, after checking its type, rank and sizes,
// and that the byte count does not overflow. Errors: InvalidArgument.
absl::StatusOr<size_t> CheckedTensorBytes(const v1::TensorHeader& header);

// Bytes of the payload that holds these tensors, padding included.
size_t PayloadBytes(const std::vector<Tensor>& tensors);

// Serializes. The result references the tensors' memory and keeps it alive.
// REQUIRES: header.tensors describes the tensors.
template <typename Header>
grpc::ByteBuffer EncodeFrame(const Frame<Header>& frame);

// Parses a message of an untrusted peer. Errors: InvalidArgument if the bytes
// are not such a message, a tensor's type, rank or sizes are invalid, or the
// length of the payload does not match the header; ResourceExhausted beyond the
// limits, or without memory for the payload.
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

// The offset of each tensor in a payload of `payload_bytes`. Errors: as
// DecodeFrame().
absl::StatusOr<std::vector<size_t>> CheckedTensorPlaces(
    const TensorHeaders& headers, size_t payload_bytes,
    const FrameLimits& limits);

// The tensors at these offsets of the payload, whose memory they share.
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
