#include "tests/services/collectives/local_group.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

// Up to this many bytes in total, the last member to arrive copies for
// everyone, and the others need not synchronize again before they reuse their
// send buffers.
constexpr size_t kOneCopiesBytes = size_t{1} << 16;

}  // namespace

LocalGroup::LocalGroup(int size) : size_(size), members_(size) {}

absl::Status LocalGroup::CheckSizes() const {
  const int n = size();
  for (int from = 0; from < n; ++from) {
    for (int to = 0; to < n; ++to) {
      const size_t sent = members_[from].send[to].size;
      const size_t expected = members_[to].receive[from].size;
      if (sent != expected) {
        return absl::InvalidArgumentError(
            absl::StrCat("rank ", to, " expected ", expected,
                         " bytes from rank ", from, ", which sent ", sent));
      }
    }
  }
  return absl::OkStatus();
}

size_t LocalGroup::TotalBytes() const {
  size_t total = 0;
  for (const Member& member : members_) {
    for (const SendBytes& bytes : member.send) total += bytes.size;
  }
  return total;
}

void LocalGroup::CopyTo(int rank) const {
  for (int from = 0; from < size(); ++from) {
    const ReceiveBytes& to = members_[rank].receive[from];
    const void* data = members_[from].send[rank].data;
    if (to.size > 0 && to.data != data) std::memcpy(to.data, data, to.size);
  }
}

absl::Status LocalGroup::Exchange(int rank, absl::Span<const SendBytes> send,
                                  absl::Span<const ReceiveBytes> receive) {
  MutexLock lock(mutex_);
  RETURN_IF_ERROR(broken_);
  members_[rank] = {send, receive};
  const uint64_t mine = exchange_;
  if (++came_ < size()) {
    all_came_.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return exchange_ != mine || !broken_.ok();
    });
    // If the group broke first, the others never read this member's data.
    if (exchange_ == mine) return broken_;
  } else {
    came_ = 0;
    copied_ = 0;
    outcome_ = CheckSizes();
    each_copies_ = outcome_.ok() && TotalBytes() > kOneCopiesBytes;
    if (outcome_.ok() && !each_copies_) {
      for (int r = 0; r < size(); ++r) CopyTo(r);
    }
    ++exchange_;
    lock.Unlock();
    all_came_.NotifyAll();
    lock.Lock();
  }
  // No later exchange can complete, and change these, before this member enters
  // it.
  if (!each_copies_) return outcome_;

  lock.Unlock();
  CopyTo(rank);
  lock.Lock();
  // Others may still read this member's data. All of them have arrived and wait
  // for nothing else, so not even a break ends this wait early.
  if (++copied_ < size()) {
    all_copied_.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return copied_exchange_ > mine;
    });
  } else {
    copied_exchange_ = exchange_;
    lock.Unlock();
    all_copied_.NotifyAll();
  }
  return absl::OkStatus();
}

void LocalGroup::Break(const absl::Status& why) {
  {
    MutexLock lock(mutex_);
    if (!broken_.ok()) return;
    broken_ = why;
  }
  all_came_.NotifyAll();
}

}  // namespace gshard
