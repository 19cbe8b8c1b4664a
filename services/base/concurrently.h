// Blocking work on several threads, e.g. reads of files.

#ifndef SERVICES_BASE_CONCURRENTLY_H_
#define SERVICES_BASE_CONCURRENTLY_H_

#include <cstddef>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"

namespace gshard {

// Calls run(i) for each i in [0, count), in any order, on the calling thread
// and up to `threads` - 1 others, which have its nice value and are gone when
// this returns; fewer if no more can be started. After an error no further
// calls begin; returns the first error that was seen. A call that throws
// std::bad_alloc counts as ResourceExhausted. Unlike the bodies of
// ParallelFor(), calls may block. REQUIRES: threads >= 1.
absl::Status RunConcurrently(size_t count, size_t threads,
                             absl::FunctionRef<absl::Status(size_t)> run);

}  // namespace gshard

#endif  // SERVICES_BASE_CONCURRENTLY_H_
