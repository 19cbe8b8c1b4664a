// Lowering: translates a node of a program to nodes of a device's program.
//
// The partitioner (partitioner.h) walks the program with one Lowering. Most
// operators are lowered by their rule alone: choose axes for the factors,
// reshard the operands accordingly, mask padding, and run the same operator on
// the local parts. Others register a lowering of their own.

#ifndef SERVICES_PARTITION_LOWERING_H_
#define SERVICES_PARTITION_LOWERING_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/graph/builder.h"
#include "services/partition/partitioner.h"
#include "services/sharding/propagation.h"

namespace gshard {

// A device's form of a value of the program. The shape of `value` in the
// device's program is always LocalShape of the whole shape.
struct LocalValue {
  ValueId value = kNoValue;  // in the device's program
  Sharding sharding;
  int role = 0;
};

// A node's results in the device's program.
using LoweredValues = absl::StatusOr<std::vector<LocalValue>>;

class Lowering {
 public:
  Lowering(const Program& program, const DeviceMesh& mesh,
           const Shardings& shardings, const PartitionOptions& options);

  // The program to partition, its mesh, and the propagated shardings.
  const Program& program;
  const DeviceMesh& mesh;
  const Shardings& shardings;
  const PartitionOptions& options;
  // The device's program.
  Builder b;

  // --- Values of the program ---

  const ValueType& Type(ValueId value) const { return program.type(value); }
  // The sharding that propagation wants for a value.
  const Sharding& Wanted(ValueId value) const { return shardings.of[value]; }
  // The canonical version of a value; Reshard derives others from it.
  const LocalValue& Canonical(ValueId value) const {
    return versions_[value].front();
  }
  // All versions of it.
  const std::vector<LocalValue>& Versions(ValueId value) const {
    return versions_[value];
  }
  // The value in another sharding, on a role: an existing version, or a new one
  // made from Canonical by the cheapest collectives (reshard.h).
  //
  // Errors: Unimplemented, naming the value, for an unsupported move between
  // roles; those of the builder.
  absl::StatusOr<ValueId> Reshard(ValueId value, const Sharding& sharding,
                                  int role);
  absl::StatusOr<ValueId> Reshard(ValueId value, const Sharding& sharding) {
    return Reshard(value, sharding, Canonical(value).role);
  }
  // Whether the value has a version yet.
  bool HasVersion(ValueId value) const { return !versions_[value].empty(); }
  // Adds a version made elsewhere.
  void AddVersion(ValueId value, LocalValue version);
  // The same, and makes it the canonical one.
  void SetCanonical(ValueId value, LocalValue version);

  // Group sizes i32[E] of ragged rows, by the symbol of their dimension;
  // kNoValue if `rows` is not one.
  ValueId GroupSizes(const Dim& rows) const;
  bool IsGroupSizes(ValueId value) const;
  // Whether devices along the axes know how many of these rows come from their
  // own tokens. If not, rows cannot be split by token.
  bool HasShares(const Dim& rows, const Axes& axes) const;
  // The counts i32[n, E] from an all-to-all of such rows along the axes;
  // kNoValue before the first one.
  ValueId Counts(const Dim& rows, const Axes& axes) const;
  void NoteCounts(const Dim& rows, const Axes& axes, ValueId counts);

  // Role of the nodes added from here on.
  int role() const { return role_; }
  void SetRole(int role) { role_ = role; }

  // --- Writing nodes ---

  // Adds a node and records its role. Results have the types that the operator
  // infers.
  std::vector<ValueId> Add(absl::string_view op, std::vector<ValueId> operands,
                           Attributes attributes = {});
  ValueId AddOne(absl::string_view op, std::vector<ValueId> operands,
                 Attributes attributes = {}) {
    return Add(op, std::move(operands), std::move(attributes))[0];
  }

  // The attributes axes and parts, and `more`.
  Attributes Along(const Axes& axes, Attributes more = {}) const;

  // The sum (or maximum) over the devices along the axes; x itself for one
  // device.
  ValueId AllReduce(ValueId x, const Axes& axes,
                    Reduction reduction = Reduction::kSum);

  // x with the padding of dimension `dim` of the whole `shape` set to
  // `identity`; x itself if there is none.
  ValueId MaskPadding(ValueId x, const Shape& shape, const Sharding& sharding,
                      int dim, double identity);
  // The same for all dimensions.
  ValueId MaskPadding(ValueId x, const Shape& shape, const Sharding& sharding,
                      double identity);

  // Reshards a local tensor of whole shape `shape`. No ragged rows, no partial
  // target. See reshard.h.
  absl::StatusOr<ValueId> ReshardLocal(ValueId x, const Shape& shape,
                                       const Sharding& from,
                                       const Sharding& to);

  // Of a dimension of known size: zeros before, after and between its elements,
  // and elements [begin, end). x itself if nothing changes.
  ValueId PadZeros(ValueId x, int dim, int64_t low, int64_t high,
                   int64_t interior = 0);
  ValueId Slice(ValueId x, int dim, int64_t begin, int64_t end);

  // --- The generic lowering ---

  // Axes for each factor of the node's rule: from the wanted shardings of its
  // results, then from its operands, the largest first; each axis once, one
  // role, none where the rule or the sizes forbid it.
  struct FactorAxes {
    std::vector<Axes> of;
    int role = 0;
  };
  FactorAxes ChooseAxes(const Node& node, const OpRule& rule) const;

  // The sharding that these axes give an operand or result.
  Sharding ShardingFor(const std::vector<DimFactors>& dims, const OpRule& rule,
                       const FactorAxes& axes) const;
  // The axes of factors that are missing in `dims`.
  Axes MissingAxes(const std::vector<DimFactors>& dims, const OpRule& rule,
                   const FactorAxes& axes) const;

  // Operand i in the sharding given by the axes, with masked padding.
  absl::StatusOr<ValueId> Operand(const Node& node, const OpRule& rule,
                                  const FactorAxes& axes, size_t i);

  // Lowers by the rule. Returns one value per result; sums are still partial.
  // `op`, if not empty, is the operator that devices run instead of the node's,
  // with the same operands and additional attributes `more`.
  LoweredValues LowerByRule(const Node& node, const OpRule& rule,
                            const FactorAxes& axes, absl::string_view op = "",
                            const Attributes& more = {});

  // The role of each value of the device's program.
  std::vector<int> value_roles;
  // Values of the device's program that are kept though no output needs them:
  // see dynamic_dims.h.
  std::vector<ValueId> kept;

 private:
  friend class Partitioner;

  absl::StatusOr<ValueId> Convert(ValueId value, LocalValue from,
                                  const Sharding& to, int role);

  int role_ = 0;
  std::vector<std::vector<LocalValue>> versions_;  // by value of the program
  std::map<std::string, ValueId> sizes_of_rows_;   // by symbol
  // Counts from an all-to-all of rows, by symbol and axes.
  std::map<std::pair<std::string, Axes>, ValueId> counts_;
};

// Lowers a node; returns one value per result, in any sharding, or nothing if
// the rule alone suffices.
using LowerFunction =
    std::function<LoweredValues(Lowering& lowering, const Node& node)>;

// Registers the lowering of an operator; one that exists is kept. Thread-safe.
void RegisterLowering(absl::string_view op, LowerFunction lower);
// Null if there is none.
const LowerFunction* FindLowering(absl::string_view op);

}  // namespace gshard

#endif  // SERVICES_PARTITION_LOWERING_H_
