// The best next tokens of each hypothesis (services/ops/top_tokens.h), in three
// kernels: the best tokens of each chunk of the vocabulary, each chunk's sum of
// exponentials, and the best tokens over all chunks. One warp per row in each.
//
// Letters: R hypotheses, V vocabulary, C chunks, K largest number of tokens
// requested for a row.

#ifndef SERVICES_CUDA_KERNELS_TOP_TOKENS_H_
#define SERVICES_CUDA_KERNELS_TOP_TOKENS_H_

#include <cstdint>

#include "services/cuda/kernels/choice.h"
#include "services/ops/exp.h"

namespace gshard::cuda {

// Logits per chunk: few enough to stay in a multiprocessor's cache while they
// are read K times.
inline constexpr int64_t kChunkTokens = 1024;

// The first of at(i), i in [0, size), in the order of Choice, that comes after
// `last` and whose index is allowed; -infinity is never returned. By a warp,
// the same in all lanes.
template <typename At, typename Allowed>
GSHARD_KERNEL_INLINE Choice FirstAfter(const Choice& last, int64_t size,
                                       const At& at, const Allowed& allowed) {
  Choice best;
  for (int64_t i = Lane(); i < size; i += kWarp) {
    const Choice choice = at(i);
    if (choice.logit > kNoMaximum && choice.Before(best) &&
        last.Before(choice) && allowed(choice.index)) {
      best = choice;
    }
  }
  for (int apart = kWarp / 2; apart > 0; apart /= 2) {
    const Choice other = ShuffleChoice(best, Lane() ^ apart);
    if (other.Before(best)) best = other;
  }
  return best;
}

// Comes before every choice.
GSHARD_KERNEL_INLINE Choice BeforeAll() { return {__builtin_huge_valf(), -1}; }

// Chunk c of row r of the logits, for index (r, c) of a kernel's rows.
struct ChunkOfLogits {
  int64_t r, first, size;
  const float* x;

  GSHARD_KERNEL_INLINE ChunkOfLogits(const float* logits, int64_t vocabulary,
                                     int64_t chunks, int64_t row)
      : r(row / chunks), first(row % chunks * kChunkTokens) {
    const int64_t left = vocabulary - first;
    size = left < kChunkTokens ? left : kChunkTokens;
    x = logits + r * vocabulary + first;
  }
};

// Called for rows (r, c).
struct BestOfChunks {
  const float* logits;  // [R, V]
  int64_t vocabulary;
  int64_t chunks;
  const int32_t* wanted;      // [R]: tokens requested
  int64_t most;               // K
  const int32_t* never;       // token ids to exclude
  const int32_t* never_span;  // [R, 2]: range in `never`
  Choice* best;               // [R, C, K]
  float* maximum;             // [R, C]

  GSHARD_KERNEL_INLINE void operator()(int64_t row) const {
    const ChunkOfLogits chunk(logits, vocabulary, chunks, row);
    const auto at = [&](int64_t i) {
      return Choice{chunk.x[i], static_cast<int32_t>(chunk.first + i)};
    };
    const auto allowed = [&](int32_t token) {
      const int32_t* const span = never_span + 2 * chunk.r;
      for (int32_t i = span[0]; i < span[1]; ++i) {
        if (never[i] == token) return false;
      }
      return true;
    };
    Choice last = BeforeAll();
    for (int32_t k = 0; k < wanted[chunk.r]; ++k) {
      last = FirstAfter(last, chunk.size, at, allowed);
      if (Lane() == 0) best[row * most + k] = last;
    }
    const float max = RowMax(chunk.x, chunk.size, 1.0f);
    if (Lane() == 0) maximum[row] = max;
  }
};

// Sums of exp(logit - maximum of the row r). Called for rows (r, c).
struct SumsOfChunks {
  const float* logits;  // [R, V]
  int64_t vocabulary;
  int64_t chunks;
  const float* maximum;  // [R, C]
  float* sum;            // [R, C]

  GSHARD_KERNEL_INLINE void operator()(int64_t row) const {
    const ChunkOfLogits chunk(logits, vocabulary, chunks, row);
    const float max = RowMax(maximum + chunk.r * chunks, chunks, 1.0f);
    float of_lane = 0.0f;
    for (int64_t i = Lane(); i < chunk.size; i += kWarp) {
      of_lane += Exp(chunk.x[i] - max);
    }
    of_lane = WarpSum(of_lane);
    if (Lane() == 0) sum[row] = of_lane;
  }
};

// Called for rows r. If there are fewer candidates than requested, the last
// ones are Choice::kNobody.
struct MergeChunks {
  const float* logits;  // [R, V]
  int64_t vocabulary;
  int64_t chunks;
  const int32_t* wanted;  // [R]: tokens requested
  int64_t most;
  const Choice* best;         // [R, C, K]
  const float* chunk_max;     // [R, C]
  const float* chunk_sum;     // [R, C]
  const int32_t* also;        // token ids to score in any case
  const int32_t* also_begin;  // [R + 1]: each row's begin in `also`
  int32_t* token;             // [R, K]
  float* logit;               // [R, K]
  float* also_logit;          // one per element of `also`
  float* maximum;             // [R]
  float* sum;                 // [R]

  GSHARD_KERNEL_INLINE void operator()(int64_t r) const {
    const Choice* const from = best + r * chunks * most;
    const int64_t count = wanted[r];
    Choice last = BeforeAll();
    for (int64_t k = 0; k < count; ++k) {
      last = FirstAfter(
          last, chunks * count,
          [&](int64_t i) { return from[i / count * most + i % count]; },
          [](int32_t) { return true; });
      if (Lane() == 0) {
        token[r * most + k] = last.index;
        logit[r * most + k] = last.logit;
      }
    }
    for (int64_t i = also_begin[r] + Lane(); i < also_begin[r + 1];
         i += kWarp) {
      also_logit[i] = logits[r * vocabulary + also[i]];
    }
    const float max = RowMax(chunk_max + r * chunks, chunks, 1.0f);
    if (Lane() != 0) return;
    maximum[r] = max;
    float total = 0.0f;
    for (int64_t c = 0; c < chunks; ++c) total += chunk_sum[r * chunks + c];
    sum[r] = total;
  }
};

}  // namespace gshard::cuda

#endif  // SERVICES_CUDA_KERNELS_TOP_TOKENS_H_
