#include "services/partition/ops/part_position.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

constexpr int64_t kMaxParts = int64_t{1} << 20;
constexpr int64_t kMaxSize = int64_t{1} << 41;  // of any tensor

std::vector<absl::string_view> AxesOf(const Attributes& attributes) {
  return absl::StrSplit(StringAttribute(attributes, "axes"), ';');
}

}  // namespace

Attributes PositionAttributes(const Shape& shape, const Sharding& sharding,
                              const DeviceMesh& mesh, Attributes more) {
  std::vector<std::string> axes;
  std::vector<int64_t> sizes, parts;
  for (size_t d = 0; d < shape.size(); ++d) {
    axes.push_back(mesh.Names(sharding.dims[d].axes));
    sizes.push_back(shape[d].is_static() ? shape[d].size() : 0);
    parts.push_back(mesh.Parts(sharding.dims[d].axes));
  }
  more["axes"] = absl::StrJoin(axes, ";");
  more["sizes"] = std::move(sizes);
  more["parts"] = std::move(parts);
  return more;
}

absl::Status ExpectPosition(const Attributes& attributes, size_t rank) {
  RETURN_IF_ERROR(ExpectAttribute<std::string>(attributes, "axes"));
  RETURN_IF_ERROR(ExpectAttribute<std::vector<int64_t>>(attributes, "sizes"));
  RETURN_IF_ERROR(ExpectAttribute<std::vector<int64_t>>(attributes, "parts"));
  const size_t axes = rank == 0 ? 0 : AxesOf(attributes).size();
  const std::vector<int64_t>& sizes = IntsAttribute(attributes, "sizes");
  const std::vector<int64_t>& parts = IntsAttribute(attributes, "parts");
  if (axes != rank || sizes.size() != rank || parts.size() != rank) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'axes', 'sizes' and 'parts' must have ", rank, " entries, got '",
        StringAttribute(attributes, "axes"), "'"));
  }
  for (size_t d = 0; d < rank; ++d) {
    if (sizes[d] < 0 || sizes[d] > kMaxSize || parts[d] < 0 ||
        parts[d] > kMaxParts) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'sizes' must lie in [0, 2^41] and 'parts' in [0, 2^20], got ",
          sizes[d], " and ", parts[d]));
    }
  }
  return absl::OkStatus();
}

absl::Status ExpectParts(const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "parts"));
  const int64_t parts = IntAttribute(attributes, "parts");
  if (parts >= 1 && parts <= kMaxParts) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("'parts' must lie in [1, 2^20], got ", parts));
}

absl::StatusOr<DeviceGroups*> DevicesOf(const KernelContext& context) {
  auto* const devices = context.run.Get<DeviceGroups>();
  if (devices != nullptr) return devices;
  return absl::FailedPreconditionError(
      "a partitioned program runs on devices of a mesh");
}

absl::StatusOr<int64_t> DeviceIndex(const KernelContext& context) {
  ASSIGN_OR_RETURN(DeviceGroups* const devices, DevicesOf(context));
  return devices->Index(StringAttribute(context.attributes(), "axes"));
}

absl::StatusOr<PartPosition> FindPosition(const KernelContext& context,
                                          const Dims& local) {
  ASSIGN_OR_RETURN(DeviceGroups* const devices, DevicesOf(context));
  const Attributes& attributes = context.attributes();
  const std::vector<absl::string_view> axes = AxesOf(attributes);
  PartPosition position;
  for (size_t d = 0; d < local.size(); ++d) {
    int64_t index = 0;
    if (!axes[d].empty()) {
      ASSIGN_OR_RETURN(index, devices->Index(axes[d]));
    }
    const int64_t size = IntsAttribute(attributes, "sizes")[d];
    position.begin.push_back(index * local[d]);
    position.whole.push_back(
        size > 0 ? size : local[d] * IntsAttribute(attributes, "parts")[d]);
  }
  return position;
}

}  // namespace gshard
