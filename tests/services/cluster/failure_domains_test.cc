#include "services/cluster/failure_domains.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

TEST(FailureDomainTest, HasNamesWithSlashesBetweenThem) {
  for (const char* sound : {"", "node-3", "zone_a/rack.1/node-3", "a/b/c/d"}) {
    EXPECT_OK(ValidateFailureDomain(sound));
  }
  for (const std::string& bad :
       {std::string("/"), std::string("a/"), std::string("/a"),
        std::string("a//b"), std::string("a b"), std::string("a\n"),
        std::string("a/b/c/d/e"), std::string("\xff"),
        std::string(kMaxDomainBytes + 1, 'a')}) {
    EXPECT_THAT(
        ValidateFailureDomain(bad),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("expected 1")))
        << bad;
  }
  EXPECT_OK(ValidateFailureDomain(std::string(kMaxDomainBytes, 'a')));
}

TEST(FailureDomainsTest, NearIsWhatSharesLevels) {
  const std::vector<std::string> domains = {"a/1", "a/1", "a/2", "b/1",
                                            "a",   "",    ""};
  const FailureDomains of(domains);
  EXPECT_EQ(of.Nearness(0, 3), 0);
  EXPECT_EQ(of.Nearness(0, 5), 0);
  EXPECT_EQ(of.Nearness(5, 6), 0);
  EXPECT_GT(of.Nearness(0, 2), 0);
  EXPECT_EQ(of.Nearness(0, 4), of.Nearness(0, 2));
  // One pair on a node outweighs all 120 pairs of 16 replicas in a zone.
  EXPECT_GT(of.Nearness(0, 1), 120 * of.Nearness(0, 2));
  EXPECT_EQ(of.CountDistinct({0, 1}), 1);
  EXPECT_EQ(of.CountDistinct({0, 2, 3, 4, 5, 6}), 6);
  EXPECT_EQ(of.CountDistinct({}), 0);
}

// The number of neighbours in the ring that have the same domain.
int CountNeighbours(const std::vector<std::string>& domains,
                    const std::vector<int32_t>& order) {
  int shared = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const std::string& a = domains[order[i]];
    const std::string& b = domains[order[(i + 1) % order.size()]];
    shared += order.size() > 1 && !a.empty() && a == b;
  }
  return shared;
}

TEST(SpreadOverDomainsTest, NeighboursAreInDifferentOnesWhereThatCanBe) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    std::vector<std::string> domains(1 + RandomBelow(seed, 0, 12));
    const uint64_t kinds = 1 + RandomBelow(seed, 1, 4);
    std::map<std::string, size_t> sizes;
    for (size_t w = 0; w < domains.size(); ++w) {
      const uint64_t kind = RandomBelow(seed, 10 + w, kinds + 1);
      if (kind > 0) ++sizes[domains[w] = absl::StrCat("node-", kind)];
    }
    std::vector<int32_t> order = SpreadOverDomains(domains, domains.size());
    size_t largest = 0;
    for (const auto& [domain, size] : sizes) largest = std::max(largest, size);
    if (largest <= domains.size() / 2) {
      EXPECT_EQ(CountNeighbours(domains, order), 0);
    }
    std::sort(order.begin(), order.end());
    for (size_t w = 0; w < order.size(); ++w) {
      EXPECT_EQ(order[w], static_cast<int32_t>(w));
    }
  }
}

TEST(SpreadOverDomainsTest, TheWidestLevelAtWhichItCanBe) {
  EXPECT_THAT(SpreadOverDomains({"", "", ""}, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(SpreadOverDomains({"a/1", "a/2", "b/1", "b/2"}, 4),
              ElementsAre(0, 2, 1, 3));
  // All are in one zone, so nodes count.
  EXPECT_THAT(SpreadOverDomains({"a/1", "a/1", "a/2", "a/2"}, 4),
              ElementsAre(0, 2, 1, 3));
  EXPECT_THAT(SpreadOverDomains({"a", "a"}, 2), ElementsAre(0, 1));
}

TEST(SpreadOverDomainsTest, OfMoreWorkersThoseInMostDomainsAreTaken) {
  EXPECT_THAT(SpreadOverDomains({"", "", ""}, 2), ElementsAre(0, 1));
  EXPECT_THAT(SpreadOverDomains({"a", "a", "a", "b", "c"}, 3),
              UnorderedElementsAre(0, 3, 4));
  EXPECT_THAT(SpreadOverDomains({"a/1", "a/1", "a/2", "b/1"}, 2),
              UnorderedElementsAre(0, 3));
  EXPECT_THAT(SpreadOverDomains({"a/1", "a/1", "a/2", "b/1"}, 3),
              UnorderedElementsAre(0, 2, 3));
  EXPECT_THAT(SpreadOverDomains({"a", "b"}, 0), IsEmpty());
}

}  // namespace
}  // namespace gshard
