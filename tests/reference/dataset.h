// Dataset: a corpus as piece ids in memory. The reference for StreamedText,
// which routers train from.
//
// Threads: const access from any thread.

#ifndef TESTS_REFERENCE_DATASET_H_
#define TESTS_REFERENCE_DATASET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/data/corpus.h"
#include "services/data/pair_encoder.h"
#include "services/data/tokenized_text.h"

namespace gshard {

class Dataset final : public TokenizedText {
 public:
  // Errors: InvalidArgument naming the pair if text is not UTF-8, or if no pair
  // remains. `tokenizer` need not outlive the call.
  static absl::StatusOr<Dataset> Create(const Corpus& corpus,
                                        const Tokenizer& tokenizer,
                                        const TextOptions& options = {});

  // With separate vocabularies; the tags are in the source vocabulary.
  static absl::StatusOr<Dataset> Create(const Corpus& corpus,
                                        const Tokenizer& source_tokenizer,
                                        const Tokenizer& target_tokenizer,
                                        const TextOptions& options = {});

  // Like StreamedText::Open. Errors: those of ReadCorpus and Create, with the
  // path.
  static absl::StatusOr<Dataset> Read(const std::vector<TextFile>& files,
                                      const Tokenizer& source_tokenizer,
                                      const Tokenizer& target_tokenizer,
                                      const TextOptions& options = {});

  int32_t size() const override {
    return static_cast<int32_t>(lengths_.size());
  }

  // Tag, pieces, end of sentence. REQUIRES: 0 <= index < size().
  absl::Span<const int32_t> source(int32_t index) const;
  // Pieces, end of sentence.
  absl::Span<const int32_t> target(int32_t index) const;

  // max(source, target) pieces of every sentence, used to plan batches.
  const std::vector<int32_t>& lengths() const { return lengths_; }

  PairLengths lengths(int32_t index) const override;
  int32_t language(int32_t index) const override { return language_of_[index]; }
  int32_t file(int32_t index) const override { return file_of_[index]; }
  const std::vector<std::string>& languages() const override {
    return languages_;
  }
  // Never fails.
  absl::StatusOr<std::vector<PieceIds>> Read(
      absl::Span<const int32_t> indices) const override;
  const TextReport& report() const override { return report_; }

  int64_t left_out_empty() const {
    return TextReport(report_).bad_of(BadLineReason::kNoPieces);
  }
  int64_t left_out_long() const { return report_.left_out_long; }
  int64_t source_pieces() const { return source_pieces_; }
  int64_t target_pieces() const { return target_pieces_; }

  int32_t pad_id() const override { return pad_id_; }  // of sources
  int32_t target_pad_id() const override { return target_pad_id_; }
  int32_t bos_id() const override { return bos_id_; }

 private:
  explicit Dataset(const PairEncoder& encoder);

  // Adds the sentences of file number `file`.
  absl::Status Add(const Corpus& corpus, const PairEncoder& encoder,
                   int32_t file);

  // All sentences concatenated: source i is [starts_[2i], starts_[2i + 1]),
  // target i ends at starts_[2i + 2].
  std::vector<int32_t> ids_;
  std::vector<int64_t> starts_;
  std::vector<int32_t> lengths_;
  std::vector<int32_t> language_of_;
  std::vector<int32_t> file_of_;
  std::vector<std::string> languages_;
  TextReport report_;
  int64_t source_pieces_ = 0;
  int64_t target_pieces_ = 0;
  int32_t pad_id_ = 0;
  int32_t target_pad_id_ = 0;
  int32_t bos_id_ = 0;
};

}  // namespace gshard

#endif  // TESTS_REFERENCE_DATASET_H_
