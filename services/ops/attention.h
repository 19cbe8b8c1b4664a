// Scaled dot-product attention with many heads, float32.
//
//   B  sentences        N  heads
//   L  positions: Lq of the queries, Lk of the keys and values
//   D  width of a head
//
// Sentence b has key_lengths[b] keys; later ones are padding and take no part,
// not even as zeros in a sum. So the result of a sentence has the same bits
// alone, with more padding, and among other sentences.

#ifndef SERVICES_OPS_ATTENTION_H_
#define SERVICES_OPS_ATTENTION_H_

#include <cstdint>

#include "services/tensor/tensor.h"

namespace gshard {

struct AttentionOptions {
  // Query i sees only keys j <= i + (Lk - Lq): with as many keys as queries
  // its past and itself; with a cache of keys, the last query sees all.
  bool causal = false;
  float scale = 1.0f;  // of the logits q k^T, usually 1 / sqrt(D)

  // Each probability is dropped with this rate in [0, 1), and those kept are
  // divided by 1 - rate. What is dropped is a function of the key and of
  // (sentence, head, query, key position), whatever the padding.
  float dropout_rate = 0.0f;
  uint64_t dropout_key = 0;

  // Of a call on a part of a larger one: where its first sentence, head and
  // query stand there, and how many queries there are (0: no more than these).
  // What a query sees and what is dropped is as in the larger call. Keys are
  // all there.
  int64_t first_sentence = 0;
  int64_t first_head = 0;
  int64_t first_query = 0;
  int64_t all_queries = 0;
};

struct AttentionResult {
  Tensor out;  // [B, Lq, N, D]
  // [B, N, Lq, Lk], before dropout, zero where nothing is seen; absent unless
  // asked for. The gradient needs it.
  Tensor probabilities;
};

// q [B, Lq, N, D], k and v [B, Lk, N, D], key_lengths i32[B] in [0, Lk]. A
// query that sees no key gets zeros.
AttentionResult Attention(const Tensor& q, const Tensor& k, const Tensor& v,
                          const Tensor& key_lengths,
                          const AttentionOptions& options,
                          bool keep_probabilities);

struct AttentionGradients {
  Tensor dq;  // [B, Lq, N, D]
  Tensor dk;  // [B, Lk, N, D], zero for padding
  Tensor dv;  // [B, Lk, N, D], zero for padding
};

AttentionGradients AttentionGradient(const Tensor& q, const Tensor& k,
                                     const Tensor& v, const Tensor& key_lengths,
                                     const AttentionOptions& options,
                                     const Tensor& probabilities,
                                     const Tensor& dout);

}  // namespace gshard

#endif  // SERVICES_OPS_ATTENTION_H_
