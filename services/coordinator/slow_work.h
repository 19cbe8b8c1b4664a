// SlowWork: work that waits for disks or other programs, done on a thread that
// may, and handed back to the one whose state it is for.

#ifndef SERVICES_COORDINATOR_SLOW_WORK_H_
#define SERVICES_COORDINATOR_SLOW_WORK_H_

#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>

#include "absl/status/statusor.h"
#include "services/coordinator/task_queue.h"

namespace gshard {

// Runs `work` on `slow`, and `done` with its result on `queue`, neither if
// `stop` is requested before: from then on nothing is kept of a result, not
// even until its turn on `queue` comes. `work` may end early by `stop`.
template <typename Result>
void DoSlowWork(TaskQueue& slow, TaskQueue& queue, std::stop_token stop,
                std::function<absl::StatusOr<Result>(std::stop_token)> work,
                std::function<void(absl::StatusOr<Result>)> done) {
  slow.Post([&queue, stop, work = std::move(work), done = std::move(done)] {
    if (stop.stop_requested()) return;
    auto result =
        std::make_shared<std::optional<absl::StatusOr<Result>>>(work(stop));
    using Drop = std::stop_callback<std::function<void()>>;
    auto drop = std::make_shared<Drop>(stop, [result] { result->reset(); });
    queue.Post([done, result, drop = std::move(drop)]() mutable {
      drop = nullptr;  // from here on the result is ours
      if (result->has_value()) done(std::move(**result));
    });
  });
}

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_SLOW_WORK_H_
