#include "services/rpc/shared/shared_bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace gshard {

void RingBell(SharedMemory::Words& words) {
  words.bell.fetch_add(1);
  ::syscall(SYS_futex, &words.bell, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

void RingBellFor(SharedMemory::Words& words, uint32_t what) {
  // Either this load sees the store in AnnounceSleep(), or the sleeper's last
  // check sees the published event: all four accesses are sequentially
  // consistent.
  if ((words.wants & what) == 0) return;
  // Ring once for each sleep.
  if (words.wants.exchange(0) != 0) RingBell(words);
}

void AnnounceSleep(SharedMemory::Words& words, uint32_t wants) {
  words.wants = wants;
}

void SleepUntilRung(SharedMemory::Words& words, uint32_t heard,
                    std::optional<std::chrono::milliseconds> most) {
  timespec time = {};
  if (most.has_value()) {
    time.tv_sec = most->count() / 1000;
    time.tv_nsec = most->count() % 1000 * 1'000'000;
  }
  ::syscall(SYS_futex, &words.bell, FUTEX_WAIT, heard,
            most.has_value() ? &time : nullptr, nullptr, 0);
}

}  // namespace gshard
