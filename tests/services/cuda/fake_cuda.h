// A fake GPU for programs without one: the functions of CUDA's runtime that
// services/cuda calls, and its launches, which run on the emulator. Linked
// instead of the real ones.
//
// Work queued in a stream is done only when a caller waits for the stream, and
// freed memory is overwritten only then, so premature use and premature frees
// show. A CHECK fails if a call names a stream or memory of a GPU other than
// the thread's current one.

#ifndef TESTS_SERVICES_CUDA_FAKE_CUDA_H_
#define TESTS_SERVICES_CUDA_FAKE_CUDA_H_

#include <cstdint>

namespace gshard {

// The settings and state of both GPUs.
struct FakeCuda {
  int64_t memory_bytes = int64_t{1} << 30;  // the device's memory
  int major = 9;                            // compute capability
  bool too_old = false;                     // the driver, for the kernels' code
  bool launches_fail = false;  // when they run, which breaks the GPU
  bool pinning_fails = false;  // with a fault, which breaks the GPU, too
  bool broken = false;         // since one of them has failed

  // Bytes of allocated blocks.
  int64_t device_bytes = 0;
  int64_t pinned_bytes = 0;
  // Queued kernels and copies that are not done.
  int64_t pending = 0;
};

// The state that all functions share; not thread-safe.
FakeCuda& TheFakeCuda();

}  // namespace gshard

#endif  // TESTS_SERVICES_CUDA_FAKE_CUDA_H_
