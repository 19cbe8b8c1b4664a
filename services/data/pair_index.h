// PairIndex: where the pairs of a text lie, and how long they are: 16 bytes a
// pair in a file that is mapped, not read, into memory.
//
// The file is a cache of one pass over the text, made once by whoever needs it
// first. Little-endian: 32 bytes of magic, number of pairs and size of the
// description; the pairs; the description as lines of tab-separated text; and
// the digest of all that. Nothing in it is used before the digest and every
// entry have been checked.

#ifndef SERVICES_DATA_PAIR_INDEX_H_
#define SERVICES_DATA_PAIR_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/checkpoint/file.h"
#include "services/data/chained_digest.h"
#include "services/data/text_report.h"

namespace gshard {

// One pair.
struct PairEntry {
  uint64_t place;         // offset of its line << 16 | bytes of the line - 1
  uint16_t source_less1;  // pieces - 1
  uint16_t target_less1;
  uint16_t language;  // index in the description
  uint16_t file;      // index in the text's files

  uint64_t offset() const { return place >> 16; }
  size_t bytes() const { return (place & 0xFFFF) + 1; }
  int32_t source() const { return source_less1 + 1; }
  int32_t target() const { return target_less1 + 1; }
};
static_assert(sizeof(PairEntry) == 16);

// What an index says beside its entries.
struct PairIndexInfo {
  // Names the files, their versions and all else that the index depends on;
  // one line.
  std::string key;
  std::string text_digest;  // of the files' bytes
  std::vector<std::string> languages;
  TextReport report;

  bool operator==(const PairIndexInfo&) const = default;
};

// Of the file of an index with this key.
std::string PairIndexName(const std::string& key);

// Const access from any thread.
class PairIndex {
 public:
  // Errors: those of file.h; FailedPrecondition if it has another key;
  // DataLoss, saying what is wrong, if it is not an index.
  static absl::StatusOr<std::unique_ptr<const PairIndex>> Open(
      const std::string& path, const std::string& key);
  ~PairIndex();
  PairIndex(const PairIndex&) = delete;
  PairIndex& operator=(const PairIndex&) = delete;

  // By file, then by offset.
  absl::Span<const PairEntry> entries() const { return entries_; }
  const PairIndexInfo& info() const { return info_; }
  int64_t bytes() const { return static_cast<int64_t>(mapped_bytes_); }

 private:
  PairIndex(void* mapped, size_t bytes)
      : mapped_(mapped), mapped_bytes_(bytes) {}
  absl::Status Check(const std::string& key);
  absl::Status CheckEntries() const;

  void* const mapped_;
  const size_t mapped_bytes_;
  absl::Span<const PairEntry> entries_;
  PairIndexInfo info_;
};

// Writes an index aside, then puts it in its place. Not thread-safe.
class PairIndexWriter {
 public:
  // Errors: those of file.h.
  static absl::StatusOr<std::unique_ptr<PairIndexWriter>> Create(
      const std::string& path);
  // Removes the file if Finish was not reached.
  ~PairIndexWriter();

  absl::Status Add(const PairEntry& entry);
  absl::Status Finish(const PairIndexInfo& info);

 private:
  PairIndexWriter(std::string path, std::unique_ptr<OutputFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}
  absl::Status Flush();

  const std::string path_;
  const std::unique_ptr<OutputFile> file_;
  ChainedDigest digest_;
  std::string buffer_;
  uint64_t pairs_ = 0;
  bool finished_ = false;
};

}  // namespace gshard

#endif  // SERVICES_DATA_PAIR_INDEX_H_
