// An LD_PRELOAD library that shifts one process's wall clock by the seconds in
// the file named by GSHARD_CLOCK_SHIFT_FILE, which may change at any time.
// Without a file, no shift. The steady clock is unaffected.

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

namespace {

template <typename Function>
Function* Real(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

time_t Shift() {
  static const char* const path = getenv("GSHARD_CLOCK_SHIFT_FILE");
  if (path == nullptr) return 0;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  char text[32] = {};
  const ssize_t length = read(file, text, sizeof text - 1);
  close(file);
  return length > 0 ? strtol(text, nullptr, 10) : 0;
}

// Converts a time of the shifted clock to the kernel's clock.
timespec Unshifted(const timespec& time) {
  return {.tv_sec = time.tv_sec - Shift(), .tv_nsec = time.tv_nsec};
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  static auto* const real = Real<int(clockid_t, timespec*)>("clock_gettime");
  const int result = real(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += Shift();
  return result;
}

int gettimeofday(timeval* now, void* zone) noexcept {
  static auto* const real = Real<int(timeval*, void*)>("gettimeofday");
  const int result = real(now, zone);
  now->tv_sec += Shift();
  return result;
}

time_t time(time_t* out) noexcept {
  timespec now = {};
  clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}

// The functions below wait until a wall-clock time.

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex,
                           const timespec* end) {
  static auto* const real =
      Real<int(pthread_cond_t*, pthread_mutex_t*, const timespec*)>(
          "pthread_cond_timedwait");
  const timespec unshifted = Unshifted(*end);
  return real(condition, mutex, &unshifted);
}

// Abseil, and therefore gRPC, waits by this system call.
long syscall(long number, ...) noexcept {
  static auto* const real = Real<long(long, ...)>("syscall");
  va_list list;
  va_start(list, number);
  long argument[6];
  for (long& value : argument) value = va_arg(list, long);
  va_end(list);
  timespec unshifted;
  auto* const end = reinterpret_cast<const timespec*>(argument[3]);
  if (number == SYS_futex && (argument[1] & FUTEX_CLOCK_REALTIME) != 0 &&
      end != nullptr) {
    unshifted = Unshifted(*end);
    argument[3] = reinterpret_cast<long>(&unshifted);
  }
  return real(number, argument[0], argument[1], argument[2], argument[3],
              argument[4], argument[5]);
}

}  // extern "C"
