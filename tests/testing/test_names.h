// TestNames: the names of hosts that end in ".test", which lead where the test
// says. Programs that link this have gRPC ask getaddrinfo(), and one of its own
// in place of the C library's.

#ifndef TESTS_TESTING_TEST_NAMES_H_
#define TESTS_TESTING_TEST_NAMES_H_

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/base/mutex.h"

namespace gshard {

// All have one address. Thread-safe.
class TestNames {
 public:
  using Clock = std::chrono::steady_clock;

  static TestNames& Get();

  // Empty: they have none.
  void LeadTo(absl::string_view address);

  // When they were resolved since LeadTo(), once that was so many times.
  std::vector<Clock::time_point> Asked(size_t times);

  // Called by getaddrinfo().
  std::string Resolve();

 private:
  Mutex mutex_;
  CondVar changed_;
  std::string address_ ABSL_GUARDED_BY(mutex_);
  std::vector<Clock::time_point> asked_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace gshard

#endif  // TESTS_TESTING_TEST_NAMES_H_
