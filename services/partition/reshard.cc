#include "services/partition/reshard.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

Axes Suffix(const Axes& axes, size_t from) {
  return Axes(axes.begin() + from, axes.end());
}

Axes Joined(const Axes& a, const Axes& b) {
  Axes both = a;
  both.insert(both.end(), b.begin(), b.end());
  return both;
}

Sharding WithoutSingles(Sharding sharding, const DeviceMesh& mesh) {
  for (DimSharding& dim : sharding.dims) {
    dim.axes = mesh.WithoutSingles(dim.axes);
  }
  sharding.partial = mesh.WithoutSingles(sharding.partial);
  return sharding;
}

class Resharder {
 public:
  Resharder(Lowering& l, ValueId x, const Shape& shape, Sharding from,
            Sharding to)
      : l_(l),
        x_(x),
        shape_(shape),
        from_(std::move(from)),
        to_(std::move(to)) {}

  absl::StatusOr<ValueId> Run() {
    RETURN_IF_ERROR(Sum());
    while (from_.dims != to_.dims) {
      if (Cut() || Exchange() || Swap()) continue;
      Join();
    }
    return x_;
  }

 private:
  // Whether parts of dimension d along axes are all full, so that a part of a
  // part is a part of the whole.
  bool IsEven(int d, const Axes& axes) const {
    return !IsUneven(shape_[d], axes, l_.mesh);
  }

  Shape LocalNow() const { return LocalShape(shape_, from_, l_.mesh); }

  // Size of dimension d if it is split along `axes`.
  Dim SizeAlong(int d, const Axes& axes) const {
    return LocalDim(shape_[d], {.axes = axes, .token_axes = {}}, l_.mesh);
  }

  // Pads dimension d, split along `have`, so that splitting along `more` gives
  // its size along both.
  void PadToCut(int d, const Axes& have, const Axes& more) {
    if (IsEven(d, Joined(have, more))) return;
    const Dim size = SizeAlong(d, Joined(have, more)) * l_.mesh.Parts(more);
    x_ = l_.PadZeros(x_, d, 0, size.size() - SizeAlong(d, have).size());
  }

  absl::Status Sum() {
    for (const int a : to_.partial) {
      if (!Contains(from_.partial, a)) {
        return absl::UnimplementedError(
            absl::StrCat("no way from ", from_.ToString(l_.mesh), " to ",
                         to_.ToString(l_.mesh)));
      }
    }
    Axes sum;
    for (const int a : from_.partial) {
      if (!Contains(to_.partial, a)) sum.push_back(a);
    }
    from_.partial = to_.partial;
    if (sum.empty()) return absl::OkStatus();
    for (size_t d = 0; d < shape_.size(); ++d) {
      const Axes& have = from_.dims[d].axes;
      const Axes& want = to_.dims[d].axes;
      if (!IsProperPrefix(have, want)) continue;
      const Axes more = Suffix(want, have.size());
      Axes sorted = more, wanted = sum;
      std::sort(sorted.begin(), sorted.end());
      std::sort(wanted.begin(), wanted.end());
      if (sorted != wanted || (!have.empty() && !IsEven(d, want))) continue;
      PadToCut(d, have, more);
      from_.dims[d].axes = want;
      x_ = l_.AddOne("reduce_scatter", {x_},
                     l_.Along(more, {{"dim", static_cast<int64_t>(d)},
                                     {"shape", LocalNow()}}));
      return absl::OkStatus();
    }
    x_ = l_.AllReduce(x_, sum);
    return absl::OkStatus();
  }

  // Takes the device's part of a dimension.
  bool Cut() {
    for (size_t d = 0; d < shape_.size(); ++d) {
      const Axes& have = from_.dims[d].axes;
      const Axes& want = to_.dims[d].axes;
      if (!IsProperPrefix(have, want)) continue;
      if (!have.empty() && !IsEven(d, want)) continue;
      const Axes more = Suffix(want, have.size());
      if (std::any_of(more.begin(), more.end(),
                      [&](int a) { return from_.Uses(a); })) {
        continue;
      }
      PadToCut(d, have, more);
      from_.dims[d].axes = want;
      x_ = l_.AddOne("part", {x_},
                     l_.Along(more, {{"dim", static_cast<int64_t>(d)},
                                     {"shape", LocalNow()}}));
      return true;
    }
    return false;
  }

  // Moves the last axes of one dimension to another.
  bool Exchange() {
    for (size_t d = 0; d < shape_.size(); ++d) {
      const Axes have = from_.dims[d].axes;
      const Axes& want = to_.dims[d].axes;
      if (!IsProperPrefix(want, have)) continue;
      if (!want.empty() && !IsEven(d, have)) continue;
      const Axes moved = Suffix(have, want.size());
      for (size_t j = 0; j < shape_.size(); ++j) {
        const Axes before = from_.dims[j].axes;
        if (j == d || to_.dims[j].axes != Joined(before, moved)) continue;
        if (!before.empty() && !IsEven(j, to_.dims[j].axes)) continue;
        PadToCut(j, before, moved);
        from_.dims[d].axes = want;
        from_.dims[j].axes = to_.dims[j].axes;
        Shape shape = LocalNow();
        const Dim size = shape[d];
        if (!IsEven(d, have)) {
          shape[d] = SizeAlong(d, have) * l_.mesh.Parts(moved);
        }
        x_ = l_.AddOne("all_to_all", {x_},
                       l_.Along(moved, {{"split_dim", static_cast<int64_t>(j)},
                                        {"concat_dim", static_cast<int64_t>(d)},
                                        {"shape", shape}}));
        if (shape[d] != size) x_ = l_.Slice(x_, d, 0, size.size());
        return true;
      }
    }
    return false;
  }

  // Moves tiles to other devices. Every device finds the one that has its tile
  // among those that differ along the axes of both.
  bool Swap() {
    Axes along;
    for (size_t d = 0; d < shape_.size(); ++d) {
      const Axes& have = from_.dims[d].axes;
      const Axes& want = to_.dims[d].axes;
      if (l_.mesh.Parts(have) != l_.mesh.Parts(want)) return false;
      for (const Axes* axes : {&have, &want}) {
        for (const int a : *axes) {
          if (!Contains(along, a)) along.push_back(a);
        }
      }
    }
    std::sort(along.begin(), along.end());
    const int64_t n = l_.mesh.Parts(along);
    std::vector<int64_t> source;
    for (int64_t rank = 0; rank < n; ++rank) {
      std::map<int, int64_t> at = Coordinates(rank, along);
      std::map<int, int64_t> holder = at;
      for (size_t d = 0; d < shape_.size(); ++d) {
        int64_t tile = 0;
        for (const int a : to_.dims[d].axes) {
          tile = tile * l_.mesh.axis(a).size + at[a];
        }
        const Axes& have = from_.dims[d].axes;
        for (size_t k = have.size(); k-- > 0;) {
          const int64_t size = l_.mesh.axis(have[k]).size;
          holder[have[k]] = tile % size;
          tile /= size;
        }
      }
      int64_t index = 0;
      for (const int a : along)
        index = index * l_.mesh.axis(a).size + holder[a];
      source.push_back(index);
    }
    from_.dims = to_.dims;
    // Symbols contain the names of their axes.
    Attributes attributes = l_.Along(along, {{"shape", LocalNow()}});
    attributes["source"] = std::move(source);
    x_ = l_.AddOne("permute", {x_}, std::move(attributes));
    return true;
  }

  std::map<int, int64_t> Coordinates(int64_t rank, const Axes& along) const {
    std::map<int, int64_t> at;
    for (size_t k = along.size(); k-- > 0;) {
      const int64_t size = l_.mesh.axis(along[k]).size;
      at[along[k]] = rank % size;
      rank /= size;
    }
    return at;
  }

  // Joins a dimension along axes that are not wanted or are in the way.
  void Join() {
    for (size_t d = 0; d < shape_.size(); ++d) {
      const Axes have = from_.dims[d].axes;
      const Axes& want = to_.dims[d].axes;
      if (have == want || have.empty()) continue;
      size_t common = 0;
      while (common < have.size() && common < want.size() &&
             have[common] == want[common]) {
        ++common;
      }
      if (common == have.size() || !IsEven(d, have) || !IsEven(d, want)) {
        common = 0;
      }
      const Axes gathered = Suffix(have, common);
      from_.dims[d].axes.resize(common);
      Shape shape = LocalNow();
      const Dim size = shape[d];
      if (!IsEven(d, have)) {
        shape[d] = SizeAlong(d, have) * l_.mesh.Parts(gathered);
      }
      x_ = l_.AddOne("all_gather", {x_},
                     l_.Along(gathered, {{"dim", static_cast<int64_t>(d)},
                                         {"shape", shape}}));
      if (shape[d] != size) x_ = l_.Slice(x_, d, 0, size.size());
      return;
    }
  }

  Lowering& l_;
  ValueId x_;
  const Shape& shape_;
  Sharding from_;
  Sharding to_;
};

}  // namespace

double RoughSize(const Shape& shape, const Sharding& sharding,
                 const DeviceMesh& mesh) {
  double size = 1;
  for (size_t d = 0; d < shape.size(); ++d) {
    size *= static_cast<double>(shape[d].coefficient());
    for (size_t i = 0; i < shape[d].symbols().size(); ++i) size *= 1e6;
    for (const Axes* axes :
         {&sharding.dims[d].axes, &sharding.dims[d].token_axes}) {
      size /= static_cast<double>(std::max<int64_t>(mesh.Parts(*axes), 1));
    }
  }
  return size;
}

double ReshardCost(const Shape& shape, const Sharding& from, const Sharding& to,
                   const DeviceMesh& mesh) {
  if (from == to) return 0;
  double cost = 0;
  Sharding now = WithoutSingles(from, mesh);
  const Sharding target = WithoutSingles(to, mesh);
  if (!now.partial.empty()) {
    const bool scattered =
        std::all_of(now.partial.begin(), now.partial.end(), [&](int a) {
          return std::any_of(
              target.dims.begin(), target.dims.end(),
              [&](const DimSharding& dim) { return Contains(dim.axes, a); });
        });
    cost += (scattered ? 1 : 2) * RoughSize(shape, now, mesh);
    now.partial.clear();
  }
  bool moved = false, joined = false;
  const double before = RoughSize(shape, now, mesh);
  for (size_t d = 0; d < shape.size(); ++d) {
    if (now.dims[d].token_axes != target.dims[d].token_axes) moved = true;
    Axes& have = now.dims[d].axes;
    const Axes& want = target.dims[d].axes;
    if (have == want || IsProperPrefix(have, want)) continue;
    // Axes that go to another dimension are exchanged, others joined.
    for (const int a : have) {
      if (Contains(want, a)) continue;
      (target.Uses(a) ? moved : joined) = true;
    }
    have.clear();
  }
  if (joined) return cost + RoughSize(shape, now, mesh);
  return moved ? cost + before : cost;
}

absl::StatusOr<ValueId> ReshardDense(Lowering& l, ValueId x, const Shape& shape,
                                     Sharding from, Sharding to) {
  from = WithoutSingles(std::move(from), l.mesh);
  to = WithoutSingles(std::move(to), l.mesh);
  return Resharder(l, x, shape, std::move(from), std::move(to)).Run();
}

}  // namespace gshard
