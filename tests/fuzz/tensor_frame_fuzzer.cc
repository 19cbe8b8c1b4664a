// Frames of tensors, as routers, workers and the coordinator exchange them, and
// pieces of tensors. The first byte is the size of the message's slices.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "services/rpc/wire/tensor_frame.h"
#include "services/rpc/wire/tensor_pieces.h"
#include "tests/fuzz/fuzzer.h"
#include "tests/fuzz/message_mutator.h"

namespace gshard {
namespace {

// Where the next tensor of a payload begins.
size_t AlignUp(size_t bytes) {
  return (bytes + kPayloadAlignment - 1) / kPayloadAlignment *
         kPayloadAlignment;
}

constexpr FrameLimits kLimits = {
    .max_bytes = 1 << 16, .max_header_bytes = 1 << 12, .max_tensors = 16};

grpc::ByteBuffer InSlices(absl::string_view bytes, size_t most) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += most) {
    const absl::string_view part = bytes.substr(at, most);
    slices.emplace_back(part.data(), part.size());
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

// Reads every byte, so that AddressSanitizer checks its location.
uint64_t Sum(const Tensor& tensor) {
  uint64_t sum = 0;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(tensor.raw());
  for (size_t i = 0; i < tensor.bytes(); ++i) sum += bytes[i];
  return sum;
}

// Encodes an accepted frame again and checks that it decodes unchanged.
template <typename Header>
void Resend(const Frame<Header>& frame) {
  auto again = DecodeFrame<Header>(EncodeFrame(frame));
  CHECK(again.ok());
  CHECK(again->header.SerializeAsString() == frame.header.SerializeAsString());
  CHECK(again->tensors.size() == frame.tensors.size());
  for (size_t i = 0; i < frame.tensors.size(); ++i) {
    CHECK(again->tensors[i].type() == frame.tensors[i].type());
    CHECK(again->tensors[i].dims() == frame.tensors[i].dims());
    CHECK(Sum(again->tensors[i]) == Sum(frame.tensors[i]));
  }
}

// Collects "w" [4, 3], whole or in pieces, and "b" [2].
void Collect(TensorFrame frame) {
  TensorCollector collector(
      {{"w", {.type = ElementType::kFloat32, .dims = {4, 3}}},
       {"b", {.type = ElementType::kFloat32, .dims = {2}}}});
  if (!Accepted(collector.Add(frame))) return;
  if (!Accepted(collector.Add(std::move(frame)))) return;
  const auto tensors = collector.Take();
  if (!Accepted(tensors.status())) return;
  for (const auto& [name, tensor] : *tensors) (void)Sum(tensor);
}

void Decode(absl::string_view bytes, size_t slice) {
  auto expert =
      DecodeFrame<v1::ExpertFrameHeader>(InSlices(bytes, slice), kLimits);
  if (Accepted(expert.status())) Resend(*expert);
  auto tensors =
      DecodeFrame<v1::TensorFrameHeader>(InSlices(bytes, slice), kLimits);
  if (Accepted(tensors.status())) {
    Resend(*tensors);
    Collect(*std::move(tensors));
  }
}

}  // namespace
}  // namespace gshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  gshard::Decode(gshard::Bytes(data + 1, size - 1),
                 std::max<size_t>(1, data[0]));
  return 0;
}

// Mutates the header, and in half of the cases resizes the payload to match, so
// that some payloads contradict their header and some agree with it.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                          size_t max_size, unsigned seed) {
  gshard::FuzzRandom random(seed);
  gshard::v1::ExpertFrame frame;
  if (size == 0 ||
      !frame.ParseFromArray(data + 1, static_cast<int>(size - 1))) {
    return gshard::MutateBytes(random, data, size, max_size);
  }
  gshard::MutateMessage(random, frame.mutable_header());
  size_t payload = 0;
  for (const auto& tensor : frame.header().tensors()) {
    const auto bytes = gshard::CheckedTensorBytes(tensor);
    if (!bytes.ok() || *bytes > max_size) break;
    payload = gshard::AlignUp(payload) + *bytes;
  }
  if (random() % 2 == 0 && payload < max_size) {
    frame.mutable_payload()->resize(payload);
  }
  if (frame.ByteSizeLong() + 1 > max_size) {
    return gshard::MutateBytes(random, data, size, max_size);
  }
  frame.SerializeToArray(data + 1, static_cast<int>(frame.ByteSizeLong()));
  return frame.ByteSizeLong() + 1;
}
