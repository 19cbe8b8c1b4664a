// LogBudget: limits the lines per second of one kind and counts the rest.
//
//   static LogBudget budget(20);
//   if (const auto missed = budget.Take()) {
//     LogInfo("a call ended", {{"lines_left_out", *missed}, ...});
//   }

#ifndef SERVICES_BASE_LOG_BUDGET_H_
#define SERVICES_BASE_LOG_BUDGET_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

namespace gshard {

// Thread-safe; implies no ordering between threads, so that it hides no race
// from ThreadSanitizer.
class LogBudget {
 public:
  explicit LogBudget(int64_t lines_per_second) : limit_(lines_per_second) {}

  // The number of lines dropped since the last one that was logged, or nothing
  // if this line is to be dropped, too.
  std::optional<int64_t> Take(std::chrono::steady_clock::time_point now =
                                  std::chrono::steady_clock::now()) {
    const int64_t second =
        std::chrono::duration_cast<std::chrono::seconds>(now.time_since_epoch())
            .count();
    if (second_.exchange(second, std::memory_order_relaxed) != second) {
      used_.store(0, std::memory_order_relaxed);
    }
    if (used_.fetch_add(1, std::memory_order_relaxed) < limit_) {
      return left_out_.exchange(0, std::memory_order_relaxed);
    }
    left_out_.fetch_add(1, std::memory_order_relaxed);
    return std::nullopt;
  }

 private:
  const int64_t limit_;
  std::atomic<int64_t> second_{-1};
  std::atomic<int64_t> used_{0};
  std::atomic<int64_t> left_out_{0};
};

}  // namespace gshard

#endif  // SERVICES_BASE_LOG_BUDGET_H_
