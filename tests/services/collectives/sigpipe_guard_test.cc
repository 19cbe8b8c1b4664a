#include "services/collectives/sigpipe_guard.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace gshard {
namespace {

TEST(SigpipeGuardTest, AWriteThatNobodyReadsIsAnError) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  {
    const SigpipeGuard guard;
    EXPECT_EQ(write(ends[1], "x", 1), -1);
    EXPECT_EQ(errno, EPIPE);
  }
  // The guard leaves no SIGPIPE pending, which would kill this process.
  sigset_t pending;
  sigpending(&pending);
  EXPECT_FALSE(sigismember(&pending, SIGPIPE));
  close(ends[1]);
}

TEST(SigpipeGuardTest, TheMaskIsRestored) {
  { const SigpipeGuard guard; }
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, nullptr, &mask);
  EXPECT_FALSE(sigismember(&mask, SIGPIPE));
}

}  // namespace
}  // namespace gshard
