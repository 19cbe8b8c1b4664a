// Dataset: a corpus as piece ids, held in memory; what routers train from.
//
// Threads: const access from any thread.

#ifndef SERVICES_DATA_DATASET_H_
#define SERVICES_DATA_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/data/corpus.h"
#include "services/tokenizer/tokenizer.h"

namespace gshard {

struct DatasetOptions {
  // Pairs with more pieces on a side are left out. The language tag and the
  // end-of-sentence piece count.
  int32_t max_length = 128;
};

class Dataset {
 public:
  // Errors: InvalidArgument naming the pair, for a language that the
  // vocabulary has no tag for, or if nothing is left.
  static absl::StatusOr<Dataset> Create(const Corpus& corpus,
                                        const Tokenizer& tokenizer,
                                        const DatasetOptions& options = {});

  // With a vocabulary of its own for each side; the source's has the tags.
  static absl::StatusOr<Dataset> Create(const Corpus& corpus,
                                        const Tokenizer& source_tokenizer,
                                        const Tokenizer& target_tokenizer,
                                        const DatasetOptions& options = {});

  int32_t size() const { return static_cast<int32_t>(lengths_.size()); }

  // Tag, pieces, end of sentence. REQUIRES: 0 <= index < size().
  absl::Span<const int32_t> source(int32_t index) const;
  // Pieces, end of sentence.
  absl::Span<const int32_t> target(int32_t index) const;

  // max(source, target) pieces of every sentence: what batches are planned by.
  const std::vector<int32_t>& lengths() const { return lengths_; }

  // Pieces of every target: the second lengths of BatchOrder.
  std::vector<int32_t> target_lengths() const;

  int64_t left_out_empty() const { return left_out_empty_; }
  int64_t left_out_long() const { return left_out_long_; }
  int64_t source_pieces() const { return source_pieces_; }
  int64_t target_pieces() const { return target_pieces_; }

  int32_t pad_id() const { return pad_id_; }  // of sources
  int32_t target_pad_id() const { return target_pad_id_; }
  int32_t bos_id() const { return bos_id_; }

 private:
  Dataset() = default;

  // All sentences behind one another: source i is
  // [starts_[2i], starts_[2i + 1]), target i ends at starts_[2i + 2].
  std::vector<int32_t> ids_;
  std::vector<int64_t> starts_;
  std::vector<int32_t> lengths_;
  int64_t left_out_empty_ = 0;
  int64_t left_out_long_ = 0;
  int64_t source_pieces_ = 0;
  int64_t target_pieces_ = 0;
  int32_t pad_id_ = 0;
  int32_t target_pad_id_ = 0;
  int32_t bos_id_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_DATA_DATASET_H_
