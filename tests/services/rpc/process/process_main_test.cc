#include "services/rpc/process/process_main.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <future>
#include <string>
#include <vector>

namespace gshard {
namespace {

// A process that starts and ends with the given statuses.
struct FakeOptions {
  ProcessOptions process;
  absl::Status start;
  absl::Status end;
};

class FakeProcess {
 public:
  explicit FakeProcess(const FakeOptions& options) : options_(options) {}

  absl::Status Start() { return options_.start; }
  absl::Status Wait() { return options_.end; }
  void Drain(std::chrono::seconds, std::chrono::milliseconds) {}
  static const char* Service() { return "fake"; }

 private:
  const FakeOptions options_;
};

int ExitCodeOf(FakeOptions options, const std::vector<std::string>& arguments) {
  Flags flags("gshard_fake", "Does nothing.");
  AddProcessFlags(flags, &options.process);
  return RunProcess<FakeProcess>(flags, options, "fake", arguments);
}

TEST(ProcessMainTest, TheExitCodeTellsWrongCallsFromFailures) {
  EXPECT_EQ(ExitCodeOf({}, {}), 0);
  EXPECT_EQ(ExitCodeOf({}, {"--help"}), 0);
  EXPECT_EQ(ExitCodeOf({}, {"--lissen=unix:/x"}), 2);
  EXPECT_EQ(ExitCodeOf({}, {"--max_calls=none"}), 2);
  FakeOptions nowhere;
  nowhere.process.coordinator = "localhost";
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(ExitCodeOf(nowhere, {}), 2);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::HasSubstr("--coordinator: address must be"));
  // A malformed address to listen at is detected only when the process starts.
  FakeOptions wrong;
  wrong.start = absl::InvalidArgumentError("expected an address");
  EXPECT_EQ(ExitCodeOf(wrong, {}), 2);
  FakeOptions taken;
  taken.start = absl::UnavailableError("the address is in use");
  EXPECT_EQ(ExitCodeOf(taken, {}), 1);
  // Batch systems try again.
  FakeOptions held;
  held.start = absl::AbortedError("another process has the file");
  EXPECT_EQ(ExitCodeOf(held, {}), 75);
  // A coordinator's rejection is not a flag error.
  FakeOptions refused;
  refused.end = absl::InvalidArgumentError("no such role");
  EXPECT_EQ(ExitCodeOf(refused, {}), 1);
}

// A process that is told to end when it has started.
class SignalledProcess {
 public:
  explicit SignalledProcess(const FakeOptions&) {}

  absl::Status Start() {
    kill(getpid(), SIGTERM);
    return absl::OkStatus();
  }
  absl::Status Wait() {
    drained_.get_future().wait();
    return absl::OkStatus();
  }
  void Drain(std::chrono::seconds, std::chrono::milliseconds) {
    drained_.set_value();
  }
  static const char* Service() { return "fake"; }

 private:
  std::promise<void> drained_;
};

TEST(ProcessMainTest, AJobThatWouldTakeZeroForDoneIsToldThatItWasKilled) {
  const auto exit_code = [](const std::vector<std::string>& arguments) {
    FakeOptions options;
    Flags flags("gshard_fake", "Does nothing.");
    AddProcessFlags(flags, &options.process);
    return RunProcess<SignalledProcess>(flags, options, "fake", arguments);
  };
  EXPECT_EQ(exit_code({}), 0);
  EXPECT_EQ(exit_code({"--exit_as_killed"}), 128 + SIGTERM);
}

TEST(ProcessMainDeathTest, NothingGetsTheNumberOfAClosedStream) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto run = [] {
    close(STDIN_FILENO);
    (void)ExitCodeOf({}, {});
    // As TakeClosedStreams() opens it; gRPC's descriptors can be read.
    exit((fcntl(STDIN_FILENO, F_GETFL) & O_ACCMODE) == O_WRONLY ? 0 : 1);
  };
  EXPECT_EXIT(run(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gshard
