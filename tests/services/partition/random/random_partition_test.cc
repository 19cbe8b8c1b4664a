// Random shapes and shardings of every operator: on 1, 2, 3, 4 and 8 devices,
// the partitioned program computes the same results and gradients as the whole
// one, whatever padding holds.
//
// A failure prints its family and seed. To run that case alone:
//
//   export GSHARD_SEED=137
//   build/dev/tests/partition_random_test --gtest_filter='*/einsum'
//
// GSHARD_CASES=20000 overrides the number of cases of each family.

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include "tests/services/partition/random/random_case.h"

namespace gshard {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

class RandomPartitionTest : public ::testing::TestWithParam<Family> {};

TEST_P(RandomPartitionTest, ComputesWhatTheWholeProgramDoes) {
  uint64_t first = 0, count = FromEnvironment("GSHARD_CASES", GetParam().cases);
  if (std::getenv("GSHARD_SEED") != nullptr) {
    first = FromEnvironment("GSHARD_SEED", 0);
    count = 1;
  }
  std::printf("%s: seeds %llu to %llu\n", GetParam().name.c_str(),
              static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + count - 1));
  int failures = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const std::string failure = Check(MakeCase(GetParam(), seed));
    // The first failures are the most informative.
    if (!failure.empty() && ++failures <= 3) ADD_FAILURE() << failure;
  }
  EXPECT_EQ(failures, 0) << "of " << count << " cases";
}

INSTANTIATE_TEST_SUITE_P(Families, RandomPartitionTest,
                         ::testing::ValuesIn(AllFamilies()),
                         [](const auto& info) { return info.param.name; });

TEST(RandomPartitionSuiteTest, HasTenThousandCases) {
  int cases = 0;
  for (const Family& family : AllFamilies()) cases += family.cases;
  EXPECT_GE(cases, 10000);
}

}  // namespace
}  // namespace gshard
