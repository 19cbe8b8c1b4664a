// CHECK terminates the process on a programming error. Never use it on input
// from a caller, a file or the wire: report those as absl::Status.

#ifndef SERVICES_BASE_CHECK_H_
#define SERVICES_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                    \
  do {                                                                      \
    if (!(condition)) {                                                     \
      std::fprintf(stderr, "%s:%d: CHECK failed: %s\n", __FILE__, __LINE__, \
                   #condition);                                             \
      std::abort();                                                         \
    }                                                                       \
  } while (false)

#endif  // SERVICES_BASE_CHECK_H_
