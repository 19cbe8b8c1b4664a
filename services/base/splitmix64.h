// The mixer of random.h: splitmix64 (Steele, Lea, Flood: "Fast splittable
// pseudorandom number generators", 2014), and keys made with it. CUDA
// kernels call them, too.

#ifndef SERVICES_BASE_SPLITMIX64_H_
#define SERVICES_BASE_SPLITMIX64_H_

#include <cstdint>

namespace gshard {

constexpr uint64_t SplitMix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

// Folds `part` into `key`; chain it to build keys such as
// (seed, step, microbatch, layer).
constexpr uint64_t FoldIn(uint64_t key, uint64_t part) {
  return SplitMix64(key ^ SplitMix64(part + 0x632BE59BD9B4E019ull));
}

}  // namespace gshard

#endif  // SERVICES_BASE_SPLITMIX64_H_
