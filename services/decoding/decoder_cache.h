// DecoderCache: the keys and values that a running batch attends to, in a paged
// cache that grows on demand, on the host or on a device.

#ifndef SERVICES_DECODING_DECODER_CACHE_H_
#define SERVICES_DECODING_DECODER_CACHE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/decoding/page_pool.h"
#include "services/graph/device.h"
#include "services/graph/executor.h"
#include "services/graph/program.h"

namespace gshard {

// Positions per page.
inline constexpr int64_t kPagePositions = 16;

constexpr int64_t PagesFor(int64_t positions) {
  return (positions + kPagePositions - 1) / kPagePositions;
}

using PageTable = std::vector<int32_t>;  // pages of consecutive positions

// The first `positions` of page `from`, to be copied to page `to`.
struct PageCopy {
  int32_t from = 0;
  int32_t to = 0;
  int64_t positions = 0;
};

// Errors of all that return a status: those of DeviceRun.
class DecoderCache {
 public:
  // For the inputs "key/<i>" and "value/<i>" of BuildDecodeProgram's `decode`.
  // On `device`, which outlives the cache, or on the host if null.
  DecoderCache(const Program& decode, int64_t max_pages,
               Device* device = nullptr);

  PagePool& pages() { return pages_; }

  // Allocates memory for at least `pages` pages. Memory never shrinks. Errors:
  // also ResourceExhausted, which changes nothing. REQUIRES: pages <=
  // max_pages.
  absl::Status Reserve(int64_t pages);

  // REQUIRES: no page is copied to twice, or to and from.
  absl::Status CopyPages(absl::Span<const PageCopy> copies);

  // For each sentence b of the encoder's outputs "cross_key/<i>" and
  // "cross_value/<i>" [B, Ls, N, D], where the cache is: takes pages for its
  // first lengths[b] positions, and writes them. After an error none are taken.
  absl::StatusOr<std::vector<PageTable>> AddSources(
      const TensorMap& memory, absl::Span<const int64_t> lengths);

  // Moves the tensors into the decoder's inputs, and back from its outputs.
  // They are lost if the run fails.
  void MoveTo(TensorMap& inputs);
  void TakeBack(const std::string& output, Tensor& tensor);

 private:
  // Copies into every tensor from the one that `source` gives for its name,
  // ranges in units of positions.
  absl::Status Copy(
      absl::Span<const ElementRange> positions,
      absl::FunctionRef<const Tensor&(const std::string& name)> source);

  Device* const device_;  // null: the host
  PagePool pages_;
  int64_t capacity_ = 0;  // pages
  TensorMap tensors_;     // [capacity_, kPagePositions, N, D]
};

}  // namespace gshard

#endif  // SERVICES_DECODING_DECODER_CACHE_H_
