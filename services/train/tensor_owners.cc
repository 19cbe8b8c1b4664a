#include "services/train/tensor_owners.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"

namespace gshard {

TensorOwners DivideAmong(const std::vector<ParameterSpec>& specs, int members) {
  CHECK(members >= 1);
  std::vector<const ParameterSpec*> largest_first;
  for (const ParameterSpec& spec : specs) largest_first.push_back(&spec);
  std::sort(largest_first.begin(), largest_first.end(),
            [](const ParameterSpec* a, const ParameterSpec* b) {
              const int64_t a_size = NumElements(a->dims);
              const int64_t b_size = NumElements(b->dims);
              return a_size != b_size ? a_size > b_size : a->name < b->name;
            });
  TensorOwners owners(members);
  std::vector<int64_t> load(members, 0);
  for (const ParameterSpec* spec : largest_first) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += NumElements(spec->dims);
    owners[least - load.begin()].push_back(spec->name);
  }
  for (std::vector<std::string>& names : owners) {
    std::sort(names.begin(), names.end());
  }
  return owners;
}

absl::Status CheckOwners(const std::vector<ParameterSpec>& specs,
                         const TensorOwners& owners) {
  std::set<std::string> left;
  for (const ParameterSpec& spec : specs) left.insert(spec.name);
  for (size_t rank = 0; rank < owners.size(); ++rank) {
    for (const std::string& name : owners[rank]) {
      if (left.erase(name) > 0) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("tensor '", name, "' of member ", rank,
                       ": unknown, or another one's too"));
    }
  }
  if (left.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", *left.begin(), "' has no owner"));
}

}  // namespace gshard
