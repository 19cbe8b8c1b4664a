#include "tests/testing/tiles.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

// The position of a tile: [begin, begin + size) of each dimension, of which
// [begin, begin + valid) is in the whole.
struct Box {
  Dims begin;
  Dims size;
  Dims valid;
};

// The range of rows of a block of experts.
absl::Status RowsOfExperts(const Tensor& sizes, int64_t parts, int64_t index,
                           int64_t rows, int64_t& begin, int64_t& count) {
  if (sizes.empty() || sizes.type() != ElementType::kInt32 ||
      sizes.rank() != 1) {
    return absl::InvalidArgumentError(
        "ragged rows that are split by expert need i32[E] group sizes");
  }
  const int64_t block = (sizes.dim(0) + parts - 1) / parts;
  int64_t total = 0;
  begin = count = 0;
  for (int64_t e = 0; e < sizes.dim(0); ++e) {
    total += sizes.i32()[e];
    if (e < index * block) begin += sizes.i32()[e];
    if (e / block == index) count += sizes.i32()[e];
  }
  if (total != rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group sizes add up to ", total, ", there are ", rows, " rows"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Box> BoxOf(const Dims& dims, const Placed& placed,
                          const DeviceMesh& mesh, int64_t device,
                          const Tensor& group_sizes) {
  if (dims.size() != placed.sharding.dims.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected ", placed.type.ToString(), ", got ", DimsToString(dims)));
  }
  if (!placed.sharding.partial.empty()) {
    return absl::UnimplementedError("a partial value has no tiles");
  }
  Box box;
  for (size_t d = 0; d < dims.size(); ++d) {
    const DimSharding& sharding = placed.sharding.dims[d];
    if (!sharding.token_axes.empty()) {
      return absl::UnimplementedError("rows by token have no tiles");
    }
    const int64_t parts = mesh.Parts(sharding.axes);
    const int64_t index = mesh.Index(device, sharding.axes);
    int64_t size = (dims[d] + parts - 1) / parts;
    int64_t begin = index * size;
    if (!group_sizes.empty() && d == 0 && parts > 1) {
      RETURN_IF_ERROR(
          RowsOfExperts(group_sizes, parts, index, dims[d], begin, size));
    } else if (!placed.type.shape[d].is_static() && dims[d] % parts != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(placed.type.shape[d].ToString(), " = ", dims[d],
                       " must be a multiple of the ", parts, " parts of ",
                       placed.type.ToString()));
    }
    box.begin.push_back(begin);
    box.size.push_back(size);
    box.valid.push_back(std::clamp(dims[d] - begin, int64_t{0}, size));
  }
  return box;
}

void FillPadding(Tensor& tensor) {
  switch (tensor.type()) {
    case ElementType::kFloat32:
      std::fill_n(tensor.f32(), tensor.size(),
                  std::numeric_limits<float>::quiet_NaN());
      return;
    case ElementType::kBFloat16:
      std::fill_n(tensor.data<BFloat16>(), tensor.size(),
                  ToBFloat16(std::numeric_limits<float>::quiet_NaN()));
      return;
    case ElementType::kInt32:
      std::fill_n(tensor.i32(), tensor.size(),
                  std::numeric_limits<int32_t>::min());
      return;
    default:
      std::memset(tensor.raw(), 0, tensor.bytes());
  }
}

// Visits the contiguous ranges of the last dimension that tile and whole share,
// as byte offsets.
template <typename Function>
void ForEachRun(const Box& box, const Dims& dims, size_t element,
                Function visit) {
  const size_t rank = dims.size();
  if (rank == 0) {
    visit(0, 0, element);
    return;
  }
  for (const int64_t valid : box.valid) {
    if (valid == 0) return;
  }
  Dims at(rank, 0);
  while (true) {
    int64_t whole = 0, tile = 0;
    for (size_t d = 0; d < rank; ++d) {
      whole = whole * dims[d] + box.begin[d] + at[d];
      tile = tile * box.size[d] + at[d];
    }
    visit(whole * element, tile * element, box.valid.back() * element);
    size_t d = rank - 1;
    while (d > 0 && ++at[d - 1] == box.valid[d - 1]) at[--d] = 0;
    if (d == 0) return;
  }
}

// The index in mesh order of the tile that a device has.
int64_t TileOfDevice(const Placed& placed, int64_t device) {
  if (placed.device_order.empty()) return device;
  return std::find(placed.device_order.begin(), placed.device_order.end(),
                   device) -
         placed.device_order.begin();
}

}  // namespace

absl::StatusOr<Tensor> TileOf(const Tensor& whole, const Placed& placed,
                              const DeviceMesh& mesh, int64_t device,
                              const Tensor& group_sizes) {
  if (whole.type() != placed.type.type) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected ", placed.type.ToString(), ", got ", whole.TypeString()));
  }
  ASSIGN_OR_RETURN(const Box box,
                   BoxOf(whole.dims(), placed, mesh,
                         TileOfDevice(placed, device), group_sizes));
  Tensor tile(whole.type(), box.size);
  FillPadding(tile);
  ForEachRun(box, whole.dims(), ElementSize(whole.type()),
             [&](size_t from, size_t to, size_t bytes) {
               std::memcpy(tile.raw() + to, whole.raw() + from, bytes);
             });
  return tile;
}

absl::StatusOr<Tensor> JoinTiles(absl::Span<const Tensor> tiles,
                                 const Dims& dims, const Placed& placed,
                                 const DeviceMesh& mesh,
                                 const Tensor& group_sizes) {
  Tensor whole = Tensor::Zeros(placed.type.type, dims);
  Tensor written = Tensor::Zeros(placed.type.type, dims);
  for (size_t device = 0; device < tiles.size(); ++device) {
    const Tensor& tile = tiles[device];
    ASSIGN_OR_RETURN(
        const Box box,
        BoxOf(dims, placed, mesh, TileOfDevice(placed, device), group_sizes));
    if (tile.type() != placed.type.type || tile.dims() != box.size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "device ", device, " must have ", ElementTypeName(placed.type.type),
          DimsToString(box.size), ", got ", tile.TypeString()));
    }
    bool differs = false;
    ForEachRun(box, dims, ElementSize(whole.type()),
               [&](size_t to, size_t from, size_t bytes) {
                 const bool seen = written.raw()[to] != std::byte{0};
                 if (seen && std::memcmp(whole.raw() + to, tile.raw() + from,
                                         bytes) != 0) {
                   differs = true;
                 }
                 std::memcpy(whole.raw() + to, tile.raw() + from, bytes);
                 std::memset(written.raw() + to, 1, bytes);
               });
    if (differs) {
      return absl::InternalError(
          absl::StrCat("device ", device, " has another copy of its tile of ",
                       placed.type.ToString(), " than a device before it"));
    }
  }
  return whole;
}

}  // namespace gshard
