#include "services/partition/dynamic_dims.h"

#include <algorithm>

#include "services/base/status_macros.h"

namespace gshard {
namespace {

bool HasSymbol(const Dim& dim, const std::string& symbol) {
  return std::find(dim.symbols().begin(), dim.symbols().end(), symbol) !=
         dim.symbols().end();
}

bool HasSymbol(const Shape& shape, const std::string& symbol) {
  return std::any_of(shape.begin(), shape.end(),
                     [&](const Dim& dim) { return HasSymbol(dim, symbol); });
}

// The value of the device's program that binds the symbol; sources first, as
// they cost nothing to keep.
ValueId Binder(const Lowering& l, const std::string& symbol) {
  const Program& program = l.b.program();
  for (const bool sources : {true, false}) {
    for (size_t v = 0; v < program.values.size(); ++v) {
      if (sources && program.producer(v).op->kernel != nullptr) continue;
      if (HasSymbol(program.type(v).shape, symbol)) return v;
    }
  }
  return kNoValue;
}

bool Keep(Lowering& l, const std::string& symbol) {
  const ValueId binder = Binder(l, symbol);
  if (binder == kNoValue) return false;
  l.kept.push_back(binder);
  return true;
}

// Reshards a vector of size `dim`, from some earlier value.
absl::Status Bring(Lowering& l, const Dim& dim, const DimSharding& wanted) {
  for (size_t v = 0; v < l.program.values.size(); ++v) {
    if (!l.HasVersion(v) || l.shardings.IsManual(v)) continue;
    const Shape& shape = l.Type(v).shape;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (shape[d].symbols() != dim.symbols()) continue;
      const DimSharding& have = l.Canonical(v).sharding.dims[d];
      if (!have.token_axes.empty() || !wanted.token_axes.empty()) continue;
      const Dim local = LocalDim(shape[d], have, l.mesh);
      for (const std::string& symbol : local.symbols()) {
        if (!Keep(l, symbol)) return absl::OkStatus();
      }
      const ValueId vector =
          l.AddOne("constant", {}, {{"value", 0.0}, {"shape", Shape{local}}});
      ASSIGN_OR_RETURN(
          const ValueId brought,
          l.ReshardLocal(vector, {shape[d]}, {.dims = {have}, .partial = {}},
                         {.dims = {wanted}, .partial = {}}));
      l.kept.push_back(brought);
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BindDynamicDims(Lowering& l, const std::vector<ValueId>& operands,
                             const Shape& shape, const Sharding& sharding) {
  for (size_t d = 0; d < shape.size(); ++d) {
    const Dim local = LocalDim(shape[d], sharding.dims[d], l.mesh);
    for (const std::string& symbol : local.symbols()) {
      const bool known =
          std::any_of(operands.begin(), operands.end(), [&](ValueId operand) {
            return operand != kNoValue &&
                   HasSymbol(l.b.type(operand).shape, symbol);
          });
      if (known || Keep(l, symbol)) continue;
      RETURN_IF_ERROR(Bring(l, shape[d], sharding.dims[d]));
    }
  }
  return absl::OkStatus();
}

}  // namespace gshard
