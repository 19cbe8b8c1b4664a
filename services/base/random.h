// Counter-based random numbers: a value is a function of a key and an index,
// never of earlier draws. Any process can therefore draw the same number, in
// any order, on any number of threads.

#ifndef SERVICES_BASE_RANDOM_H_
#define SERVICES_BASE_RANDOM_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "services/base/splitmix64.h"

namespace gshard {

// Folds in a name, e.g. a parameter's.
uint64_t FoldIn(uint64_t key, absl::string_view name);

// The `index`-th block of 64 random bits of `key`.
inline uint64_t RandomBits(uint64_t key, uint64_t index) {
  return SplitMix64(SplitMix64(key) + index);
}

// Uniform in [0, 1), with 24 bits.
inline float RandomUniform(uint64_t key, uint64_t index) {
  return static_cast<float>(RandomBits(key, index) >> 40) * 0x1p-24f;
}

// Uniform in [0, n) for n > 0. The bias is below n / 2^64.
inline uint64_t RandomBelow(uint64_t key, uint64_t index, uint64_t n) {
  return static_cast<uint64_t>(
      (static_cast<unsigned __int128>(RandomBits(key, index)) * n) >> 64);
}

// Standard normal (Box-Muller).
float RandomNormal(uint64_t key, uint64_t index);

}  // namespace gshard

#endif  // SERVICES_BASE_RANDOM_H_
