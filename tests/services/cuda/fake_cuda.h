// A GPU for programs that have none: the functions of CUDA's runtime that
// services/cuda calls, and its launches, which run on the emulator. Linked
// instead of the real ones.
//
// What is queued in a stream is done when somebody waits for the stream, not
// before; memory that is freed is overwritten then. So what is used too early,
// or freed too early, shows. Calls for a stream or memory of a GPU that is not
// the thread's current one are a failed CHECK.

#ifndef TESTS_SERVICES_CUDA_FAKE_CUDA_H_
#define TESTS_SERVICES_CUDA_FAKE_CUDA_H_

#include <cstdint>

namespace gshard {

// Of each of two GPUs.
struct FakeCuda {
  int64_t memory_bytes = int64_t{1} << 30;  // that are free
  int major = 9;                            // compute capability
  bool too_old = false;                     // the driver, for the kernels' code
  bool launches_fail = false;  // when they are waited for, and all after them
  bool broken = false;         // since one has

  // In blocks that are allocated.
  int64_t device_bytes = 0;
  int64_t pinned_bytes = 0;
  // Kernels and copies that are queued and not done.
  int64_t pending = 0;
};

// The state that all functions share. Tests of one thread.
FakeCuda& TheFakeCuda();

}  // namespace gshard

#endif  // TESTS_SERVICES_CUDA_FAKE_CUDA_H_
