// Runs with or without GPUs; without one, expects errors that say so.

#include "services/collectives/nccl_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>

#include "services/base/status_macros.h"
#include "services/collectives/collectives.h"
#include "services/collectives/cuda_status.h"
#include "services/collectives/local_world.h"
#include "tests/services/collectives/collectives_cases.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

int Gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

// One member for each GPU, or a single one without a GPU.
absl::Status OnEveryGpu(
    const std::function<absl::Status(World& world)>& device) {
  return RunOnDevices(std::max(1, Gpus()), [&](World& local) -> absl::Status {
    NcclOptions options;
    options.gpu = local.rank();
    ASSIGN_OR_RETURN(const auto world, NcclWorld::Create(&local, options));
    return device(*world);
  });
}

TEST(NcclWorldTest, CollectivesAreThoseOfThePlainLoopsIfThereIsAGpu) {
  const absl::Status status = OnEveryGpu(RunCollectivesCases);
  if (Gpus() > 0) {
    EXPECT_OK(status);
  } else {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 HasSubstr("no usable GPU")));
  }
}

TEST(NcclWorldTest, AnIdNeedsAGpu) {
  const auto id = NewNcclId();
  if (Gpus() > 0) {
    EXPECT_OK(id);
  } else {
    EXPECT_THAT(id, StatusIs(absl::StatusCode::kFailedPrecondition,
                             HasSubstr("no usable GPU")));
  }
}

TEST(NcclWorldTest, AGpuThatDoesNotExistIsRefused) {
  NcclOptions options;
  options.gpu = Gpus();
  EXPECT_THAT(
      NcclCommunicator::Create(std::string(128, 'x'), 0, 1, options),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr(Gpus() > 0 ? "GPUs of this machine" : "no usable")));
}

TEST(NcclWorldTest, CreateChecksItsArguments) {
  NcclOptions options;
  const std::string id(128, 'x');
  EXPECT_THAT(NcclCommunicator::Create("short", 0, 1, options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("an id of 128 bytes, got 5")));
  EXPECT_THAT(NcclCommunicator::Create(id, 1, 1, options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("got rank 1 of 1")));
  options.timeout = std::chrono::milliseconds(0);
  EXPECT_THAT(
      NcclCommunicator::Create(id, 0, 1, options),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("timeout")));
}

}  // namespace
}  // namespace gshard
