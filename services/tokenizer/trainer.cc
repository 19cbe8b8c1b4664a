#include "services/tokenizer/trainer.h"

#include <errno.h>
#include <stdlib.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "services/base/status_macros.h"
#include "services/base/subprocess.h"
#include "services/base/utf8.h"
#include "services/config/language_name.h"
#include "services/storage/file.h"
#include "services/tokenizer/tokenizer.h"

namespace gshard {
namespace {

namespace fs = std::filesystem;

// Training's sums depend on the number of threads, so it is fixed.
constexpr int kThreads = 4;

constexpr size_t kBufferBytes = size_t{1} << 20;

// Linux takes no longer argument, its zero byte included.
constexpr size_t kMaxArgumentBytes = 128 << 10;
constexpr absl::string_view kTagsFlag = "--control_symbols=";
// A tag has two brackets and a comma.
static_assert(kTagsFlag.size() + kMaxLanguages * (kMaxLanguageBytes + 3) <
              kMaxArgumentBytes);

// A folder that is deleted, with its contents, when the scope ends.
class TemporaryFolder {
 public:
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  absl::Status Make(const std::string& prefix) {
    std::string name = absl::StrCat(prefix, ".training-XXXXXX");
    if (mkdtemp(name.data()) == nullptr) {
      return FileError(errno, "make directory", name);
    }
    path_ = name;
    return absl::OkStatus();
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

absl::Status CheckLanguage(absl::string_view language) {
  if (IsLanguageName(language)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("languages: expected a name such as de or pt_BR, got \"",
                   language, "\""));
}

absl::Status CheckOptions(const TokenizerOptions& options) {
  if (options.vocab_size < kMinVocabSize ||
      options.vocab_size > kMaxVocabSize) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocab_size: expected ", kMinVocabSize, " to ",
                     kMaxVocabSize, ", got ", options.vocab_size));
  }
  if (options.languages.size() > kMaxLanguages) {
    return absl::InvalidArgumentError(
        absl::StrCat("languages: expected at most ", kMaxLanguages, ", got ",
                     options.languages.size()));
  }
  for (const std::string& language : options.languages) {
    RETURN_IF_ERROR(CheckLanguage(language));
  }
  return absl::OkStatus();
}

absl::Status WriteSentences(const std::vector<std::string>& sentences,
                            const std::string& path) {
  ASSIGN_OR_RETURN(const auto file, OutputFile::Create(path));
  std::string lines;
  bool any = false;
  for (size_t i = 0; i < sentences.size(); ++i) {
    if (!IsUtf8(sentences[i])) {
      return absl::InvalidArgumentError(
          absl::StrCat("sentence ", i, ": expected UTF-8"));
    }
    if (sentences[i].size() > kMaxSentenceBytes) continue;
    std::string line = sentences[i];
    for (char& c : line) {
      if (c == '\n' || c == '\r' || c == '\0') c = ' ';
    }
    any = any || !absl::StripAsciiWhitespace(line).empty();
    absl::StrAppend(&lines, line, "\n");
    if (lines.size() < kBufferBytes) continue;
    RETURN_IF_ERROR(file->Append(lines));
    lines.clear();
  }
  RETURN_IF_ERROR(file->Append(lines));
  RETURN_IF_ERROR(file->Close());
  if (!any) {
    return absl::InvalidArgumentError("no text to train a vocabulary on");
  }
  return absl::OkStatus();
}

std::vector<std::string> TrainCommand(const TokenizerOptions& options) {
  const bool unigram =
      options.model_type == TokenizerOptions::ModelType::kUnigram;
  std::vector<std::string> tags;
  for (const std::string& language : options.languages) {
    tags.push_back(LanguageTag(language));
  }
  // File names are stored in the model, so they must not vary.
  std::vector<std::string> command = {
      "spm_train", "--input=sentences.txt", "--model_prefix=vocabulary",
      absl::StrCat("--model_type=", unigram ? "unigram" : "bpe"),
      absl::StrCat("--vocab_size=", options.vocab_size),
      "--character_coverage=0.9995",
      // Text with fewer distinct pieces gives a smaller vocabulary.
      absl::StrCat("--hard_vocab_limit=", unigram ? "false" : "true"),
      absl::StrCat("--random_seed=", options.seed),
      absl::StrCat("--num_threads=", kThreads), "--pad_id=0", "--eos_id=1",
      "--unk_id=2", "--bos_id=3", "--minloglevel=1"};
  if (!tags.empty()) {
    command.push_back(absl::StrCat(kTagsFlag, absl::StrJoin(tags, ",")));
  }
  return command;
}

// spm_train prints the reason on its last line.
absl::Status TrainingError(const SubprocessResult& result) {
  for (absl::string_view line : absl::StrSplit(result.error_output, '\n')) {
    const size_t start = line.find("Vocabulary size");
    if (start != absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("vocab_size: ", line.substr(start)));
    }
  }
  const absl::string_view words =
      absl::StripAsciiWhitespace(result.error_output);
  return absl::InternalError(
      absl::StrCat("spm_train failed with code ", result.exit_code, ": ",
                   words.substr(words.size() > 500 ? words.size() - 500 : 0)));
}

// On a full disk spm_train leaves a truncated model without an error.
absl::Status Truncated(const std::string& path, const absl::Status& read) {
  const std::string parent = fs::path(path).parent_path().string();
  const std::string folder = parent.empty() ? "." : parent;
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  return absl::ResourceExhaustedError(absl::StrCat(
      "cannot write ", path, ": spm_train left a vocabulary that cannot be ",
      "read, as it does on a full disk; free in ", folder, ": ",
      error ? "unknown" : absl::StrCat(space.available, " bytes"), "; ",
      read.message()));
}

}  // namespace

absl::Status TrainTokenizer(const TokenizerOptions& options,
                            std::vector<std::string> sentences,
                            const std::string& path, std::stop_token stop) {
  RETURN_IF_ERROR(CheckOptions(options));
  TemporaryFolder folder;
  RETURN_IF_ERROR(folder.Make(path));
  RETURN_IF_ERROR(WriteSentences(sentences, folder.path() + "/sentences.txt"));
  std::vector<std::string>().swap(sentences);  // spm_train has its own copy
  SubprocessOptions run;
  run.working_directory = folder.path();
  run.environment = {"LC_ALL=C.UTF-8"};
  run.stop = stop;
  absl::StatusOr<SubprocessResult> result =
      RunSubprocess(TrainCommand(options), run);
  if (absl::IsNotFound(result.status())) {
    return absl::FailedPreconditionError(
        "no program spm_train; install the Debian package sentencepiece");
  }
  RETURN_IF_ERROR(result.status());
  if (result->exit_code != 0) return TrainingError(*result);
  const std::string model = folder.path() + "/vocabulary.model";
  const absl::Status checked = Tokenizer::Load(model).status();
  if (absl::IsDataLoss(checked)) return Truncated(path, checked);
  RETURN_IF_ERROR(checked);
  return RenamePath(model, path);
}

}  // namespace gshard
