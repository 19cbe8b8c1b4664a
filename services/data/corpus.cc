#include "services/data/corpus.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/data/line_scanner.h"
#include "services/storage/file.h"
#include "services/storage/input_file.h"

namespace gshard {
namespace {

// An error ends the reading.
using OnPair = std::function<absl::Status(const PairLine&, int64_t line)>;

// Passes the pairs of a text that arrives in parts to `on_pair`, and counts the
// other lines.
class PairCounter {
 public:
  PairCounter(const CorpusOptions& options, OnPair on_pair)
      : options_(options),
        on_pair_(std::move(on_pair)),
        scanner_(options.max_line_bytes,
                 [this](const ScannedLine& line) { Take(line); }) {}
  PairCounter(const PairCounter&) = delete;
  PairCounter& operator=(const PairCounter&) = delete;

  absl::Status Append(absl::string_view part) {
    scanner_.Append(part);
    return status_;
  }

  // Whether the rest of the text counts for nothing.
  bool has_all() const {
    return options_.max_pairs > 0 && counts_.report.pairs == options_.max_pairs;
  }

  // The counts, without the pairs.
  absl::StatusOr<Corpus> Finish() {
    scanner_.Finish();
    RETURN_IF_ERROR(status_);
    if (counts_.report.pairs == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no sentence pairs among ", scanner_.lines(),
          " lines; expected language<TAB>source<TAB>target",
          counts_.bad_lines > 0 ? absl::StrCat("; ", counts_.BadLineSummary())
                                : ""));
    }
    return std::move(counts_);
  }

 private:
  void Take(const ScannedLine& line) {
    if (!status_.ok() || has_all()) return;
    if (line.too_long) {
      return AddBad(
          line.number,
          {BadLineReason::kTooManyBytes,
           absl::StrCat("longer than ", options_.max_line_bytes, " bytes")});
    }
    const ParsedLine parsed =
        ParsePairLine(line.text, options_.default_language);
    if (const auto* problem = std::get_if<LineProblem>(&parsed)) {
      AddBad(line.number, *problem);
    } else if (const auto* pair = std::get_if<PairLine>(&parsed)) {
      ++counts_.report.pairs;
      status_ = on_pair_(*pair, line.number);
    }
  }

  void AddBad(int64_t number, const LineProblem& problem) {
    ++counts_.bad_lines;
    ++counts_.report.bad_of(problem.reason);
    if (counts_.first_bad_lines.size() < options_.max_reported) {
      counts_.first_bad_lines.push_back({number, problem.message});
    }
  }

  const CorpusOptions& options_;
  const OnPair on_pair_;
  LineScanner scanner_;
  Corpus counts_;
  absl::Status status_;
};

SentencePair ToSentencePair(const PairLine& line) {
  return {std::string(line.language), std::string(line.source),
          std::string(line.target)};
}

SentencePair ToSample(PairLine line, size_t max_side_bytes) {
  if (line.source.size() > max_side_bytes) line.source = "";
  if (line.target.size() > max_side_bytes) line.target = "";
  return ToSentencePair(line);
}

absl::Status TooManyLanguages(const PairLine& line, int64_t number) {
  return absl::InvalidArgumentError(absl::StrCat(
      "line ", number, ": expected at most ", kMaxLanguages,
      " languages in the first column of all lines, got one more, \"",
      line.language, "\""));
}

OnPair Keep(std::vector<SentencePair>* pairs, std::vector<int64_t>* lines) {
  return [pairs, lines](const PairLine& pair, int64_t line) {
    pairs->push_back(ToSentencePair(pair));
    lines->push_back(line);
    return absl::OkStatus();
  };
}

// Passes the pairs of a file to `on_pair`; returns the counts.
absl::StatusOr<Corpus> ScanFile(const std::string& path,
                                const CorpusOptions& options, OnPair on_pair,
                                std::stop_token stop = {}) {
  ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
  PairCounter counter(options, std::move(on_pair));
  std::vector<char> buffer(file->part_bytes());
  for (uint64_t offset = 0; !counter.has_all();) {
    if (stop.stop_requested()) {
      return absl::CancelledError(absl::StrCat("told to stop reading ", path));
    }
    ASSIGN_OR_RETURN(const size_t n,
                     file->ReadSome(offset, buffer.data(), buffer.size()));
    if (n == 0) break;
    const absl::Status status =
        counter.Append(absl::string_view(buffer.data(), n));
    if (!status.ok()) return Annotate(status, path);
    offset += n;
  }
  absl::StatusOr<Corpus> counts = counter.Finish();
  if (!counts.ok()) return Annotate(counts.status(), path);
  return counts;
}

}  // namespace

std::string Corpus::BadLineSummary() const {
  if (bad_lines == 0) return "";
  std::string summary =
      absl::StrCat(bad_lines, bad_lines == 1 ? " bad line" : " bad lines");
  const char* separator = ": ";
  for (const BadLine& bad : first_bad_lines) {
    absl::StrAppend(&summary, separator, "line ", bad.line, ": ", bad.reason);
    separator = "; ";
  }
  if (bad_lines > static_cast<int64_t>(first_bad_lines.size())) {
    absl::StrAppend(&summary, "; ...");
  }
  return summary;
}

absl::StatusOr<Corpus> ReadCorpus(const std::string& path,
                                  const CorpusOptions& options) {
  std::vector<SentencePair> pairs;
  std::vector<int64_t> lines;
  ASSIGN_OR_RETURN(Corpus corpus,
                   ScanFile(path, options, Keep(&pairs, &lines)));
  corpus.pairs = std::move(pairs);
  corpus.lines = std::move(lines);
  return corpus;
}

absl::StatusOr<CorpusSample> SampleCorpus(const std::vector<TextFile>& files,
                                          const SampleOptions& options,
                                          std::stop_token stop) {
  CHECK(options.max_pairs > 0);
  CorpusSample sample;
  std::set<std::string> languages;
  // Vitter's algorithm R; positions are kept to restore the order.
  const uint64_t key = FoldIn(options.seed, "corpus sample");
  std::vector<std::pair<uint64_t, SentencePair>> kept;
  uint64_t seen = 0;
  for (const TextFile& file : files) {
    const auto take = [&](const PairLine& line, int64_t number) {
      languages.emplace(line.language);
      if (languages.size() > kMaxLanguages) {
        return TooManyLanguages(line, number);
      }
      const uint64_t place = seen++;
      if (kept.size() < options.max_pairs) {
        kept.emplace_back(place, ToSample(line, options.max_side_bytes));
        return absl::OkStatus();
      }
      const uint64_t drawn = RandomBelow(key, place, seen);
      if (drawn < options.max_pairs) {
        kept[drawn] = {place, ToSample(line, options.max_side_bytes)};
      }
      return absl::OkStatus();
    };
    ASSIGN_OR_RETURN(
        const Corpus counts,
        ScanFile(file.path, {.default_language = file.language}, take, stop));
    sample.bad_lines += counts.bad_lines;
  }
  std::sort(kept.begin(), kept.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  sample.pairs.reserve(kept.size());
  for (auto& [place, pair] : kept) sample.pairs.push_back(std::move(pair));
  sample.languages.assign(languages.begin(), languages.end());
  return sample;
}

absl::Status WriteCorpus(const std::string& path,
                         const std::vector<SentencePair>& pairs) {
  std::string lines;
  for (const SentencePair& pair : pairs) {
    for (const std::string* text :
         {&pair.language, &pair.source, &pair.target}) {
      if (text->find_first_of("\t\r\n") != std::string::npos) {
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": a text holds a tab or line break: \"", *text, "\""));
      }
    }
    absl::StrAppend(&lines, pair.language, "\t", pair.source, "\t", pair.target,
                    "\n");
  }
  return WriteFileAtomically(path, lines);
}

}  // namespace gshard
