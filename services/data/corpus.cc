#include "services/data/corpus.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/base/status_macros.h"
#include "services/tokenizer/utf8.h"

namespace gshard {
namespace {

// Takes a file or text line by line; memory for one line at a time.
class CorpusBuilder {
 public:
  explicit CorpusBuilder(const CorpusOptions& options) : options_(options) {}

  // A part of a line, without its line break.
  void Append(absl::string_view part) {
    if (line_.size() + part.size() > options_.max_line_bytes) {
      too_long_ = true;
      line_.clear();
    }
    if (!too_long_) line_.append(part.data(), part.size());
  }

  void EndLine() {
    ++number_;
    if (too_long_) {
      AddBad(absl::StrCat("longer than ", options_.max_line_bytes, " bytes"));
    } else {
      AddLine(absl::StripSuffix(line_, "\r"));
    }
    line_.clear();
    too_long_ = false;
  }

  bool in_line() const { return too_long_ || !line_.empty(); }

  absl::StatusOr<Corpus> Finish() {
    if (in_line()) EndLine();
    if (corpus_.pairs.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "no sentence pairs among ", number_,
          " lines; expected language<TAB>source<TAB>target",
          corpus_.bad_lines > 0 ? absl::StrCat("; ", corpus_.BadLineSummary())
                                : ""));
    }
    return std::move(corpus_);
  }

 private:
  void AddBad(std::string reason) {
    ++corpus_.bad_lines;
    if (corpus_.first_bad_lines.size() < options_.max_reported) {
      corpus_.first_bad_lines.push_back({number_, std::move(reason)});
    }
  }

  void AddLine(absl::string_view line) {
    if (line.empty()) return;
    const size_t malformed = FirstMalformedByte(line);
    if (malformed != line.size()) {
      return AddBad(absl::StrCat("not UTF-8 at byte ", malformed));
    }
    if (line.find('\0') != absl::string_view::npos) {
      return AddBad("holds a zero byte");
    }
    std::vector<absl::string_view> columns = absl::StrSplit(line, '\t');
    absl::string_view language = options_.default_language;
    if (columns.size() == 3) {
      language = columns[0];
    } else if (columns.size() != 2 || language.empty()) {
      return AddBad(absl::StrCat(
          "expected ", options_.default_language.empty() ? "3" : "2 or 3",
          " columns, got ", columns.size()));
    }
    if (!IsLanguageName(language)) {
      return AddBad("the first column is no language name");
    }
    const absl::string_view source =
        absl::StripAsciiWhitespace(columns[columns.size() - 2]);
    const absl::string_view target =
        absl::StripAsciiWhitespace(columns[columns.size() - 1]);
    if (source.empty() || target.empty()) {
      return AddBad(source.empty() ? "the source is empty"
                                   : "the target is empty");
    }
    corpus_.pairs.push_back(
        {std::string(language), std::string(source), std::string(target)});
  }

  const CorpusOptions& options_;
  Corpus corpus_;
  std::string line_;
  bool too_long_ = false;
  int64_t number_ = 0;
};

struct FileCloser {
  void operator()(FILE* file) const { fclose(file); }
};

absl::Status WriteError(const std::string& path) {
  const std::string message =
      absl::StrCat("cannot write ", path, ": ", strerror(errno));
  return errno == ENOSPC || errno == EDQUOT
             ? absl::ResourceExhaustedError(message)
             : absl::FailedPreconditionError(message);
}

}  // namespace

bool IsLanguageName(absl::string_view name) {
  if (name.empty() || name.size() > 32) return false;
  for (const char c : name) {
    if (!absl::ascii_isalnum(c) && c != '_' && c != '-' && c != '@') {
      return false;
    }
  }
  return true;
}

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

std::map<std::string, int64_t> Corpus::CountByLanguage() const {
  std::map<std::string, int64_t> counts;
  for (const SentencePair& pair : pairs) ++counts[pair.language];
  return counts;
}

absl::StatusOr<Corpus> ParseCorpus(absl::string_view text,
                                   const CorpusOptions& options) {
  CorpusBuilder builder(options);
  size_t start = 0;
  while (start < text.size()) {
    const size_t end = text.find('\n', start);
    builder.Append(text.substr(start, end - start));
    if (end == absl::string_view::npos) break;
    builder.EndLine();
    start = end + 1;
  }
  return builder.Finish();
}

absl::StatusOr<Corpus> ReadCorpus(const std::string& path,
                                  const CorpusOptions& options) {
  std::unique_ptr<FILE, FileCloser> file(fopen(path.c_str(), "rbe"));
  if (file == nullptr) {
    return absl::NotFoundError(
        absl::StrCat("cannot open ", path, ": ", strerror(errno)));
  }
  CorpusBuilder builder(options);
  std::vector<char> buffer(256 << 10);
  while (true) {
    const size_t n = fread(buffer.data(), 1, buffer.size(), file.get());
    if (n == 0) break;
    absl::string_view text(buffer.data(), n);
    while (!text.empty()) {
      const size_t end = text.find('\n');
      builder.Append(text.substr(0, end));
      if (end == absl::string_view::npos) break;
      builder.EndLine();
      text.remove_prefix(end + 1);
    }
  }
  if (ferror(file.get())) {
    return absl::DataLossError(
        absl::StrCat("reading ", path, ": ", strerror(errno)));
  }
  absl::StatusOr<Corpus> corpus = builder.Finish();
  if (!corpus.ok()) return Annotate(corpus.status(), path);
  return corpus;
}

absl::Status WriteCorpus(const std::string& path,
                         const std::vector<SentencePair>& pairs) {
  const std::string temporary = absl::StrCat(path, ".partial");
  std::unique_ptr<FILE, FileCloser> file(fopen(temporary.c_str(), "wbe"));
  if (file == nullptr) return WriteError(temporary);
  for (const SentencePair& pair : pairs) {
    for (const std::string* text :
         {&pair.language, &pair.source, &pair.target}) {
      if (text->find_first_of("\t\r\n") != std::string::npos) {
        unlink(temporary.c_str());
        return absl::InvalidArgumentError(absl::StrCat(
            path, ": a text holds a tab or line break: \"", *text, "\""));
      }
    }
    const std::string line =
        absl::StrCat(pair.language, "\t", pair.source, "\t", pair.target, "\n");
    if (fwrite(line.data(), 1, line.size(), file.get()) != line.size()) {
      const absl::Status status = WriteError(path);
      unlink(temporary.c_str());
      return status;
    }
  }
  if (fflush(file.get()) != 0 || fsync(fileno(file.get())) != 0 ||
      rename(temporary.c_str(), path.c_str()) != 0) {
    const absl::Status status = WriteError(path);
    unlink(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace gshard
