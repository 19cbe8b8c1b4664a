// windowed_einsum: the loop of GShard (arXiv 2006.16668, section 3.3.2, after
// Cannon's algorithm): as many products as there are devices, a part of one
// operand passed on between them.

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/collectives/collectives.h"
#include "services/ops/concat.h"
#include "services/ops/einsum.h"
#include "services/ops/elementwise.h"
#include "services/partition/ops/part_ops.h"
#include "services/partition/ops/part_position.h"

namespace gshard {
namespace {

// The letter's dimension in the moving (first) operand, in the other one and in
// the result; -1 where absent.
struct Window {
  EinsumSpec spec;
  int moving_dim = -1;
  int other_dim = -1;
  int result_dim = -1;
};

int DimOf(const std::string& letters, char letter) {
  const size_t found = letters.find(letter);
  return found == std::string::npos ? -1 : static_cast<int>(found);
}

absl::StatusOr<Window> ParseWindow(const Attributes& attributes) {
  for (const char* name : {"equation", "axes", "letter"}) {
    RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, name));
  }
  RETURN_IF_ERROR(ExpectParts(attributes));
  Window window;
  ASSIGN_OR_RETURN(window.spec,
                   ParseEinsum(StringAttribute(attributes, "equation")));
  const std::string& letter = StringAttribute(attributes, "letter");
  if (letter.size() == 1) {
    window.moving_dim = DimOf(window.spec.a, letter[0]);
    window.other_dim = DimOf(window.spec.b, letter[0]);
    window.result_dim = DimOf(window.spec.result, letter[0]);
  }
  if (window.moving_dim < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'letter' must be one of the first operand in '",
        StringAttribute(attributes, "equation"), "', got '", letter, "'"));
  }
  return window;
}

ResultTypes InferWindowedEinsum(absl::Span<const ValueType> operands,
                                const Attributes& attributes) {
  ASSIGN_OR_RETURN(const Window window, ParseWindow(attributes));
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "whole"));
  const Shape& whole = ShapeAttribute(attributes, "whole");
  if (whole.size() != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'whole' must be one dimension, got ", ShapeToString(whole)));
  }
  std::vector<ValueType> joined(operands.begin(), operands.end());
  RETURN_IF_ERROR(ExpectRank(operands, 0, window.spec.a.size()));
  joined[0].shape[window.moving_dim] = whole[0];
  return FindOp("einsum")->infer(joined,
                                 {{"equation", window.spec.ToString()}});
}

// Puts `slice` at index `begin` of dimension `dim` of `x`.
void Write(const Tensor& slice, int dim, int64_t begin, Tensor& x) {
  int64_t outer = 1, inner = 1;
  for (int d = 0; d < dim; ++d) outer *= x.dim(d);
  for (int d = dim + 1; d < x.rank(); ++d) inner *= x.dim(d);
  const int64_t row = slice.dim(dim) * inner;
  for (int64_t o = 0; o < outer; ++o) {
    std::memcpy(x.f32() + (o * x.dim(dim) + begin) * inner,
                slice.f32() + o * row, row * sizeof(float));
  }
}

absl::Status RunEinsum(KernelContext& c) {
  ASSIGN_OR_RETURN(const Window window, ParseWindow(c.attributes()));
  ASSIGN_OR_RETURN(DeviceGroups* const devices, DevicesOf(c));
  ASSIGN_OR_RETURN(Communicator* const comm,
                   devices->Along(StringAttribute(c.attributes(), "axes")));
  const int n = comm->size();
  if (n != IntAttribute(c.attributes(), "parts")) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the program is for ", IntAttribute(c.attributes(), "parts"),
        " devices, there are ", n));
  }
  Tensor part = c.Take(0);
  const Tensor& other = c.operands[1];
  const int64_t step = part.dim(window.moving_dim);
  const Dim& whole = ShapeAttribute(c.attributes(), "whole")[0];
  const int64_t size = whole.is_static() ? whole.size() : step * n;
  // From the operands: nothing else may define the letter's size.
  Dims dims;
  for (const char letter : window.spec.result) {
    const int of_part = DimOf(window.spec.a, letter);
    dims.push_back(of_part == window.moving_dim ? size
                   : of_part >= 0               ? part.dim(of_part)
                                  : other.dim(DimOf(window.spec.b, letter)));
  }
  Tensor result = Tensor::Zeros(ElementType::kFloat32, dims);
  std::vector<int> from_next(n);
  for (int r = 0; r < n; ++r) from_next[r] = (r + 1) % n;

  for (int i = 0; i < n; ++i) {
    // Part number (rank + i) mod n, without padding.
    const int64_t begin = (comm->rank() + i) % n * step;
    const int64_t end = std::min(begin + step, size);
    if (begin < end) {
      const Tensor here = Slice(part, window.moving_dim, 0, end - begin);
      const Tensor there = window.other_dim < 0
                               ? other
                               : Slice(other, window.other_dim, begin, end);
      Tensor product = Einsum(window.spec, here, there);
      if (window.result_dim >= 0) {
        Write(product, window.result_dim, begin, result);
      } else {
        result = Add(std::move(result), std::move(product));
      }
    }
    if (i + 1 < n) {
      ASSIGN_OR_RETURN(part, Permute(*comm, part, from_next));
    }
  }
  c.results[0] = std::move(result);
  return absl::OkStatus();
}

}  // namespace

std::vector<OpDef> WindowedEinsumOps() {
  return {{.name = "windowed_einsum",
           .infer = InferWindowedEinsum,
           .kernel = RunEinsum}};
}

}  // namespace gshard
