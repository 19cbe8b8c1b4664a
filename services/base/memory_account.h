// MemoryAccount: a byte budget shared by several users. Each reserves what it
// needs before using it, or is refused, and keeps it until it releases its
// share.
//
//   MemoryAccount account(1 << 30);
//   MemoryShare share(account);
//   if (!share.Take(bytes)) return absl::ResourceExhaustedError(...);

#ifndef SERVICES_BASE_MEMORY_ACCOUNT_H_
#define SERVICES_BASE_MEMORY_ACCOUNT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

namespace gshard {

// A handle: copies refer to the same account. Thread-safe.
class MemoryAccount {
 public:
  // Implicit: a number of bytes makes a separate account.
  MemoryAccount(int64_t bytes) : state_(std::make_shared<State>(bytes)) {}

  int64_t used() const { return state_->used; }
  int64_t free() const { return state_->bytes - used(); }

 private:
  friend class MemoryShare;
  struct State {
    explicit State(int64_t most) : bytes(most) {}
    const int64_t bytes;
    std::atomic<int64_t> used{0};
  };

  const std::shared_ptr<State> state_;
};

// One user's reservation in an account. Not thread-safe.
class MemoryShare {
 public:
  explicit MemoryShare(const MemoryAccount& account) : state_(account.state_) {}
  ~MemoryShare() { Return(); }
  MemoryShare(MemoryShare&& other) noexcept
      : state_(other.state_), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryShare& operator=(MemoryShare&&) = delete;

  // Reserves `bytes` more; false, reserving none, if fewer are free.
  bool Take(int64_t bytes) {
    int64_t used = state_->used;
    do {
      if (bytes > state_->bytes - used) return false;
    } while (!state_->used.compare_exchange_weak(used, used + bytes));
    bytes_ += bytes;
    return true;
  }

  // Releases all, or what exceeds `bytes`.
  void Return(int64_t bytes = 0) {
    if (bytes < bytes_) state_->used -= std::exchange(bytes_, bytes) - bytes;
  }

  int64_t bytes() const { return bytes_; }

 private:
  const std::shared_ptr<MemoryAccount::State> state_;
  int64_t bytes_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_BASE_MEMORY_ACCOUNT_H_
