// Sums over eight lanes of doubles, in a fixed order that the compiler cannot
// change, so that they have the same bits on every instruction set.

#ifndef SERVICES_TRAIN_LANES_H_
#define SERVICES_TRAIN_LANES_H_

#include <cstdint>
#include <cstring>

namespace gshard {

// Vector extension of GCC and Clang; arithmetic is elementwise.
typedef float FloatLanes __attribute__((vector_size(32)));
typedef double DoubleLanes __attribute__((vector_size(64)));
constexpr int64_t kLanes = 8;

// Adds f(lanes, i, count) for i = 0, 8, 16, ... < size, lane by lane, where
// count = min(8, size - i) and f sets the first `count` elements of `lanes`,
// which is zero before. `f` must be inlined, so that it is compiled for the
// caller's instruction set.
template <typename F>
__attribute__((always_inline)) inline double SumLanes(int64_t size, F f) {
  DoubleLanes even = {}, odd = {};
  int64_t i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    DoubleLanes a = {}, b = {};
    f(a, i, kLanes);
    f(b, i + kLanes, kLanes);
    even += a;
    odd += b;
  }
  if (i + kLanes <= size) {
    DoubleLanes a = {};
    f(a, i, kLanes);
    even += a;
    i += kLanes;
  }
  if (i < size) {
    DoubleLanes b = {};
    f(b, i, size - i);
    odd += b;
  }
  even += odd;
  return ((even[0] + even[4]) + (even[2] + even[6])) +
         ((even[1] + even[5]) + (even[3] + even[7]));
}

// Loads `count` floats; the other lanes become zero.
__attribute__((always_inline)) inline void LoadLanes(FloatLanes& lanes,
                                                     const float* from,
                                                     int64_t count) {
  if (count == kLanes) {
    std::memcpy(&lanes, from, sizeof(lanes));
    return;
  }
  lanes = FloatLanes{};
  for (int64_t i = 0; i < count; ++i) lanes[i] = from[i];
}

}  // namespace gshard

#endif  // SERVICES_TRAIN_LANES_H_
