#include "services/base/standard_streams.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>

namespace gshard {
namespace {

// In a process of its own, which exits with 0 if all is as expected.
[[noreturn]] void CloseAndTake() {
  for (int stream = 0; stream <= 2; ++stream) close(stream);
  TakeClosedStreams();
  char byte = 'a';
  if (read(STDIN_FILENO, &byte, 1) >= 0 || errno != EBADF) exit(1);
  for (const int output : {STDOUT_FILENO, STDERR_FILENO}) {
    if (write(output, &byte, 1) >= 0 || errno != EBADF) exit(2);
  }
  exit(open("/dev/null", O_RDONLY) > STDERR_FILENO ? 0 : 3);
}

TEST(StandardStreamsDeathTest, NoOtherFileGetsTheirNumbers) {
  EXPECT_EXIT(CloseAndTake(), ::testing::ExitedWithCode(0), "");
}

TEST(StandardStreamsTest, OpenOnesAreLeftAlone) {
  const int flags = fcntl(STDERR_FILENO, F_GETFL);
  TakeClosedStreams();
  EXPECT_EQ(fcntl(STDERR_FILENO, F_GETFL), flags);
}

}  // namespace
}  // namespace gshard
