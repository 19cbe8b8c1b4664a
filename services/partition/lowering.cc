#include "services/partition/lowering.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "services/base/mutex.h"
#include "services/base/status_macros.h"
#include "services/partition/reshard.h"

namespace gshard {
namespace {

// Lowerings are never removed, so pointers to them stay valid.
struct Registry {
  Mutex mutex;
  std::map<std::string, LowerFunction, std::less<>> lowerings
      ABSL_GUARDED_BY(mutex);
};

Registry& GetRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

void RegisterLowering(absl::string_view op, LowerFunction lower) {
  Registry& registry = GetRegistry();
  MutexLock lock(registry.mutex);
  registry.lowerings.emplace(std::string(op), std::move(lower));
}

const LowerFunction* FindLowering(absl::string_view op) {
  Registry& registry = GetRegistry();
  MutexLock lock(registry.mutex);
  const auto found = registry.lowerings.find(op);
  return found == registry.lowerings.end() ? nullptr : &found->second;
}

Lowering::Lowering(const Program& program, const DeviceMesh& mesh,
                   const Shardings& shardings, const PartitionOptions& options)
    : program(program),
      mesh(mesh),
      shardings(shardings),
      options(options),
      b(program.name),
      versions_(program.values.size()) {
  // Maps symbols of rows to the values that count them.
  for (size_t n = 0; n < program.nodes.size(); ++n) {
    const Node& node = program.nodes[n];
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!shardings.rules[n].operand_rule(i).own_share) continue;
      const Dim& rows = Type(node.inputs[0]).shape[0];
      if (!rows.is_static()) {
        sizes_of_rows_.emplace(rows.ToString(), node.inputs[i]);
      }
    }
  }
}

ValueId Lowering::GroupSizes(const Dim& rows) const {
  if (rows.is_static()) return kNoValue;
  const auto found = sizes_of_rows_.find(rows.ToString());
  return found == sizes_of_rows_.end() ? kNoValue : found->second;
}

bool Lowering::HasShares(const Dim& rows, const Axes& axes) const {
  const ValueId sizes = GroupSizes(rows);
  if (sizes == kNoValue || mesh.Parts(axes) == 1) return true;
  // The operator that creates the rows counts them, too.
  if (!HasVersion(sizes)) return true;
  const std::vector<LocalValue>& forms = versions_[sizes];
  return std::any_of(forms.begin(), forms.end(), [&](const LocalValue& form) {
    return form.sharding.partial == axes;
  });
}

ValueId Lowering::Counts(const Dim& rows, const Axes& axes) const {
  const auto found = counts_.find({rows.ToString(), axes});
  return found == counts_.end() ? kNoValue : found->second;
}

void Lowering::NoteCounts(const Dim& rows, const Axes& axes, ValueId counts) {
  counts_.emplace(std::pair(rows.ToString(), axes), counts);
}

bool Lowering::IsGroupSizes(ValueId value) const {
  return std::any_of(sizes_of_rows_.begin(), sizes_of_rows_.end(),
                     [&](const auto& entry) { return entry.second == value; });
}

void Lowering::AddVersion(ValueId value, LocalValue version) {
  versions_[value].push_back(std::move(version));
}

void Lowering::SetCanonical(ValueId value, LocalValue version) {
  versions_[value].insert(versions_[value].begin(), std::move(version));
}

absl::StatusOr<ValueId> Lowering::Reshard(ValueId value,
                                          const Sharding& sharding, int role) {
  for (const LocalValue& version : versions_[value]) {
    if (version.role == role && version.sharding == sharding) {
      return version.value;
    }
  }
  const int role_before = role_;
  ASSIGN_OR_RETURN(const ValueId made,
                   Convert(value, Canonical(value), sharding, role));
  role_ = role_before;
  AddVersion(value, {made, sharding, role});
  return made;
}

absl::StatusOr<ValueId> Lowering::Convert(ValueId value, LocalValue from,
                                          const Sharding& to, int role) {
  const Shape& shape = Type(value).shape;
  role_ = from.role;
  const bool rows_move =
      !shape.empty() && GroupSizes(shape[0]) != kNoValue &&
      (from.sharding.dims[0] != to.dims[0] || from.role != role);
  if (!rows_move) {
    if (from.role != role) {
      if (!from.sharding.IsReplicated() || !to.IsReplicated()) {
        return absl::UnimplementedError(
            absl::StrCat("no way for v", value, " ", Type(value).ToString(),
                         " from ", from.sharding.ToString(mesh), " to ",
                         to.ToString(mesh), " of another role"));
      }
      role_ = role;
      return AddOne("send_whole", {from.value});
    }
    return ReshardLocal(from.value, shape, from.sharding, to);
  }
  // Other dimensions first, if they do not interfere with the rows; then the
  // rows; then the rest. A sum that crosses to another role is computed there.
  const bool crosses = from.role != role;
  const Sharding rows{.dims = {from.sharding.dims[0]}, .partial = {}};
  Sharding between = from.sharding;
  if (!crosses) between.partial = to.partial;
  for (size_t d = 1; d < shape.size(); ++d) {
    const Axes& wanted = to.dims[d].axes;
    const bool in_the_way =
        crosses || std::any_of(wanted.begin(), wanted.end(),
                               [&](int a) { return rows.Uses(a); });
    between.dims[d] = in_the_way ? DimSharding() : to.dims[d];
  }
  ASSIGN_OR_RETURN(from.value,
                   ReshardLocal(from.value, shape, from.sharding, between));
  from.sharding = between;
  Sharding after = between;
  after.dims[0] = to.dims[0];
  if (crosses) after.partial.clear();
  ASSIGN_OR_RETURN(from.value, ReshardRows(*this, value, from, after, role));
  role_ = role;
  return ReshardLocal(from.value, shape, after, to);
}

std::vector<ValueId> Lowering::Add(absl::string_view op,
                                   std::vector<ValueId> operands,
                                   Attributes attributes) {
  std::vector<ValueId> results =
      b.AddNode(op, std::move(operands), std::move(attributes));
  value_roles.resize(b.program().values.size(), role_);
  return results;
}

Attributes Lowering::Along(const Axes& axes, Attributes more) const {
  more["axes"] = mesh.Names(axes);
  more["parts"] = mesh.Parts(axes);
  return more;
}

ValueId Lowering::AllReduce(ValueId x, const Axes& axes, Reduction reduction) {
  if (mesh.Parts(axes) == 1) return x;
  return AddOne("all_reduce", {x},
                Along(axes, {{"reduction", static_cast<int64_t>(reduction)}}));
}

ValueId Lowering::MaskPadding(ValueId x, const Shape& shape,
                              const Sharding& sharding, int dim,
                              double identity) {
  const Axes& axes = sharding.dims[dim].axes;
  if (!IsUneven(shape[dim], axes, mesh)) return x;
  return AddOne("mask_padding", {x},
                Along(axes, {{"dim", static_cast<int64_t>(dim)},
                             {"size", shape[dim].size()},
                             {"value", identity}}));
}

ValueId Lowering::MaskPadding(ValueId x, const Shape& shape,
                              const Sharding& sharding, double identity) {
  for (size_t d = 0; d < shape.size(); ++d) {
    x = MaskPadding(x, shape, sharding, d, identity);
  }
  return x;
}

absl::StatusOr<ValueId> Lowering::ReshardLocal(ValueId x, const Shape& shape,
                                               const Sharding& from,
                                               const Sharding& to) {
  if (from == to) return x;
  return ReshardDense(*this, x, shape, from, to);
}

ValueId Lowering::PadZeros(ValueId x, int dim, int64_t low, int64_t high,
                           int64_t interior) {
  if (!b.status().ok()) return kNoValue;
  if (low == 0 && high == 0 && interior == 0) return x;
  const size_t rank = b.type(x).shape.size();
  std::vector<int64_t> lows(rank), highs(rank), interiors(rank);
  lows[dim] = low;
  highs[dim] = high;
  interiors[dim] = interior;
  return AddOne("pad", {x},
                {{"low", lows},
                 {"high", highs},
                 {"interior", interiors},
                 {"value", 0.0}});
}

ValueId Lowering::Slice(ValueId x, int dim, int64_t begin, int64_t end) {
  if (!b.status().ok()) return kNoValue;
  if (begin == 0 && b.type(x).shape[dim] == Dim(end)) return x;
  return AddOne(
      "slice", {x},
      {{"dim", static_cast<int64_t>(dim)}, {"begin", begin}, {"end", end}});
}

}  // namespace gshard
