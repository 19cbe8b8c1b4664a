// The memory layouts in which a program takes its parameters.
//
// Weights used only in matrix products, always as the same matrices, may be
// packed into panels (services/ops/panel.h) when they are read: the products
// are then bound by reading them, not by packing. They may be stored by columns
// of their matrices, and be used in lookups besides. All others are row-major,
// including those used only in lookups. int8 weights are always in panels
// (int8_panel.h).

#ifndef SERVICES_GRAPH_WEIGHT_FORMS_H_
#define SERVICES_GRAPH_WEIGHT_FORMS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "services/graph/program.h"
#include "services/tensor/tensor.h"

namespace gshard {

struct WeightForm {
  // For a parameter in panels: its first dims enumerate matrices, the next ones
  // multiply to their rows, and the rest to their columns; if `transposed`, the
  // next ones to columns and the last ones to rows.
  int batch_dims = 0;
  int row_dims = 0;  // 0 if row-major
  bool transposed = false;
  ElementType type = ElementType::kBFloat16;
  // Row-major, but also accepted in panels if another program multiplies by it.
  bool only_looked_up = false;

  bool in_panels() const { return row_dims > 0 && !only_looked_up; }
  // Number of matrices, and rows of each, of a parameter with these dims.
  // REQUIRES: the number of dims matches.
  int64_t MatricesOf(const Dims& dims) const;
  int64_t RowsOf(const Dims& dims) const;

  bool operator==(const WeightForm&) const = default;
};

// By name.
using WeightForms = std::map<std::string, WeightForm>;

// The forms of all parameters of the program.
WeightForms WeightFormsOf(const Program& program);

// Adds the forms of another program that uses the same parameters: a common
// parameter stays in panels if both programs take the same ones.
void MergeWeightForms(const WeightForms& other, WeightForms& into);

// A tensor for an int8 parameter with these dims, contents undefined. Errors:
// InvalidArgument if the form is not panels, or if matrices have 0 rows or more
// than kMaxInt8Depth.
absl::StatusOr<Tensor> NewInt8Weight(const WeightForm& form, const Dims& dims);

// Quantizes `value`, f32 and row-major, into that form. Errors: as above.
absl::StatusOr<Tensor> RoundToInt8(const Tensor& value, const WeightForm& form);

// Bytes of one expert of a parameter of that type with dims [E, ...].
int64_t BytesOfExpert(ElementType type, const Dims& dims);

}  // namespace gshard

#endif  // SERVICES_GRAPH_WEIGHT_FORMS_H_
