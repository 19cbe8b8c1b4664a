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
#include "services/ops/panel_layout.h"
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

// The layout in which a product reads an operand: as it is stored, if that is a
// batch of [lines, along] matrices or of their transposes, else [lines, along].
EinsumPlan::Operand OperandOf(const std::string& letters,
                              const std::string& batch,
                              const std::string& lines,
                              const std::string& along) {
  const std::string transposed = batch + along + lines;
  if (letters == transposed && letters != batch + lines + along) {
    return {transposed, true};
  }
  return {batch + lines + along, false};
}

EinsumPlan MakePlan(const EinsumSpec& spec, bool swap,
                    const std::string& contracted) {
  EinsumPlan plan{.swap = swap,
                  .first = {},
                  .second = {},
                  .batch = spec.batch,
                  .rows = swap ? spec.columns : spec.rows,
                  .columns = swap ? spec.rows : spec.columns,
                  .contracted = contracted};
  const std::string& a = swap ? spec.b : spec.a;
  const std::string& b = swap ? spec.a : spec.b;
  plan.first = OperandOf(a, plan.batch, plan.rows, contracted);
  plan.second = OperandOf(b, plan.batch, plan.columns, contracted);
  // For the second operand, [contracted, columns] is the untransposed layout.
  plan.second.transposed = !plan.second.transposed;
  return plan;
}

int NumTransposes(const EinsumSpec& spec, const EinsumPlan& plan) {
  return (plan.first.letters != (plan.swap ? spec.b : spec.a)) +
         (plan.second.letters != (plan.swap ? spec.a : spec.b)) +
         (plan.result() != spec.result);
}

Tensor Reorder(const Tensor& x, const std::string& from,
               const std::string& to) {
  std::vector<int> permutation;
  for (const char letter : to) {
    permutation.push_back(static_cast<int>(from.find(letter)));
  }
  return Transpose(x, permutation);
}

int64_t SizeOf(const EinsumSpec& spec, const Tensor& a, const Tensor& b,
               char letter) {
  const size_t of_a = spec.a.find(letter);
  return of_a != std::string::npos ? a.dim(of_a) : b.dim(spec.b.find(letter));
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

EinsumPlan PlanEinsum(const EinsumSpec& spec) {
  std::string order_of_b;
  for (const char letter : spec.b) {
    if (Has(spec.contracted, letter)) order_of_b += letter;
  }
  EinsumPlan best = MakePlan(spec, false, spec.contracted);
  for (const bool swap : {false, true}) {
    for (const std::string& contracted : {spec.contracted, order_of_b}) {
      EinsumPlan plan = MakePlan(spec, swap, contracted);
      if (NumTransposes(spec, plan) < NumTransposes(spec, best)) {
        best = std::move(plan);
      }
    }
  }
  return best;
}

MatrixOfB MatrixOf(const EinsumSpec& spec) {
  const EinsumPlan plan = PlanEinsum(spec);
  const bool as_stored =
      !plan.swap && spec.batch.empty() && spec.a == plan.first.letters &&
      !plan.first.transposed && spec.b == plan.second.letters;
  if (!as_stored) return {};
  return {.row_letters = static_cast<int>(plan.contracted.size()),
          .transposed = plan.second.transposed};
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

  const EinsumPlan plan = PlanEinsum(spec);
  const auto size_of = [&](const std::string& letters) {
    int64_t size = 1;
    for (const char letter : letters) size *= SizeOf(spec, a, b, letter);
    return size;
  };
  const MatmulShape shape{.m = size_of(plan.rows),
                          .n = size_of(plan.columns),
                          .k = size_of(plan.contracted),
                          .transpose_a = plan.first.transposed,
                          .transpose_b = plan.second.transposed,
                          .b_in_panels = b.panel_rows() > 0};
  const auto as_planned = [](const Tensor& x, const std::string& letters,
                             const EinsumPlan::Operand& wanted) {
    return letters == wanted.letters ? x : Reorder(x, letters, wanted.letters);
  };
  const Tensor first = plan.swap ? as_planned(b, spec.b, plan.first)
                                 : as_planned(a, spec.a, plan.first);
  const Tensor second = plan.swap ? as_planned(a, spec.a, plan.second)
                                  : as_planned(b, spec.b, plan.second);
  CHECK(!shape.b_in_panels ||
        (MatrixOf(spec).row_letters > 0 && b.panel_rows() == shape.k));

  Dims dims;
  for (const char letter : plan.result()) {
    dims.push_back(SizeOf(spec, a, b, letter));
  }
  Tensor result(ElementType::kFloat32, dims);
  const int64_t batch = size_of(plan.batch);
  if (is_int8) {
    const Int8Rows rows(a.f32(), shape.m, shape.k);
    const MatmulShape product{.m = shape.m, .n = shape.n, .k = shape.k};
    ParallelFor(MatmulTiles(product), [&](int64_t tile) {
      MatmulTile(product, tile, rows, 0, b.panels<int8_t>(), result.f32());
    });
  } else if (a.type() == ElementType::kBFloat16) {
    BatchMatmul(shape, batch, first.data<BFloat16>(),
                ElementsOf<BFloat16>(second), result.f32());
  } else {
    BatchMatmul(shape, batch, first.f32(), ElementsOf<float>(second),
                result.f32());
  }
  return plan.result() == spec.result
             ? result
             : Reorder(result, plan.result(), spec.result);
}

}  // namespace gshard
