// Ragged rows from one sharding to another. See reshard.h.

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/partition/reshard.h"

namespace gshard {
namespace {

class RowResharder {
 public:
  RowResharder(Lowering& l, ValueId value, const LocalValue& from,
               const Sharding& to, int role)
      : l_(l),
        value_(value),
        shape_(l.Type(value).shape),
        x_(from.value),
        now_(from.sharding),
        from_role_(from.role),
        to_(to),
        role_(role),
        sizes_(l.GroupSizes(shape_[0])) {}

  absl::StatusOr<ValueId> Run() {
    if (sizes_ == kNoValue) return Unknown("its group sizes are not known");
    if (from_role_ != role_) return Cross();
    const DimSharding& want = to_.dims[0];
    if (IsByToken(now_.dims[0]) && IsByExpert(want) &&
        now_.dims[0].token_axes == want.axes) {
      RETURN_IF_ERROR(ToExperts());
    } else if (IsByExpert(now_.dims[0]) && IsByToken(want) &&
               now_.dims[0].axes == want.token_axes &&
               (IsOne(want.token_axes) ||
                l_.Counts(shape_[0], want.token_axes) != kNoValue)) {
      RETURN_IF_ERROR(ToTokens());
    } else {
      if (now_.dims[0].token_axes != want.token_axes) {
        RETURN_IF_ERROR(JoinTokens());
      }
      if (now_.dims[0].axes != want.axes) {
        RETURN_IF_ERROR(JoinExperts());
        RETURN_IF_ERROR(CutExperts());
      }
      RETURN_IF_ERROR(CutTokens());
    }
    return x_;
  }

 private:
  static bool IsByToken(const DimSharding& rows) {
    return rows.axes.empty() && !rows.token_axes.empty();
  }
  static bool IsByExpert(const DimSharding& rows) {
    return !rows.axes.empty() && rows.token_axes.empty();
  }
  bool IsOne(const Axes& axes) const { return l_.mesh.Parts(axes) == 1; }

  absl::Status Unknown(absl::string_view why) const {
    return absl::UnimplementedError(absl::StrCat(
        "rows v", value_, " ", l_.Type(value_).ToString(), " from ",
        now_.ToString(l_.mesh), " to ", to_.ToString(l_.mesh), ": ", why));
  }

  // Group sizes for the current or an earlier sharding of the rows.
  absl::StatusOr<ValueId> Sizes(const DimSharding& rows, int role) {
    Sharding sharding = Sharding::Replicated(1);
    sharding.dims[0].axes = rows.axes;
    sharding.partial = rows.token_axes;
    return l_.Reshard(sizes_, sharding, role);
  }

  // Records the sizes that came with rows.
  void Note(ValueId sizes, const DimSharding& rows, int role) {
    Sharding sharding = Sharding::Replicated(1);
    sharding.dims[0].axes = rows.axes;
    sharding.partial = rows.token_axes;
    l_.AddVersion(sizes_, {sizes, sharding, role});
  }

  Attributes Along(const Axes& axes) const {
    return l_.Along(
        axes, {{"rows", Shape{LocalDim(shape_[0], now_.dims[0], l_.mesh)}}});
  }

  // Whether the rows are choice indices, which a device counts from its own
  // first.
  bool AreSources() const {
    return l_.program.producer(value_).op->name == "plan_dispatch";
  }

  // Adds `factor` times the index of the device's first choice to the sources.
  absl::Status Renumber(const Axes& tokens, int64_t factor) {
    if (!AreSources() || IsOne(tokens)) return absl::OkStatus();
    const ValueId choices = l_.program.producer(value_).inputs[0];
    Sharding sharding = Sharding::Replicated(2);
    sharding.dims[0].axes = tokens;
    ASSIGN_OR_RETURN(const ValueId local,
                     l_.Reshard(choices, sharding, from_role_));
    const ValueId offset = l_.AddOne("rows_offset", {local}, l_.Along(tokens));
    x_ = l_.AddOne("add_offset", {x_, offset}, {{"factor", factor}});
    return absl::OkStatus();
  }

  absl::Status ToExperts() {
    const DimSharding before = now_.dims[0];
    const Axes& axes = before.token_axes;
    RETURN_IF_ERROR(Renumber(axes, 1));
    now_.dims[0] = to_.dims[0];
    if (IsOne(axes)) return absl::OkStatus();
    ASSIGN_OR_RETURN(const ValueId sizes, Sizes(before, role_));
    const std::vector<ValueId> results =
        l_.Add("ragged_all_to_all", {x_, sizes}, Along(axes));
    x_ = results[0];
    Note(results[1], now_.dims[0], role_);
    l_.NoteCounts(shape_[0], axes, results[2]);
    return absl::OkStatus();
  }

  absl::Status ToTokens() {
    const Axes axes = now_.dims[0].axes;
    now_.dims[0] = to_.dims[0];
    if (!IsOne(axes)) {
      const ValueId counts = l_.Counts(shape_[0], axes);
      if (counts == kNoValue) {
        return Unknown("nothing says which device has which tokens");
      }
      ASSIGN_OR_RETURN(const ValueId sizes, Sizes(now_.dims[0], role_));
      x_ =
          l_.AddOne("ragged_all_to_all_back", {x_, counts, sizes}, Along(axes));
    }
    return Renumber(axes, -1);
  }

  absl::Status JoinTokens() {
    const DimSharding before = now_.dims[0];
    if (before.token_axes.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(Renumber(before.token_axes, 1));
    now_.dims[0].token_axes.clear();
    if (IsOne(before.token_axes)) return absl::OkStatus();
    ASSIGN_OR_RETURN(const ValueId sizes, Sizes(before, role_));
    const std::vector<ValueId> results =
        l_.Add("ragged_all_gather", {x_, sizes}, Along(before.token_axes));
    x_ = results[0];
    Note(results[1], now_.dims[0], role_);
    return absl::OkStatus();
  }

  absl::Status JoinExperts() {
    const Axes axes = now_.dims[0].axes;
    now_.dims[0].axes.clear();
    if (IsOne(axes)) return absl::OkStatus();
    x_ = l_.AddOne("rows_all_gather", {x_}, Along(axes));
    return absl::OkStatus();
  }

  absl::Status CutExperts() {
    const Axes& axes = to_.dims[0].axes;
    const DimSharding before = now_.dims[0];
    now_.dims[0].axes = axes;
    if (IsOne(axes)) return absl::OkStatus();
    ASSIGN_OR_RETURN(const ValueId sizes, Sizes(before, role_));
    x_ = l_.AddOne("ragged_part", {x_, sizes}, Along(axes));
    return absl::OkStatus();
  }

  absl::Status CutTokens() {
    const Axes& axes = to_.dims[0].token_axes;
    if (now_.dims[0].token_axes == axes) return absl::OkStatus();
    now_.dims[0].token_axes = axes;
    if (!IsOne(axes)) {
      // Stacks i32[1, E] of every device.
      ASSIGN_OR_RETURN(const ValueId sizes, Sizes(now_.dims[0], role_));
      const Dim experts = l_.b.type(sizes).shape[0];
      const ValueId one =
          l_.AddOne("reshape", {sizes}, {{"shape", Shape{1, experts}}});
      const ValueId counts = l_.AddOne(
          "all_gather", {one},
          l_.Along(axes, {{"dim", int64_t{0}},
                          {"shape", Shape{l_.mesh.Parts(axes), experts}}}));
      x_ = l_.AddOne("ragged_local_rows", {x_, counts}, Along(axes));
    }
    return Renumber(axes, -1);
  }

  // Between roles: from tokens on one to experts on the other, and back.
  absl::StatusOr<ValueId> Cross() {
    const DimSharding before = now_.dims[0];
    const DimSharding& want = to_.dims[0];
    l_.SetRole(role_);
    if (before.axes.empty() && IsByExpert(want) && now_.partial.empty()) {
      RETURN_IF_ERROR(Renumber(before.token_axes, 1));
      ASSIGN_OR_RETURN(const ValueId sizes, Sizes(before, from_role_));
      now_.dims[0] = want;
      const std::vector<ValueId> results =
          l_.Add("send_rows", {x_, sizes},
                 {{"axes", l_.mesh.Names(want.axes)},
                  {"rows", Shape{LocalDim(shape_[0], want, l_.mesh)}},
                  {"experts",
                   Shape{LocalDim(l_.Type(sizes_).shape[0], want, l_.mesh)}}});
      Note(results[1], want, role_);
      return results[0];
    }
    if (IsByExpert(before) && want.axes.empty()) {
      ASSIGN_OR_RETURN(const ValueId sizes, Sizes(want, role_));
      now_.dims[0] = want;
      x_ = l_.AddOne("return_rows", {x_, sizes},
                     {{"rows", Shape{LocalDim(shape_[0], want, l_.mesh)}},
                      {"sum_over", l_.mesh.Names(now_.partial)}});
      RETURN_IF_ERROR(Renumber(want.token_axes, -1));
      return x_;
    }
    return Unknown("between roles, rows go from tokens to experts and back");
  }

  Lowering& l_;
  const ValueId value_;
  const Shape& shape_;
  ValueId x_;
  Sharding now_;
  const int from_role_;
  const Sharding& to_;
  const int role_;
  const ValueId sizes_;
};

}  // namespace

absl::StatusOr<ValueId> ReshardRows(Lowering& l, ValueId value,
                                    const LocalValue& from, const Sharding& to,
                                    int role) {
  return RowResharder(l, value, from, to, role).Run();
}

}  // namespace gshard
