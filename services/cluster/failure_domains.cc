#include "services/cluster/failure_domains.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/base/name.h"

namespace gshard {
namespace {

// More than the number of pairs of replicas.
constexpr int64_t kPairs = 256;

// The domain up to `level`; unique to the worker if it has none.
std::string Prefix(absl::Span<const std::string> domains, size_t worker,
                   size_t level) {
  if (domains[worker].empty()) return absl::StrCat("/", worker);
  std::vector<std::string> names = absl::StrSplit(domains[worker], '/');
  names.resize(std::min(names.size(), level));
  return absl::StrJoin(names, "/");
}

// `count` workers, ascending, of which each is chosen as far as possible from
// those before it.
std::vector<int32_t> FarApart(absl::Span<const std::string> domains,
                              size_t count) {
  const FailureDomains all(domains);
  std::vector<int64_t> nearness(domains.size());
  std::vector<int32_t> left(domains.size()), chosen;
  std::iota(left.begin(), left.end(), 0);
  if (count == left.size()) return left;
  while (chosen.size() < count) {
    const auto next = std::min_element(
        left.begin(), left.end(),
        [&](int32_t a, int32_t b) { return nearness[a] < nearness[b]; });
    chosen.push_back(*next);
    left.erase(next);
    for (const int32_t w : left) nearness[w] += all.Nearness(w, chosen.back());
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace

absl::Status ValidateFailureDomain(absl::string_view domain) {
  if (domain.empty()) return absl::OkStatus();
  const std::vector<std::string> names = absl::StrSplit(domain, '/');
  const auto is_sound = [](const std::string& name) {
    return !name.empty() &&
           std::all_of(name.begin(), name.end(), IsNameCharacter);
  };
  if (domain.size() <= kMaxDomainBytes && names.size() <= kMaxDomainLevels &&
      std::all_of(names.begin(), names.end(), is_sound)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "failure_domain: expected 1 to ", kMaxDomainLevels,
      " names of letters, digits, '.', '_' or '-' with '/' between them, at "
      "most ",
      kMaxDomainBytes, " bytes, got \"",
      absl::CHexEscape(domain.substr(0, kMaxDomainBytes)), "\""));
}

FailureDomains::FailureDomains(absl::Span<const std::string> domains)
    : levels_(domains.size()) {
  std::map<std::string, int32_t> numbers;
  for (size_t w = 0; w < domains.size(); ++w) {
    if (domains[w].empty()) continue;
    const auto depth = static_cast<size_t>(
        std::count(domains[w].begin(), domains[w].end(), '/'));
    for (size_t level = 1; level <= depth + 1; ++level) {
      const auto number = static_cast<int32_t>(numbers.size());
      levels_[w].push_back(
          numbers.emplace(Prefix(domains, w, level), number).first->second);
    }
  }
}

int64_t FailureDomains::Nearness(int32_t a, int32_t b) const {
  const std::vector<int32_t>& of_a = levels_[a];
  const std::vector<int32_t>& of_b = levels_[b];
  int64_t nearness = 0;
  for (size_t i = 0; i < std::min(of_a.size(), of_b.size()); ++i) {
    if (of_a[i] != of_b[i]) break;
    nearness = nearness == 0 ? 1 : nearness * kPairs;
  }
  return nearness;
}

int32_t FailureDomains::CountDistinct(absl::Span<const int32_t> workers) const {
  std::set<int32_t> distinct;
  int32_t without = 0;
  for (const int32_t w : workers) {
    if (levels_[w].empty()) {
      ++without;
    } else {
      distinct.insert(levels_[w].back());
    }
  }
  return without + static_cast<int32_t>(distinct.size());
}

std::vector<int32_t> SpreadOverDomains(absl::Span<const std::string> domains,
                                       size_t count) {
  const std::vector<int32_t> chosen = FarApart(domains, count);
  std::vector<int32_t> order = chosen;
  if (std::all_of(chosen.begin(), chosen.end(),
                  [&](int32_t w) { return domains[w].empty(); })) {
    return order;
  }
  for (size_t level = 1; level <= kMaxDomainLevels; ++level) {
    std::map<std::string, std::vector<int32_t>> groups;
    for (const int32_t w : chosen) {
      groups[Prefix(domains, w, level)].push_back(w);
    }
    std::vector<std::vector<int32_t>> by_size;
    for (auto& [domain, workers] : groups) by_size.push_back(workers);
    std::stable_sort(
        by_size.begin(), by_size.end(),
        [](const auto& a, const auto& b) { return a.size() > b.size(); });
    // Fill every other place first, which separates neighbours in this order.
    size_t place = 0;
    for (const std::vector<int32_t>& workers : by_size) {
      for (const int32_t w : workers) {
        order[place] = w;
        place += 2;
        if (place >= count && place % 2 == 0) place = 1;
      }
    }
    if (by_size.front().size() <= count / 2) break;
  }
  return order;
}

}  // namespace gshard
