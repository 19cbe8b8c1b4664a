// In which form a program takes its parameters.
//
// Weights that are only ever multiplied by, always as the same matrices, may
// lie in panels (services/ops/panel.h) from the time they are read: the
// products are then bound by reading them, not by packing them. They may be
// stored as the columns of their matrices, and be looked up as such besides.
// All others are row-major, those that are only looked up among them. Weights
// of int8 are always in panels (int8_panel.h).

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
  // Of a parameter in panels: its first dims number matrices, the next ones
  // multiply to their rows, and the others to their columns; or, if
  // `transposed`, the next ones to columns and the last ones to rows.
  int batch_dims = 0;
  int row_dims = 0;  // 0 if row-major
  bool transposed = false;
  ElementType type = ElementType::kBFloat16;
  // Row-major, but taken in panels as well, if they are multiplied by, too.
  bool only_looked_up = false;

  bool in_panels() const { return row_dims > 0 && !only_looked_up; }
  // How many matrices, and rows of each, a parameter with these dims has.
  // REQUIRES: there are as many dims.
  int64_t MatricesOf(const Dims& dims) const;
  int64_t RowsOf(const Dims& dims) const;

  bool operator==(const WeightForm&) const = default;
};

// By name.
using WeightForms = std::map<std::string, WeightForm>;

// All parameters of the program.
WeightForms WeightFormsOf(const Program& program);

// Adds those of another program that runs on the same parameters: what both
// have stays in panels if both take the same ones.
void MergeWeightForms(const WeightForms& other, WeightForms& into);

// A tensor for a parameter of int8 with these dims, contents undefined. Errors:
// InvalidArgument if the form is not one of panels, or the matrices' rows are
// none or more than kMaxInt8Depth.
absl::StatusOr<Tensor> NewInt8Weight(const WeightForm& form, const Dims& dims);

// `value`, f32 and row-major, rounded to that form. Errors: as above.
absl::StatusOr<Tensor> RoundToInt8(const Tensor& value, const WeightForm& form);

// Bytes of one expert of a parameter with these dims, [E, ...], of that type.
int64_t BytesOfExpert(ElementType type, const Dims& dims);

}  // namespace gshard

#endif  // SERVICES_GRAPH_WEIGHT_FORMS_H_
