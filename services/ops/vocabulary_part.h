// Embedding and cross entropy on a part of the vocabulary. Each device of a
// group holds consecutive words, and sums over the group complete the result
// (vocabulary parallelism: Shoeybi et al., Megatron-LM, arXiv 1909.08053,
// section 3).
//
//   N  rows (target tokens)        V  words in all
//   v  words of the part           M  width of a row of the table

#ifndef SERVICES_OPS_VOCABULARY_PART_H_
#define SERVICES_OPS_VOCABULARY_PART_H_

#include <cstdint>

#include "services/ops/cross_entropy.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Words [first, first + v) of `size`. Words from `size` on are padding and are
// not read.
struct VocabularyPart {
  int64_t first = 0;
  int64_t size = 0;
};

// table [v, M], ids i32[...] -> [..., M]: the rows of ids in the part, zeros
// for other ids. The sum over all parts is Embedding. REQUIRES: ids in [0, V).
Tensor EmbeddingPart(const Tensor& table, const Tensor& ids,
                     VocabularyPart part);

// Rows [first, first + v) of EmbeddingGradient, with the same bits; zeros for
// padding. REQUIRES: ids in [0, V).
Tensor EmbeddingPartGradient(const Tensor& dresult, const Tensor& ids,
                             int64_t words, VocabularyPart part);

// logits [N, v], labels i32[N], max [N] over all words -> [N, 3]: the sum of
// exp(logit - max), the sum of the logits, and the label's logit, each
// restricted to the words of this part; zeros for rows with a negative label.
Tensor CrossEntropySums(const Tensor& logits, const Tensor& labels,
                        const Tensor& max, VocabularyPart part);

// CrossEntropy from the outputs of CrossEntropySums, summed over all parts.
CrossEntropyResult CrossEntropyOfSums(const Tensor& sums, const Tensor& max,
                                      const Tensor& labels, int64_t vocabulary,
                                      const CrossEntropyOptions& options);

// Columns [first, first + v) of CrossEntropyGradient, zeros for padding.
Tensor CrossEntropyPartGradient(Tensor logits, const Tensor& labels,
                                const Tensor& log_sum_exp,
                                const CrossEntropyOptions& options,
                                const Tensor& dloss_sum, VocabularyPart part);

}  // namespace gshard

#endif  // SERVICES_OPS_VOCABULARY_PART_H_
