#include "services/ops/einsum.h"

#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/parallel.h"
#include "services/base/status_macros.h"
#include "services/ops/int8_panel.h"
#include "services/ops/matmul.h"
#include "services/ops/panel.h"
#include "services/ops/transpose.h"

namespace gshard {
namespace {

bool Has(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}

EinsumSpec Classify(std::string a, std::string b, std::string result) {
  EinsumSpec spec{
      std::move(a), std::move(b), std::move(result), "", "", "", ""};
  for (const char letter : spec.result) {
    const bool in_a = Has(spec.a, letter), in_b = Has(spec.b, letter);
    (in_a && in_b ? spec.batch : in_a ? spec.rows : spec.columns) += letter;
  }
  for (const char letter : spec.a) {
    if (!Has(spec.result, letter)) spec.contracted += letter;
  }
  return spec;
}

absl::Status CheckLetters(absl::string_view text, const std::string& letters) {
  for (size_t i = 0; i < letters.size(); ++i) {
    if (!absl::ascii_isalpha(letters[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("einsum '", text, "': expected letters, got '",
                       letters.substr(i, 1), "'"));
    }
    if (letters.find(letters[i], i + 1) != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("einsum '", text, "': letter '", letters.substr(i, 1),
                       "' is repeated in '", letters, "'"));
    }
  }
  return absl::OkStatus();
}

// How to bring an einsum into the form of a matrix product. It depends on the
// letters only: sizes must not change how a row is computed.
struct Plan {
  bool swap = false;       // b's letters are the rows of the product
  std::string contracted;  // the order of the contracted letters
  int num_transposes = 0;
};

Plan MakePlan(const EinsumSpec& spec) {
  std::string order_of_b;
  for (const char letter : spec.b) {
    if (Has(spec.contracted, letter)) order_of_b += letter;
  }
  const auto is_matrix = [&](const std::string& letters,
                             const std::string& free,
                             const std::string& contracted) {
    return letters == spec.batch + free + contracted ||
           letters == spec.batch + contracted + free;
  };
  Plan best;
  best.num_transposes = 4;
  for (const bool swap : {false, true}) {
    for (const std::string& contracted : {spec.contracted, order_of_b}) {
      const std::string& first = swap ? spec.columns : spec.rows;
      const std::string& second = swap ? spec.rows : spec.columns;
      const int num_transposes = !is_matrix(spec.a, spec.rows, contracted) +
                                 !is_matrix(spec.b, spec.columns, contracted) +
                                 (spec.result != spec.batch + first + second);
      if (num_transposes < best.num_transposes) {
        best = {swap, contracted, num_transposes};
      }
    }
  }
  return best;
}

Tensor Reorder(const Tensor& x, const std::string& from,
               const std::string& to) {
  std::vector<int> permutation;
  for (const char letter : to) {
    permutation.push_back(static_cast<int>(from.find(letter)));
  }
  return Transpose(x, permutation);
}

// An operand as a batch of [free, contracted] matrices, maybe each transposed.
struct Operand {
  Tensor tensor;
  bool transposed;
};

Operand AsMatrices(const Tensor& x, const std::string& letters,
                   const std::string& batch, const std::string& free,
                   const std::string& contracted) {
  if (letters == batch + free + contracted) return {x, false};
  if (letters == batch + contracted + free) return {x, true};
  return {Reorder(x, letters, batch + free + contracted), false};
}

int64_t SizeOf(const Dims& dims, const std::string& letters,
               const std::string& some) {
  int64_t size = 1;
  for (const char letter : some) size *= dims[letters.find(letter)];
  return size;
}

}  // namespace

std::string EinsumSpec::ToString() const {
  return absl::StrCat(a, ",", b, "->", result);
}

absl::StatusOr<EinsumSpec> ParseEinsum(absl::string_view text) {
  const size_t comma = text.find(',');
  const size_t arrow = text.find("->");
  if (comma == absl::string_view::npos || arrow == absl::string_view::npos ||
      arrow < comma) {
    return absl::InvalidArgumentError(absl::StrCat(
        "einsum: expected 'letters,letters->letters', got '", text, "'"));
  }
  const std::string a(text.substr(0, comma));
  const std::string b(text.substr(comma + 1, arrow - comma - 1));
  const std::string result(text.substr(arrow + 2));
  for (const std::string& letters : {a, b, result}) {
    RETURN_IF_ERROR(CheckLetters(text, letters));
  }
  for (const char letter : a + b + result) {
    const int count = Has(a, letter) + Has(b, letter) + Has(result, letter);
    if (count < 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          "einsum '", text, "': letter '", std::string(1, letter),
          "' must be in at least two of the three tensors, got it in one"));
    }
  }
  return Classify(a, b, result);
}

EinsumSpec GradientOfA(const EinsumSpec& spec) {
  return Classify(spec.result, spec.b, spec.a);
}

EinsumSpec GradientOfB(const EinsumSpec& spec) {
  return Classify(spec.a, spec.result, spec.b);
}

MatrixOfB MatrixOf(const EinsumSpec& spec) {
  const Plan plan = MakePlan(spec);
  const bool transposed = spec.b == spec.columns + plan.contracted;
  const bool as_stored =
      !plan.swap && spec.batch.empty() &&
      spec.a == spec.rows + plan.contracted &&
      (transposed || spec.b == plan.contracted + spec.columns);
  if (!as_stored) return {};
  return {.row_letters = static_cast<int>(plan.contracted.size()),
          .transposed = transposed};
}

Tensor Einsum(const EinsumSpec& spec, const Tensor& a, const Tensor& b) {
  CHECK(a.rank() == static_cast<int>(spec.a.size()));
  CHECK(b.rank() == static_cast<int>(spec.b.size()));
  const bool is_int8 = b.type() == ElementType::kInt8;
  CHECK(a.type() == (is_int8 ? ElementType::kFloat32 : b.type()));
  for (size_t i = 0; i < spec.a.size(); ++i) {
    const size_t j = spec.b.find(spec.a[i]);
    CHECK(j == std::string::npos || a.dim(i) == b.dim(j));
  }

  const Plan plan = MakePlan(spec);
  Operand first = AsMatrices(a, spec.a, spec.batch, spec.rows, plan.contracted);
  Operand second =
      AsMatrices(b, spec.b, spec.batch, spec.columns, plan.contracted);
  MatmulShape shape{.m = SizeOf(a.dims(), spec.a, spec.rows),
                    .n = SizeOf(b.dims(), spec.b, spec.columns),
                    .k = SizeOf(a.dims(), spec.a, plan.contracted)};
  if (plan.swap) {
    std::swap(first, second);
    std::swap(shape.m, shape.n);
  }
  // Matmul wants its second operand as [contracted, free].
  shape.transpose_a = first.transposed;
  shape.transpose_b = !second.transposed;
  shape.b_in_panels = b.panel_rows() > 0;
  const MatrixOfB matrix = MatrixOf(spec);
  CHECK(!shape.b_in_panels ||
        (matrix.row_letters > 0 && b.panel_rows() == shape.k));

  const std::string order = plan.swap ? spec.batch + spec.columns + spec.rows
                                      : spec.batch + spec.rows + spec.columns;
  Dims dims;
  for (const char letter : order) {
    dims.push_back(Has(spec.a, letter) ? a.dim(spec.a.find(letter))
                                       : b.dim(spec.b.find(letter)));
  }
  Tensor result(ElementType::kFloat32, dims);
  const int64_t batch = SizeOf(a.dims(), spec.a, spec.batch);
  if (is_int8) {
    const Int8Rows rows(a.f32(), shape.m, shape.k);
    const MatmulShape product{.m = shape.m, .n = shape.n, .k = shape.k};
    ParallelFor(MatmulTiles(product), [&](int64_t tile) {
      MatmulTile(product, tile, rows, 0, b.panels<int8_t>(), result.f32());
    });
  } else if (a.type() == ElementType::kBFloat16) {
    BatchMatmul(shape, batch, std::as_const(first.tensor).data<BFloat16>(),
                ElementsOf<BFloat16>(second.tensor), result.f32());
  } else {
    BatchMatmul(shape, batch, std::as_const(first.tensor).f32(),
                ElementsOf<float>(second.tensor), result.f32());
  }
  return order == spec.result ? result : Reorder(result, order, spec.result);
}

}  // namespace gshard
