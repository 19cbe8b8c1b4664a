// PairIndex: offsets and lengths of the pairs of a text: 16 bytes per pair in a
// file. The half with the lengths, which is accessed randomly, is in memory;
// offsets are read together with the pairs. The file is not memory-mapped: if
// it were truncated, the process would die of SIGBUS.
//
// The file caches one pass over the text, made by whoever needs it first.
// Little-endian: 32 bytes of magic, number of pairs and size of the
// description; the pairs; the description as lines of tab-separated text; and a
// digest of all that. The digest and every entry are checked before use.

#ifndef SERVICES_DATA_PAIR_INDEX_H_
#define SERVICES_DATA_PAIR_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "services/checkpoint/sha256.h"
#include "services/data/text_report.h"
#include "services/storage/file.h"
#include "services/storage/input_file.h"

namespace gshard {

// The properties that determine batches.
struct PairShape {
  uint16_t source_less1;  // pieces - 1
  uint16_t target_less1;
  uint16_t language;  // index in the description
  uint16_t file;      // index in the text's files

  int32_t source() const { return source_less1 + 1; }
  int32_t target() const { return target_less1 + 1; }

  bool operator==(const PairShape&) const = default;
};

// One pair.
struct PairEntry {
  uint64_t place;  // offset of its line << 16 | bytes of the line - 1
  PairShape shape;

  uint64_t offset() const { return place >> 16; }
  size_t bytes() const { return (place & 0xFFFF) + 1; }
};
static_assert(sizeof(PairEntry) == 16);

// Metadata of an index.
struct PairIndexInfo {
  // Identifies the files, their versions and everything else that the index
  // depends on; one line.
  std::string key;
  std::string text_digest;  // digest of the files' bytes
  std::vector<std::string> languages;
  TextReport report;

  bool operator==(const PairIndexInfo&) const = default;
};

// File name of the index with this key.
std::string PairIndexName(const std::string& key);

// Const access from any thread.
class PairIndex {
 public:
  // Errors: those of file.h; FailedPrecondition if it has another key;
  // DataLoss, saying what is wrong, if it is not a valid index.
  static absl::StatusOr<std::unique_ptr<const PairIndex>> Open(
      const std::string& path, const std::string& key);

  // By file, then by offset.
  absl::Span<const PairShape> shapes() const { return shapes_; }
  // End offset of the last pair of each file; 0 for a file without pairs.
  const std::vector<uint64_t>& file_ends() const { return file_ends_; }
  const PairIndexInfo& info() const { return info_; }

  // Entries of the pairs at `indices`, in that order. Errors, with the path:
  // FailedPrecondition if the file has changed since it was opened; those of
  // reading it.
  absl::StatusOr<std::vector<PairEntry>> Read(
      absl::Span<const int32_t> indices) const;

  int64_t memory_bytes() const {
    return static_cast<int64_t>(shapes_.size() * sizeof(PairShape));
  }

 private:
  PairIndex(std::unique_ptr<InputFile> file, const FileVersion& version)
      : file_(std::move(file)), version_(version) {}
  absl::Status Load(const std::string& key);
  // Appends entries; false if they do not continue the previous ones.
  bool Take(absl::string_view entries);

  const std::unique_ptr<InputFile> file_;
  const FileVersion version_;
  std::vector<PairShape> shapes_;
  std::vector<uint64_t> file_ends_;
  PairIndexInfo info_;
};

// Writes an index under a temporary name and renames it into place, unless one
// exists by then: if several processes build the same index, all use the first
// one finished. Only a damaged one is replaced, atomically by rename; readers
// with the old file open keep reading it. Not thread-safe.
class PairIndexWriter {
 public:
  // Also removes temporary files for `path` that nobody has changed for an
  // hour. Errors: those of file.h.
  static absl::StatusOr<std::unique_ptr<PairIndexWriter>> Create(
      const std::string& path);
  // Removes the temporary file.
  ~PairIndexWriter();

  absl::Status Add(const PairEntry& entry);
  // Replaces a damaged index. Errors: those of file.h and of PairIndex::Open.
  absl::Status Finish(const PairIndexInfo& info);

 private:
  PairIndexWriter(std::string path, std::unique_ptr<OutputFile> file)
      : path_(std::move(path)), file_(std::move(file)) {}
  absl::Status Flush();

  const std::string path_;
  const std::unique_ptr<OutputFile> file_;
  Sha256Stream digest_;
  std::string buffer_;
  uint64_t pairs_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_DATA_PAIR_INDEX_H_
