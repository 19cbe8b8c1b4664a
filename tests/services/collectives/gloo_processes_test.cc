// Gloo between processes: results against plain loops, and a killed member.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <string>
#include <vector>

#include "services/base/status_macros.h"
#include "services/collectives/collectives.h"
#include "tests/services/collectives/collectives_cases.h"
#include "tests/testing/gloo_members.h"
#include "tests/testing/process_group.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

absl::Status RunCases(World& world, const std::string&) {
  return RunCollectivesCases(world);
}

// Runs all-reduces; with `dies`, the process is killed before the fourth.
absl::Status SumSteps(World& world, bool dies) {
  ASSIGN_OR_RETURN(Communicator* const comm, WholeGroup(world));
  // Larger than the buffers of a connection, so that the other members are in
  // the middle of a transfer when one dies.
  const Tensor big = Tensor::Zeros(ElementType::kFloat32, {1 << 20});
  for (int step = 0; step < 100; ++step) {
    if (dies && step == 3) raise(SIGKILL);
    RETURN_IF_ERROR(AllReduce(*comm, big).status());
  }
  return absl::OkStatus();
}

class GlooProcesses : public ::testing::TestWithParam<int> {};

TEST_P(GlooProcesses, CollectivesAreThoseOfThePlainLoops) {
  const RendezvousFolder folder;
  const std::vector<std::string> names(GetParam(), "cases");
  for (const absl::Status& status : RunProcesses(names, folder.path())) {
    EXPECT_OK(status);
  }
}

INSTANTIATE_TEST_SUITE_P(, GlooProcesses, ::testing::Values(2, 3, 4));

TEST(GlooProcessesTest, AKilledMemberIsMissedByAll) {
  const RendezvousFolder folder;
  const auto statuses =
      RunProcesses({"survive", "die", "survive"}, folder.path());
  EXPECT_THAT(statuses[1],
              StatusIs(absl::StatusCode::kUnknown, HasSubstr("exit code 137")));
  for (const int rank : {0, 2}) {
    EXPECT_THAT(statuses[rank],
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("of 3")));
  }
}

}  // namespace
}  // namespace gshard

int main(int argc, char** argv) {
  const auto sum_steps = [](bool dies) {
    return [dies](gshard::World& world, const std::string&) {
      return gshard::SumSteps(world, dies);
    };
  };
  return gshard::ProcessGroupMain(argc, argv,
                                  {{"cases", gshard::RunCases},
                                   {"survive", sum_steps(false)},
                                   {"die", sum_steps(true)}});
}
