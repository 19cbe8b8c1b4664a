// FailureDomains: which workers fail together, e.g. because they are on one
// machine or in one zone. Pure functions.
//
// A domain has levels, widest first: "zone-a/node-3". Workers with the same
// domain share all levels; those of "zone-a/node-3" and "zone-a/node-4" share
// one. A worker without a domain ("") shares none.

#ifndef SERVICES_CLUSTER_FAILURE_DOMAINS_H_
#define SERVICES_CLUSTER_FAILURE_DOMAINS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace gshard {

inline constexpr size_t kMaxDomainBytes = 256;
inline constexpr size_t kMaxDomainLevels = 4;

// Errors: InvalidArgument unless it is empty, or up to kMaxDomainLevels names
// separated by '/', of letters, digits, '.', '_' and '-', and at most
// kMaxDomainBytes long.
absl::Status ValidateFailureDomain(absl::string_view domain);

class FailureDomains {
 public:
  // [W] valid domains, by worker.
  explicit FailureDomains(absl::Span<const std::string> domains);

  // How near two workers are: 0 if they share nothing, else more than the sum
  // over all pairs of kMaxReplicas replicas that share fewer levels. Sums do
  // not overflow.
  int64_t Nearness(int32_t a, int32_t b) const;

  // Number of distinct domains among `workers`.
  int32_t CountDistinct(absl::Span<const int32_t> workers) const;

 private:
  // [W] per level, the index of the domain up to it; empty for a worker without
  // a domain.
  std::vector<std::vector<int32_t>> levels_;
};

// `count` of the workers, as indices of `domains`: those that share the fewest
// domains, at the widest possible level, in an order in which adjacent ones
// (cyclically) share none, or else as few as possible do. The first ones in
// their own order if none has a domain. REQUIRES: count <= domains.size().
std::vector<int32_t> SpreadOverDomains(absl::Span<const std::string> domains,
                                       size_t count);

}  // namespace gshard

#endif  // SERVICES_CLUSTER_FAILURE_DOMAINS_H_
