#include "services/base/concurrently.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "services/base/mutex.h"

namespace gshard {
namespace {

absl::Status Call(absl::FunctionRef<absl::Status(size_t)> run, size_t i) {
  try {
    return run(i);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory");
  }
}

}  // namespace

absl::Status RunConcurrently(size_t count, size_t threads,
                             absl::FunctionRef<absl::Status(size_t)> run) {
  std::atomic<size_t> next{0};
  Mutex mutex;
  absl::Status status;
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) {
      const absl::Status done = Call(run, i);
      if (done.ok()) continue;
      next = count;
      MutexLock lock(mutex);
      status.Update(done);
    }
  };
  std::vector<std::jthread> others;
  for (size_t t = 1; t < std::min(count, threads); ++t) {
    try {
      others.emplace_back(work);
    } catch (const std::system_error&) {
      break;  // no more threads: those that are there do it
    }
  }
  work();
  others.clear();
  return status;
}

}  // namespace gshard
