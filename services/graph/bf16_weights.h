// In which form a program takes its parameters of bfloat16.
//
// Weights that are only ever multiplied by, always as the same matrices, may
// lie in panels (services/ops/bf16_panel.h) from the time they are read: the
// products are then bound by reading them, not by packing them. All others are
// row-major.

#ifndef SERVICES_GRAPH_BF16_WEIGHTS_H_
#define SERVICES_GRAPH_BF16_WEIGHTS_H_

#include <cstdint>
#include <map>
#include <string>

#include "services/graph/program.h"
#include "services/tensor/tensor.h"

namespace gshard {

struct WeightForm {
  // Of a parameter in panels: its first dims number matrices, the next ones
  // multiply to their rows, and the others to their columns.
  int batch_dims = 0;
  int row_dims = 0;  // 0 if row-major

  bool in_panels() const { return row_dims > 0; }
  // How many matrices, and rows of each, a parameter with these dims has.
  // REQUIRES: there are as many dims.
  int64_t MatricesOf(const Dims& dims) const;
  int64_t RowsOf(const Dims& dims) const;

  bool operator==(const WeightForm&) const = default;
};

// By name.
using Bf16Weights = std::map<std::string, WeightForm>;

// All parameters that the program has as bf16.
Bf16Weights Bf16WeightsOf(const Program& program);

// Adds those of another program that runs on the same parameters: what both
// have stays in panels if both take the same ones.
void MergeBf16Weights(const Bf16Weights& other, Bf16Weights& into);

}  // namespace gshard

#endif  // SERVICES_GRAPH_BF16_WEIGHTS_H_
