#include "services/rpc/wire/tensor_frame.h"

#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/tensor/buffer.h"

namespace gshard {
namespace {

using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

// Field numbers of a frame and wire types of protobuf's encoding.
constexpr uint32_t kHeaderField = 1;
constexpr uint32_t kPayloadField = 2;
constexpr uint32_t kLengthDelimited = 2;

constexpr int kMaxTensorRank = 8;

constexpr uint32_t Tag(uint32_t field) { return field << 3 | kLengthDelimited; }

size_t AlignUp(size_t bytes) {
  return (bytes + kPayloadAlignment - 1) / kPayloadAlignment *
         kPayloadAlignment;
}

absl::Status NotAFrame(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("not a frame: ", why));
}

// A slice that references a tensor's memory and keeps it alive.
grpc::Slice ReferTo(const Tensor& tensor) {
  auto* keeper = new Tensor(tensor);
  return grpc::Slice(
      keeper->raw(), keeper->bytes(),
      [](void* tensor) { delete static_cast<Tensor*>(tensor); }, keeper);
}

// The place of the payload in a message.
struct Extent {
  size_t begin = 0;
  size_t size = 0;
};

// Parses everything except the payload, whose place it returns. As in protobuf,
// the last payload counts, headers are merged and unknown fields are skipped.
absl::StatusOr<Extent> ParseHeader(grpc::ByteBuffer& buffer,
                                   const FrameLimits& limits,
                                   google::protobuf::MessageLite& header) {
  const size_t total = buffer.Length();
  grpc::ProtoBufferReader reader(&buffer);
  if (!reader.status().ok()) return NotAFrame(reader.status().error_message());
  CodedInputStream in(&reader);
  in.SetTotalBytesLimit(INT32_MAX);

  Extent payload;
  size_t header_bytes = 0;
  while (static_cast<size_t>(in.CurrentPosition()) < total) {
    const uint32_t tag = in.ReadTag();
    uint32_t size = 0;
    if (tag >> 3 == 0) return NotAFrame("a field has no number");
    if ((tag & 7) != kLengthDelimited) {
      return NotAFrame("a field is not length-delimited");
    }
    if (!in.ReadVarint32(&size)) return NotAFrame("it ends within a length");
    const size_t position = in.CurrentPosition();
    if (size > total - position) {
      return NotAFrame(absl::StrCat("field ", tag >> 3, " has ", size,
                                    " bytes, ", total - position, " are left"));
    }
    if (tag >> 3 == kHeaderField) {
      header_bytes += size;
      RETURN_IF_ERROR(CheckHeaderBytes(header_bytes, limits));
      const CodedInputStream::Limit limit = in.PushLimit(size);
      if (!header.MergePartialFromCodedStream(&in) ||
          !in.ConsumedEntireMessage()) {
        return NotAFrame(
            absl::StrCat("the header is not a ", header.GetTypeName()));
      }
      in.PopLimit(limit);
    } else {
      if (tag >> 3 == kPayloadField) payload = {position, size};
      if (!in.Skip(size)) return NotAFrame("it ends within a field");
    }
  }
  return payload;
}

// Copies the payload out of the buffer's slices.
absl::Status CopyPayload(grpc::ByteBuffer& buffer, Extent payload,
                         std::byte* to) {
  grpc::ProtoBufferReader reader(&buffer);
  CodedInputStream in(&reader);
  in.SetTotalBytesLimit(INT32_MAX);
  if (!in.Skip(static_cast<int>(payload.begin)) ||
      !in.ReadRaw(to, static_cast<int>(payload.size))) {
    return NotAFrame("it ends within the payload");
  }
  return absl::OkStatus();
}

}  // namespace

v1::TensorHeader MakeTensorHeader(absl::string_view name,
                                  const Tensor& tensor) {
  v1::TensorHeader header;
  header.set_element_type(static_cast<v1::ElementType>(tensor.type()));
  for (const int64_t dim : tensor.dims()) header.add_dims(dim);
  header.set_name(std::string(name));
  return header;
}

absl::StatusOr<size_t> CheckedTensorBytes(const v1::TensorHeader& header) {
  if (header.element_type() == v1::ELEMENT_TYPE_UNSPECIFIED ||
      !v1::ElementType_IsValid(header.element_type())) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", header.name(), "\" has element_type ",
                     header.element_type(), ", which is none"));
  }
  if (header.dims_size() > kMaxTensorRank) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor \"", header.name(), "\" has ", header.dims_size(),
                     " dimensions, at most ", kMaxTensorRank, " are allowed"));
  }
  // Nonzero sizes are multiplied even if another one is zero: then later code
  // can multiply the sizes in any order without overflow.
  size_t bytes = ElementSize(static_cast<ElementType>(header.element_type()));
  bool none = false;
  for (const int64_t dim : header.dims()) {
    if (dim < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor \"", header.name(), "\" has a dimension of ", dim));
    }
    if (dim == 0) none = true;
    if (dim > 0 &&
        __builtin_mul_overflow(bytes, static_cast<size_t>(dim), &bytes)) {
      bytes = SIZE_MAX;
    }
    if (bytes > size_t{INT64_MAX}) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor \"", header.name(), "\" has more bytes than memory"));
    }
  }
  return none ? 0 : bytes;
}

size_t PayloadBytes(const std::vector<Tensor>& tensors) {
  size_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes = AlignUp(bytes) + tensor.bytes();
  return bytes;
}

grpc::ByteBuffer EncodeParts(const google::protobuf::MessageLite& header,
                             const std::vector<Tensor>& tensors) {
  const size_t header_bytes = header.ByteSizeLong();
  const size_t payload_bytes = PayloadBytes(tensors);
  CHECK(header_bytes <= size_t{INT32_MAX});
  CHECK(payload_bytes <= size_t{INT32_MAX});

  // Room for two tags and two lengths of at most 5 bytes each.
  std::string head(header_bytes + 20, '\0');
  auto* const begin = reinterpret_cast<uint8_t*>(head.data());
  uint8_t* end = CodedOutputStream::WriteTagToArray(Tag(kHeaderField), begin);
  end = CodedOutputStream::WriteVarint32ToArray(
      static_cast<uint32_t>(header_bytes), end);
  end = header.SerializeWithCachedSizesToArray(end);
  if (payload_bytes > 0) {
    end = CodedOutputStream::WriteTagToArray(Tag(kPayloadField), end);
    end = CodedOutputStream::WriteVarint32ToArray(
        static_cast<uint32_t>(payload_bytes), end);
  }
  head.resize(end - begin);

  std::vector<grpc::Slice> slices;
  slices.reserve(1 + 2 * tensors.size());
  slices.emplace_back(head);
  size_t offset = 0;
  for (const Tensor& tensor : tensors) {
    if (const size_t padding = AlignUp(offset) - offset; padding > 0) {
      slices.emplace_back(kPayloadPadding, padding, grpc::Slice::STATIC_SLICE);
      offset += padding;
    }
    if (tensor.bytes() > 0) slices.push_back(ReferTo(tensor));
    offset += tensor.bytes();
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

absl::Status CheckFrameBytes(size_t bytes, const FrameLimits& limits) {
  if (bytes <= limits.max_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "a frame may have at most ", limits.max_bytes, " bytes, got ", bytes));
}

absl::Status CheckHeaderBytes(size_t bytes, const FrameLimits& limits) {
  if (bytes <= limits.max_header_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("a frame's header may have at most ",
                   limits.max_header_bytes, " bytes, got ", bytes));
}

absl::StatusOr<std::vector<size_t>> CheckedTensorPlaces(
    const TensorHeaders& headers, size_t payload_bytes,
    const FrameLimits& limits) {
  if (headers.size() > limits.max_tensors) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a frame may have at most ", limits.max_tensors,
                     " tensors, got ", headers.size()));
  }
  std::vector<size_t> places;
  places.reserve(headers.size());
  size_t expected = 0;
  for (const v1::TensorHeader& tensor : headers) {
    ASSIGN_OR_RETURN(const size_t bytes, CheckedTensorBytes(tensor));
    places.push_back(AlignUp(expected));
    if (places.back() > payload_bytes ||
        bytes > payload_bytes - places.back()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the payload has ", payload_bytes, " bytes, but tensor \"",
          tensor.name(), "\" has ", bytes, " from byte ", places.back()));
    }
    expected = places.back() + bytes;
  }
  if (expected != payload_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the payload has ", payload_bytes,
                     " bytes, its tensors have ", expected));
  }
  return places;
}

std::vector<Tensor> WrapTensors(const TensorHeaders& headers,
                                const std::vector<size_t>& places,
                                const std::shared_ptr<std::byte>& payload) {
  std::vector<Tensor> tensors;
  tensors.reserve(headers.size());
  for (int i = 0; i < headers.size(); ++i) {
    const v1::TensorHeader& tensor = headers[i];
    tensors.push_back(
        Tensor::Wrap(static_cast<ElementType>(tensor.element_type()),
                     Dims(tensor.dims().begin(), tensor.dims().end()),
                     payload.get() + places[i], payload));
  }
  return tensors;
}

absl::StatusOr<std::vector<Tensor>> DecodeParts(
    grpc::ByteBuffer buffer, const FrameLimits& limits,
    google::protobuf::MessageLite& header,
    const TensorHeaders& tensor_headers) {
  RETURN_IF_ERROR(CheckFrameBytes(buffer.Length(), limits));
  ASSIGN_OR_RETURN(const Extent payload, ParseHeader(buffer, limits, header));
  // Memory is allocated only after the header has been found to match the bytes
  // received.
  ASSIGN_OR_RETURN(const std::vector<size_t> places,
                   CheckedTensorPlaces(tensor_headers, payload.size, limits));
  ASSIGN_OR_RETURN(const std::shared_ptr<std::byte> memory,
                   TryAllocateBuffer(payload.size));
  RETURN_IF_ERROR(CopyPayload(buffer, payload, memory.get()));
  return WrapTensors(tensor_headers, places, memory);
}

}  // namespace gshard
