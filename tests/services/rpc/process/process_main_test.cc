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

using ::testing::ExitedWithCode;

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

template <typename Process = FakeProcess>
int ExitCodeOf(FakeOptions options, const std::vector<std::string>& arguments) {
  Flags flags("gshard_fake", "Does nothing.");
  AddProcessFlags(flags, &options.process);
  return RunProcess<Process>(flags, options, "fake", arguments);
}

// Each in a process of its own, as what is set for all of a process stays.
class ProcessMainDeathTest : public ::testing::Test {
 protected:
  ProcessMainDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(ProcessMainDeathTest, TheExitCodeTellsWrongCallsFromFailures) {
  const auto ends_with = [](int code, const FakeOptions& options,
                            const std::vector<std::string>& arguments,
                            const char* error) {
    EXPECT_EXIT(exit(ExitCodeOf(options, arguments)), ExitedWithCode(code),
                error);
  };
  ends_with(0, {}, {}, "");
  ends_with(0, {}, {"--help"}, "");
  ends_with(2, {}, {"--lissen=unix:/x"}, "lissen");
  ends_with(2, {}, {"--max_calls=none"}, "max_calls");
  FakeOptions nowhere;
  nowhere.process.coordinator = "localhost";
  ends_with(2, nowhere, {}, "--coordinator: address must be");
  // A malformed address to listen at is detected only when the process starts.
  FakeOptions wrong;
  wrong.start = absl::InvalidArgumentError("expected an address");
  ends_with(2, wrong, {}, "expected an address");
  FakeOptions taken;
  taken.start = absl::UnavailableError("the address is in use");
  ends_with(1, taken, {}, "in use");
  // Batch systems try again.
  FakeOptions held;
  held.start = absl::AbortedError("another process has the file");
  ends_with(75, held, {}, "another process");
  // A coordinator's rejection is not a flag error.
  FakeOptions refused;
  refused.end = absl::InvalidArgumentError("no such role");
  ends_with(1, refused, {}, "no such role");
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

TEST_F(ProcessMainDeathTest, AJobThatTakesZeroForDoneIsToldThatItWasKilled) {
  const auto ends_with = [](int code,
                            const std::vector<std::string>& arguments) {
    EXPECT_EXIT(exit(ExitCodeOf<SignalledProcess>({}, arguments)),
                ExitedWithCode(code), "");
  };
  ends_with(0, {});
  ends_with(128 + SIGTERM, {"--exit_as_killed"});
}

TEST_F(ProcessMainDeathTest, NothingGetsTheNumberOfAClosedStream) {
  const auto run = [] {
    close(STDIN_FILENO);
    (void)ExitCodeOf({}, {});
    // As TakeClosedStreams() opens it; gRPC's descriptors can be read.
    exit((fcntl(STDIN_FILENO, F_GETFL) & O_ACCMODE) == O_WRONLY ? 0 : 1);
  };
  EXPECT_EXIT(run(), ExitedWithCode(0), "");
}

}  // namespace
}  // namespace gshard
