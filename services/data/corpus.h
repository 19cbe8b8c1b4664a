// Parallel text from tab-separated lines: language<TAB>source<TAB>target.
//
// Files of two columns, source<TAB>target, are read, too, if the caller names
// their language. Blank lines are skipped; every other line that is not a pair
// is a bad line: counted, the first few recorded, never fatal by itself.

#ifndef SERVICES_DATA_CORPUS_H_
#define SERVICES_DATA_CORPUS_H_

#include <cstddef>
#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/config/language_name.h"
#include "services/config/training_job.h"
#include "services/data/pair_line.h"
#include "services/data/text_report.h"

namespace gshard {

struct SentencePair {
  std::string language;  // source language
  std::string source;
  std::string target;

  friend bool operator==(const SentencePair&, const SentencePair&) = default;
};

struct CorpusOptions {
  // Language of lines with two columns; without it they are bad lines.
  std::string default_language = {};
  // Longer lines are bad lines, and are never in memory as a whole.
  size_t max_line_bytes = kMaxLineBytes;
  // Maximum number of bad lines recorded with their reason.
  size_t max_reported = 5;
  // The text ends, as it were, behind this many pairs. 0: no limit.
  int64_t max_pairs = 0;
};

struct BadLine {
  int64_t line;  // from 1
  std::string reason;
};

struct Corpus {
  std::vector<SentencePair> pairs;  // in the order of the file
  std::vector<int64_t> lines;       // line number of each pair, from 1
  int64_t bad_lines = 0;
  std::vector<BadLine> first_bad_lines;
  TextReport report;  // counts by reason

  // "2 bad lines: line 7: expected 3 columns, got 1; ...". Empty if none.
  std::string BadLineSummary() const;
};

// Errors: NotFound if the file cannot be opened, DataLoss if reading it fails,
// InvalidArgument if no line is a pair (saying why the first was not), all with
// the path.
absl::StatusOr<Corpus> ReadCorpus(const std::string& path,
                                  const CorpusOptions& options = {});

struct SampleOptions {
  size_t max_pairs = 0;  // more than 0
  // The text of a longer side is left out of the sample: it is empty.
  size_t max_side_bytes = kMaxLineBytes;
  uint64_t seed = 0;
};

// At most `max_pairs` pairs of `files`, in order, and all their languages,
// sorted. If there are more, a uniform sample determined by `seed` and their
// number. Memory grows with the options, not with the files. Errors: those of
// ReadCorpus; InvalidArgument if there are more than kMaxLanguages, e.g.
// because the first column is something else; Cancelled if stop is requested.
struct CorpusSample {
  std::vector<SentencePair> pairs;
  std::vector<std::string> languages;
  int64_t bad_lines = 0;
};
absl::StatusOr<CorpusSample> SampleCorpus(const std::vector<TextFile>& files,
                                          const SampleOptions& options,
                                          std::stop_token stop = {});

// Writes pairs as three columns; the file appears whole or not at all. Errors:
// InvalidArgument if a text contains a tab or line break, with the path; those
// of services/storage/file.h.
absl::Status WriteCorpus(const std::string& path,
                         const std::vector<SentencePair>& pairs);

}  // namespace gshard

#endif  // SERVICES_DATA_CORPUS_H_
