// DecoderCache: the keys and values that a running batch attends to, in a paged
// cache that grows on demand.

#ifndef SERVICES_DECODING_DECODER_CACHE_H_
#define SERVICES_DECODING_DECODER_CACHE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "services/decoding/page_pool.h"
#include "services/graph/executor.h"
#include "services/graph/program.h"

namespace gshard {

// Positions per page.
inline constexpr int64_t kPagePositions = 16;

constexpr int64_t PagesFor(int64_t positions) {
  return (positions + kPagePositions - 1) / kPagePositions;
}

using PageTable = std::vector<int32_t>;  // pages of consecutive positions

class DecoderCache {
 public:
  // For the inputs "key/<i>" and "value/<i>" of BuildDecodeProgram's `decode`.
  DecoderCache(const Program& decode, int64_t max_pages);

  PagePool& pages() { return pages_; }

  // Allocates memory for at least `pages` pages. Memory never shrinks.
  // REQUIRES: pages <= max_pages.
  void Reserve(int64_t pages);

  // Copies the first `positions` of a page to another.
  void CopyPage(int32_t from, int32_t to, int64_t positions);

  // Takes pages for the first `length` positions of sentence `b` of the
  // encoder's outputs "cross_key/<i>" and "cross_value/<i>" [B, Ls, N, D], and
  // writes them.
  PageTable AddSource(const TensorMap& memory, int64_t b, int64_t length);

  // Moves the tensors into the decoder's inputs, and back from its outputs.
  // They are lost if the run fails.
  void MoveTo(TensorMap& inputs);
  void TakeBack(const std::string& output, Tensor& tensor);

 private:
  PagePool pages_;
  int64_t capacity_ = 0;  // pages
  TensorMap tensors_;     // [capacity_, kPagePositions, N, D]
};

}  // namespace gshard

#endif  // SERVICES_DECODING_DECODER_CACHE_H_
