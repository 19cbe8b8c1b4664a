#include "services/graph/weight_forms.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/op.h"
#include "services/ops/einsum.h"
#include "services/ops/int8_panel.h"

namespace gshard {
namespace {

// The form in which a node takes weights of this type as this operand.
WeightForm FormOfOperand(const Node& node, size_t operand, ElementType type) {
  const WeightForm row_major{.type = type};
  const bool is_int8 = type == ElementType::kInt8;
  if (operand == 0 && node.op->name == "embedding") {
    return {.row_dims = 1,
            .transposed = true,
            .type = type,
            .only_looked_up = !is_int8};
  }
  if (operand != 1) return row_major;
  // GPUs fuse ragged_dot with what follows it (services/cuda/fuse_products.h).
  if (node.op->name == "ragged_dot" || node.op->name == "fused_ragged_dot") {
    return {.batch_dims = 1, .row_dims = 1, .type = type};
  }
  if (node.op->name != "einsum") return row_major;
  const auto spec = ParseEinsum(StringAttribute(node.attributes, "equation"));
  if (!spec.ok()) return row_major;
  const MatrixOfB matrix = MatrixOf(*spec);
  return {.row_dims = matrix.row_letters,
          .transposed = matrix.transposed,
          .type = type};
}

// Conflicting uses make a parameter row-major.
void Merge(const std::string& name, WeightForm form, WeightForms& into) {
  const auto [found, added] = into.try_emplace(name, form);
  WeightForm& merged = found->second;
  form.only_looked_up &= merged.only_looked_up;
  merged.only_looked_up = form.only_looked_up;
  if (merged != form) merged = {.type = form.type};
}

}  // namespace

int64_t WeightForm::MatricesOf(const Dims& dims) const {
  return NumElements(absl::MakeConstSpan(dims).subspan(0, batch_dims));
}

int64_t WeightForm::RowsOf(const Dims& dims) const {
  const size_t first = transposed ? dims.size() - row_dims : batch_dims;
  return NumElements(absl::MakeConstSpan(dims).subspan(first, row_dims));
}

WeightForms WeightFormsOf(const Program& program) {
  WeightForms weights;
  // Parameter names by value.
  std::map<ValueId, std::string> names;
  for (const Node* node : program.NodesOf("parameter")) {
    const ValueId value = node->outputs[0];
    names[value] = StringAttribute(node->attributes, "name");
  }
  for (const Node& node : program.nodes) {
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const auto found = names.find(node.inputs[i]);
      if (found == names.end()) continue;
      Merge(found->second,
            FormOfOperand(node, i, program.type(node.inputs[i]).type), weights);
    }
  }
  const auto row_major = [&](ValueId value) {
    return WeightForm{.type = program.type(value).type};
  };
  for (const auto& [name, value] : program.outputs) {
    const auto found = names.find(value);
    if (found != names.end()) Merge(found->second, row_major(value), weights);
  }
  // Unused parameters.
  for (const auto& [value, name] : names) {
    weights.try_emplace(name, row_major(value));
  }
  return weights;
}

void MergeWeightForms(const WeightForms& other, WeightForms& into) {
  for (const auto& [name, form] : other) Merge(name, form, into);
}

absl::StatusOr<Tensor> NewInt8Weight(const WeightForm& form, const Dims& dims) {
  if (form.type != ElementType::kInt8 || !form.in_panels() ||
      std::ssize(dims) <= form.batch_dims + form.row_dims) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected weights of i8 that are only multiplied by or looked up, got ",
        DimsToString(dims), " with another use"));
  }
  const int64_t rows = form.RowsOf(dims);
  if (NumElements(dims) == 0 || rows > kMaxInt8Depth) {
    return absl::InvalidArgumentError(
        absl::StrCat("expected matrices of i8 with 1 to ", kMaxInt8Depth,
                     " rows, got ", rows, " of ", DimsToString(dims)));
  }
  return NewInt8Panels(dims, form.MatricesOf(dims), rows);
}

absl::StatusOr<Tensor> RoundToInt8(const Tensor& value,
                                   const WeightForm& form) {
  ASSIGN_OR_RETURN(Tensor rounded, NewInt8Weight(form, value.dims()));
  const int64_t matrices = form.MatricesOf(value.dims());
  const Tensor flat = value.Reshaped({matrices, value.size() / matrices});
  for (int64_t i = 0; i < matrices; ++i) {
    RoundMatrix(flat.Rows(i, i + 1), i, form.transposed, rounded);
  }
  return rounded;
}

int64_t BytesOfExpert(ElementType type, const Dims& dims) {
  const int64_t size = NumElements(absl::MakeConstSpan(dims).subspan(1));
  if (type != ElementType::kInt8 || dims.size() < 3 || dims[1] == 0) {
    return size * static_cast<int64_t>(ElementSize(type));
  }
  return Int8MatrixBytes(dims[1], size / dims[1]);
}

}  // namespace gshard
