// Calls of an expert worker's segments, valid except where the bytes say
// otherwise: the forward and backward halves of a training step, of several
// runs, in any order, with tensors of other types, shapes, names and contents.

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "services/graph/text.h"
#include "services/moe/graph_ops.h"
#include "services/segments/call_segment.h"
#include "services/segments/segment_host.h"
#include "tests/fuzz/fuzzer.h"

namespace gshard {
namespace {

constexpr int64_t kExperts = 3;
constexpr int64_t kWidth = 4;
constexpr int64_t kInner = 2;

constexpr char kForward[] =
    "program \"train/1\" {\n"
    "  %0 = input() {name=\"call/v1\", shape=[R, 4], type=\"f32\"} "
    ": f32[R, 4]\n"
    "  %1 = parameter() {name=\"wi\", shape=[E, 4, 2]} : f32[E, 4, 2]\n"
    "  %2 = input() {name=\"call/v2\", shape=[E], type=\"i32\"} : i32[E]\n"
    "  %3 = ragged_dot(%0, %1, %2) : f32[R, 2]\n"
    "  %4 = relu(%3) : f32[R, 2]\n"
    "  %5 = parameter() {name=\"wo\", shape=[E, 2, 4]} : f32[E, 2, 4]\n"
    "  %6 = ragged_dot(%4, %5, %2) : f32[R, 4]\n"
    "  output \"reply/v6\" = %6\n"
    "  output \"save/v1\" = %0\n"
    "  output \"save/v2\" = %2\n"
    "  output \"save/v4\" = %4\n"
    "}\n";
constexpr char kBackward[] =
    "program \"train/2\" {\n"
    "  %0 = input() {name=\"call/v9\", shape=[R, 4], type=\"f32\"} "
    ": f32[R, 4]\n"
    "  %1 = parameter() {name=\"wo\", shape=[E, 2, 4]} : f32[E, 2, 4]\n"
    "  %2 = input() {name=\"saved/v2\", shape=[E], type=\"i32\"} : i32[E]\n"
    "  %3 = ragged_dot_rows_gradient(%0, %1, %2) : f32[R, 2]\n"
    "  %4 = input() {name=\"saved/v4\", shape=[R, 2], type=\"f32\"} "
    ": f32[R, 2]\n"
    "  %5 = ragged_dot_weights_gradient(%4, %0, %2) : f32[E, 2, 4]\n"
    "  %6 = relu_gradient(%4, %3) : f32[R, 2]\n"
    "  %7 = parameter() {name=\"wi\", shape=[E, 4, 2]} : f32[E, 4, 2]\n"
    "  %8 = ragged_dot_rows_gradient(%6, %7, %2) : f32[R, 4]\n"
    "  %9 = input() {name=\"saved/v1\", shape=[R, 4], type=\"f32\"} "
    ": f32[R, 4]\n"
    "  %10 = ragged_dot_weights_gradient(%9, %6, %2) : f32[E, 4, 2]\n"
    "  output \"gradient/wi\" = %10\n"
    "  output \"gradient/wo\" = %5\n"
    "  output \"reply/v8\" = %8\n"
    "}\n";

// Hands out the bytes one by one, then zeros.
class ByteSource {
 public:
  ByteSource(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t Take() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// Reads every byte, so that AddressSanitizer checks its location.
void Read(const Tensor& tensor) {
  uint64_t sum = 0;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(tensor.raw());
  for (size_t i = 0; i < tensor.bytes(); ++i) sum += bytes[i];
  asm volatile("" : : "r"(sum));
}

// A tensor of some type and shape, below 2^12 elements.
Tensor OddTensor(ByteSource& bytes) {
  const auto type = static_cast<ElementType>(1 + bytes.Take() % 6);
  Dims dims;
  for (int rank = bytes.Take() % 4; rank > 0; --rank) {
    dims.push_back(bytes.Take() % 16);
  }
  return Tensor::Zeros(type, dims);
}

struct Call {
  std::string segment;
  std::string run;
  int64_t rows = 0;
  TensorMap inputs;
};

Call BuildCall(ByteSource& bytes) {
  const bool forward = bytes.Take() % 2 == 0;
  Call call;
  call.segment = forward ? "train/1" : "train/2";
  call.run = std::string(1, static_cast<char>('a' + bytes.Take() % 3));
  call.rows = bytes.Take() % 16;
  call.inputs[forward ? "call/v1" : "call/v9"] =
      Tensor::Zeros(ElementType::kFloat32, {call.rows, kWidth});
  if (forward) {
    std::vector<int32_t> sizes(kExperts, 0);
    for (int64_t row = 0; row < call.rows; ++row) {
      ++sizes[bytes.Take() % kExperts];
    }
    call.inputs["call/v2"] = Tensor::Ints({kExperts}, sizes);
  }
  return call;
}

// Makes the call invalid, in most cases.
void Spoil(ByteSource& bytes, Call& call) {
  const auto some =
      std::next(call.inputs.begin(), bytes.Take() % call.inputs.size());
  switch (bytes.Take() % 8) {
    case 0:
      some->second = OddTensor(bytes);
      return;
    case 1: {
      const Tensor tensor = some->second;
      call.inputs.erase(some);
      const std::array names = {"call/v1", "call/v9", "saved/v1", ""};
      call.inputs[names[bytes.Take() % names.size()]] = tensor;
      return;
    }
    case 2:
      call.inputs["more"] = OddTensor(bytes);
      return;
    case 3:
      call.segment = "train/3";
      return;
    case 4:
      call.inputs.erase(some);
      return;
    default:
      // Group sizes that are negative, huge, or sum to another number of rows.
      const auto sizes = call.inputs.find("call/v2");
      if (sizes == call.inputs.end()) return;
      const std::array odd = {-1, 1 << 30, -(1 << 30), 1};
      const int32_t more = odd[bytes.Take() % odd.size()];
      sizes->second.i32()[bytes.Take() % kExperts] += more;
      if (bytes.Take() % 2 == 0) {
        sizes->second.i32()[bytes.Take() % kExperts] -= more;
      }
  }
}

void RunCalls(ByteSource bytes) {
  auto forward = ParseProgram(kForward);
  auto backward = ParseProgram(kBackward);
  CHECK(forward.ok() && backward.ok());
  SegmentHost host(
      {{"train/1", *std::move(forward)}, {"train/2", *std::move(backward)}});
  const TensorMap parameters = {
      {"wi", Tensor::Zeros(ElementType::kFloat32, {kExperts, kWidth, kInner})},
      {"wo", Tensor::Zeros(ElementType::kFloat32, {kExperts, kInner, kWidth})}};
  for (int calls = 0; calls < 16 && !bytes.empty(); ++calls) {
    Call call = BuildCall(bytes);
    const uint8_t what = bytes.Take();
    if (what % 16 == 0) host.EndRun(call.run);
    if (what % 2 == 1) Spoil(bytes, call);
    const auto result =
        host.Run(call.segment, call.run, std::move(call.inputs), parameters);
    if (!Accepted(result.status())) continue;
    CHECK(result->replies.size() == 1);
    CHECK(result->replies[0].dims() == Dims({call.rows, kWidth}));
    Read(result->replies[0]);
    for (const auto& [name, gradient] : result->gradients) {
      CHECK(gradient.dims() == parameters.at(name).dims());
      Read(gradient);
    }
  }
}

}  // namespace
}  // namespace gshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  [[maybe_unused]] static const bool registered = [] {
    gshard::RegisterMoeOps();
    gshard::RegisterShardingOps();
    return true;
  }();
  gshard::RunCalls(gshard::ByteSource(data, size));
  return 0;
}
