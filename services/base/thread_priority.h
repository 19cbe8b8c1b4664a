// Thread priorities. Work that can wait runs on threads with a positive nice
// value: when a normal thread becomes runnable, Linux preempts them at once, in
// the middle of a kernel, but leaves them a share of the core that prevents
// starvation. On an idle core they run at full speed.

#ifndef SERVICES_BASE_THREAD_PRIORITY_H_
#define SERVICES_BASE_THREAD_PRIORITY_H_

#include <cstdint>

namespace gshard {

// The nice value at which a thread gets about `percent` of a core when a
// CPU-bound thread of the process's own nice value competes for it. REQUIRES: 1
// <= percent <= 50.
int NicenessOfShare(int64_t percent);

// Raises the nice value of the calling thread, and of those that it starts
// later, to at least `niceness`. Lowering it again needs a privilege. On Linux
// nice values are per thread; does nothing if it cannot be set.
void BeNice(int niceness);

// The nice value of the calling thread.
int ThreadNiceness();

}  // namespace gshard

#endif  // SERVICES_BASE_THREAD_PRIORITY_H_
