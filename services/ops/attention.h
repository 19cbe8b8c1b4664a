// Multi-head scaled dot-product attention, float32.
//
//   B  sentences        N  heads
//   L  positions: Lq of the queries, Lk of the keys and values
//   D  width of a head
//
// Sentence b has key_lengths[b] keys; later ones are padding and are skipped
// rather than added as zeros. So the result of a sentence has the same bits
// alone, with more padding, and among other sentences.

#ifndef SERVICES_OPS_ATTENTION_H_
#define SERVICES_OPS_ATTENTION_H_

#include <cstdint>

#include "services/tensor/tensor.h"

namespace gshard {

struct AttentionOptions {
  // Query i sees only keys j <= i + (Lk - Lq). With as many keys as queries it
  // sees itself and its past; with a cache of keys, the last query sees all.
  bool causal = false;
  float scale = 1.0f;  // of the logits q k^T, usually 1 / sqrt(D)

  // Dropout rate in [0, 1) of the probabilities; those kept are divided by 1 -
  // rate. Which ones are dropped is a function of dropout_key and (sentence,
  // head, query, key position), independent of padding.
  float dropout_rate = 0.0f;
  uint64_t dropout_key = 0;

  // For a call on a part of a larger one: the positions in the larger call of
  // this call's first sentence, head and query, and the larger call's number of
  // queries (0: that of this call). Visibility and dropout are those of the
  // larger call. All keys must be present.
  int64_t first_sentence = 0;
  int64_t first_head = 0;
  int64_t first_query = 0;
  int64_t all_queries = 0;
};

struct AttentionResult {
  Tensor out;  // [B, Lq, N, D]
  // [B, N, Lq, 2]: SoftmaxStatistics of each query's logits; absent unless
  // keep_statistics is set. The gradient computes the probabilities from it, so
  // that nobody keeps as many numbers as there are pairs of positions.
  Tensor statistics;
};

// q [B, Lq, N, D], k and v [B, Lk, N, D], key_lengths i32[B] in [0, Lk]. A
// query that sees no key gets zeros.
AttentionResult Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& key_lengths,
                          const AttentionOptions& options,
                          bool keep_statistics);

struct AttentionGradients {
  Tensor dq;  // [B, Lq, N, D]
  Tensor dk;  // [B, Lk, N, D], zero for padding
  Tensor dv;  // [B, Lk, N, D], zero for padding
};

AttentionGradients AttentionGradient(const Tensor& q, const Tensor& k,
                                     const Tensor& v, const Tensor& key_lengths,
                                     const AttentionOptions& options,
                                     const Tensor& statistics,
                                     const Tensor& dout);

}  // namespace gshard

#endif  // SERVICES_OPS_ATTENTION_H_
