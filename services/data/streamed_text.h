// StreamedText: a text of any size, read one batch at a time. Its index
// (pair_index.h) takes 8 bytes of memory per pair; text is tokenized again on
// each read.
//
// The files and the index must not change. Reading from a changed file is an
// error; it never returns other text.

#ifndef SERVICES_DATA_STREAMED_TEXT_H_
#define SERVICES_DATA_STREAMED_TEXT_H_

#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "services/data/pair_indexer.h"
#include "services/data/tokenized_text.h"

namespace gshard {

class StreamedText final : public TokenizedText {
 public:
  // Takes one pass over the files, unless their index is already in one of
  // `index_directories`. Errors: those of ReadTextVersions, PairEncoder and
  // OpenPairIndex.
  static absl::StatusOr<std::unique_ptr<StreamedText>> Open(
      std::vector<TextFile> files, TextTokenizers tokenizers,
      const TextOptions& options,
      const std::vector<std::string>& index_directories,
      std::stop_token stop = {});

  int32_t size() const override {
    return static_cast<int32_t>(index_->shapes().size());
  }
  PairLengths lengths(int32_t index) const override;
  int32_t language(int32_t index) const override { return At(index).language; }
  int32_t file(int32_t index) const override { return At(index).file; }
  const std::vector<std::string>& languages() const override {
    return index_->info().languages;
  }

  // Errors: FailedPrecondition naming a file that has changed; those of reading
  // it.
  absl::StatusOr<std::vector<PieceIds>> Read(
      absl::Span<const int32_t> indices) const override;

  const TextReport& report() const override { return index_->info().report; }
  // Digest of the files' bytes.
  const std::string& digest() const { return index_->info().text_digest; }
  // Memory used by the index.
  int64_t memory_bytes() const { return index_->memory_bytes(); }

  int32_t pad_id() const override { return encoder_.source().pad_id(); }
  int32_t target_pad_id() const override { return encoder_.target().pad_id(); }
  int32_t bos_id() const override { return encoder_.target().bos_id(); }

 private:
  StreamedText(VersionedText text, PairEncoder encoder,
               std::unique_ptr<const PairIndex> index);

  const PairShape& At(int32_t index) const;
  // Reads the pairs entries[i] for i in `order`, all in file `file`.
  absl::Status ReadFile(uint16_t file, absl::Span<const PairEntry> entries,
                        absl::Span<const size_t> order,
                        std::vector<PieceIds>* pairs) const;
  absl::Status TakePair(const std::string& line, const PairEntry& entry,
                        PieceIds* pair) const;

  const VersionedText text_;
  const PairEncoder encoder_;
  const std::unique_ptr<const PairIndex> index_;
};

}  // namespace gshard

#endif  // SERVICES_DATA_STREAMED_TEXT_H_
