// Priorities of threads. Work that can wait runs on threads that are nice: when
// a thread that is not nice has something to do, Linux takes the core from them
// at once, in the middle of a kernel, and gives them a share of it that keeps
// them going. Where a core is idle they are as fast as any.

#ifndef SERVICES_BASE_THREAD_PRIORITY_H_
#define SERVICES_BASE_THREAD_PRIORITY_H_

#include <cstdint>

namespace gshard {

// The niceness of a thread that gets about `percent` of a core that one other
// thread, as nice as the process is, wants all of. REQUIRES: 1 <= percent
// <= 50.
int NicenessOfShare(int64_t percent);

// Makes the calling thread, and those that it will begin, at least so nice. It
// stays so: the way back needs a privilege. Linux keeps a niceness for each
// thread; where none can be set nothing changes.
void BeNice(int niceness);

// That of the calling thread.
int ThreadNiceness();

}  // namespace gshard

#endif  // SERVICES_BASE_THREAD_PRIORITY_H_
