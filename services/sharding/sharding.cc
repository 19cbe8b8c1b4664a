#include "services/sharding/sharding.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace gshard {
namespace {

bool IsOnePart(const Axes& axes, const DeviceMesh& mesh) {
  return mesh.Parts(axes) == 1;
}

std::string SymbolFor(absl::string_view symbol, absl::string_view how,
                      const Axes& axes, const DeviceMesh& mesh) {
  return absl::StrCat(
      symbol, how,
      absl::StrReplaceAll(mesh.Names(mesh.WithoutSingles(axes)), {{",", "_"}}));
}

}  // namespace

bool Sharding::IsReplicated() const {
  return partial.empty() &&
         std::all_of(dims.begin(), dims.end(),
                     [](const DimSharding& dim) { return dim.empty(); });
}

bool Sharding::Uses(int axis) const {
  for (const DimSharding& dim : dims) {
    if (Contains(dim.axes, axis) || Contains(dim.token_axes, axis)) return true;
  }
  return Contains(partial, axis);
}

Axes Sharding::UsedAxes() const {
  Axes used = partial;
  for (const DimSharding& dim : dims) {
    used.insert(used.end(), dim.axes.begin(), dim.axes.end());
    used.insert(used.end(), dim.token_axes.begin(), dim.token_axes.end());
  }
  return used;
}

std::string Sharding::ToString(const DeviceMesh& mesh) const {
  std::string text = "[";
  for (size_t d = 0; d < dims.size(); ++d) {
    if (d > 0) text += ", ";
    text += dims[d].axes.empty() ? "-" : mesh.Names(dims[d].axes);
    if (!dims[d].token_axes.empty()) {
      absl::StrAppend(&text, "|", mesh.Names(dims[d].token_axes));
    }
  }
  text += "]";
  if (!partial.empty())
    absl::StrAppend(&text, " partial ", mesh.Names(partial));
  return text;
}

Dim LocalDim(const Dim& dim, const DimSharding& sharding,
             const DeviceMesh& mesh) {
  if (!sharding.token_axes.empty() && !IsOnePart(sharding.token_axes, mesh)) {
    DimSharding by_expert = sharding;
    by_expert.token_axes.clear();
    const Dim rows = LocalDim(dim, by_expert, mesh);
    return Dim::Symbol(
        SymbolFor(rows.ToString(), "_of_", sharding.token_axes, mesh));
  }
  if (sharding.axes.empty() || IsOnePart(sharding.axes, mesh)) return dim;
  if (!dim.is_static()) {
    Dim local(dim.coefficient());
    for (size_t i = 0; i < dim.symbols().size(); ++i) {
      const std::string& symbol = dim.symbols()[i];
      local = local * Dim::Symbol(i > 0 ? symbol
                                        : SymbolFor(symbol, "_by_",
                                                    sharding.axes, mesh));
    }
    return local;
  }
  if (mesh.IsElastic(sharding.axes)) {
    return Dim::Symbol(mesh.axis(sharding.axes[0]).symbol);
  }
  const int64_t parts = mesh.Parts(sharding.axes);
  return Dim((dim.size() + parts - 1) / parts);
}

Shape LocalShape(const Shape& shape, const Sharding& sharding,
                 const DeviceMesh& mesh) {
  Shape local;
  for (size_t d = 0; d < shape.size(); ++d) {
    local.push_back(LocalDim(shape[d], sharding.dims[d], mesh));
  }
  return local;
}

bool IsUneven(const Dim& dim, const Axes& axes, const DeviceMesh& mesh) {
  return dim.is_static() && !axes.empty() && !mesh.IsElastic(axes) &&
         dim.size() % mesh.Parts(axes) != 0;
}

}  // namespace gshard
