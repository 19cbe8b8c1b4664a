#include "services/cluster/placement.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

absl::Status CheckSizes(int64_t num_experts, int64_t num_workers,
                        int64_t version) {
  if (num_experts < 0 || num_experts > kMaxPlacedExperts) {
    return absl::InvalidArgumentError(
        absl::StrCat("placement: expected 0 to ", kMaxPlacedExperts,
                     " experts, got ", num_experts));
  }
  if (num_workers < 1 || num_workers > kMaxPlacedWorkers) {
    return absl::InvalidArgumentError(
        absl::StrCat("placement: expected 1 to ", kMaxPlacedWorkers,
                     " workers, got ", num_workers));
  }
  if (version < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "placement: expected a version of at least 0, got ", version));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Placement> Place(int32_t num_experts, int32_t num_workers,
                                int64_t version) {
  RETURN_IF_ERROR(CheckSizes(num_experts, num_workers, version));
  Placement placement;
  placement.version = version;
  placement.experts_of_worker.resize(num_workers);
  int32_t expert = 0;
  for (int32_t w = 0; w < num_workers; ++w) {
    const int32_t count =
        num_experts / num_workers + (w < num_experts % num_workers ? 1 : 0);
    for (int32_t i = 0; i < count; ++i) {
      placement.experts_of_worker[w].push_back(expert++);
    }
  }
  return placement;
}

absl::Status ValidatePlacement(const Placement& placement,
                               int32_t num_experts) {
  RETURN_IF_ERROR(CheckSizes(
      num_experts, static_cast<int64_t>(placement.experts_of_worker.size()),
      placement.version));
  constexpr int32_t kNobody = -1;
  std::vector<int32_t> holder(num_experts, kNobody);
  for (int32_t w = 0; w < placement.num_workers(); ++w) {
    int32_t previous = -1;
    for (const int32_t expert : placement.experts_of_worker[w]) {
      if (expert < 0 || expert >= num_experts) {
        return absl::InvalidArgumentError(
            absl::StrCat("placement: worker ", w, " expected experts below ",
                         num_experts, ", got ", expert));
      }
      if (holder[expert] != kNobody) {
        return absl::InvalidArgumentError(absl::StrCat(
            "placement: expected expert ", expert, " once, got it on workers ",
            holder[expert], " and ", w));
      }
      if (expert < previous) {
        return absl::InvalidArgumentError(
            absl::StrCat("placement: worker ", w,
                         " expected experts in increasing order, "
                         "got ",
                         expert, " after ", previous));
      }
      holder[expert] = w;
      previous = expert;
    }
  }
  for (int32_t e = 0; e < num_experts; ++e) {
    if (holder[e] == kNobody) {
      return absl::InvalidArgumentError(absl::StrCat(
          "placement: expected expert ", e, " on a worker, got it on none"));
    }
  }
  return absl::OkStatus();
}

}  // namespace gshard
