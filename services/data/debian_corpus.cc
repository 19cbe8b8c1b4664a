#include "services/data/debian_corpus.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/base/subprocess.h"
#include "services/config/language_name.h"
#include "services/data/cleaning.h"
#include "services/data/corpus.h"
#include "services/data/package_descriptions.h"
#include "services/storage/file.h"

namespace gshard {
namespace {

namespace fs = std::filesystem;

constexpr char kAptHelper[] = "/usr/lib/apt/apt-helper";
// Paragraphs are longer than titles.
constexpr int64_t kMaxTitleWords = 14;
constexpr int64_t kMaxParagraphWords = 80;

// "Translation-pt%5fBR.lz4" -> "pt_BR"; empty for other files.
std::string LanguageOfFile(const std::string& name) {
  const size_t start = name.rfind("_i18n_Translation-");
  if (start == std::string::npos) return "";
  std::string language = name.substr(start + 18);
  language = language.substr(0, language.find('.'));
  return absl::StrReplaceAll(language,
                             {{"%5f", "_"}, {"%5F", "_"}, {"%40", "@"}});
}

// apt's error messages.
std::string Complaint(const SubprocessResult& result) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(result.error_output, '\n')) {
    if (absl::StartsWith(line, "E: ") || absl::StartsWith(line, "W: ")) {
      lines.push_back(std::string(line.substr(3)));
    }
    if (lines.size() == 3) break;
  }
  return absl::StrJoin(lines, "; ");
}

// A private apt setup under `folder`: its own lists and caches, the machine's
// sources, keys and proxies.
class PrivateApt {
 public:
  PrivateApt(fs::path folder, std::vector<std::string> languages)
      : folder_(std::move(folder)), languages_(std::move(languages)) {}

  absl::Status Prepare() {
    RETURN_IF_ERROR(MakeDirectories(folder_ / "lists" / "partial"));
    RETURN_IF_ERROR(
        MakeDirectories(folder_ / "cache" / "archives" / "partial"));
    // apt reads APT_CONFIG, then the machine's apt.conf.d, then the main file
    // that APT_CONFIG may name: that one can override the machine's settings.
    std::string main =
        "// Made by gshard, for the descriptions of packages only.\n"
        "#clear APT::Update::Pre-Invoke;\n"
        "#clear APT::Update::Post-Invoke;\n"
        "#clear APT::Update::Post-Invoke-Success;\n"
        "#clear Acquire::Languages;\n"
        "Acquire::Languages { \"en\"; ";
    for (const std::string& language : languages_) {
      absl::StrAppend(&main, "\"", language, "\"; ");
    }
    absl::StrAppend(&main, "};\n");
    std::error_code ignored;
    if (fs::exists("/etc/apt/apt.conf", ignored)) {
      main = absl::StrCat("#include \"/etc/apt/apt.conf\";\n", main);
    }
    RETURN_IF_ERROR(WriteFileAtomically(folder_ / "main.conf", main));
    // This format cannot quote all paths, so apt runs in the folder.
    return WriteFileAtomically(folder_ / "first.conf",
                               "Dir::Etc::main \"./main.conf\";\n");
  }

  // Errors: FailedPrecondition without apt; what apt reports is in the result.
  absl::StatusOr<SubprocessResult> Update() const {
    std::vector<std::string> argv = {"apt-get"};
    const auto set = [&](absl::string_view name, absl::string_view value) {
      argv.push_back("-o");
      argv.push_back(absl::StrCat(name, "=", value));
    };
    set("Dir::State::lists", (folder_ / "lists").string() + "/");
    set("Dir::Cache", (folder_ / "cache").string() + "/");
    set("Dir::Cache::pkgcache", "");
    set("Dir::Cache::srcpkgcache", "");
    // apt's own user may not be able to read the folder.
    set("APT::Sandbox::User", "root");
    set("APT::Get::List-Cleanup", "false");
    set("Acquire::IndexTargets::deb::Packages::DefaultEnabled", "false");
    set("Acquire::IndexTargets::deb-src::Sources::DefaultEnabled", "false");
    for (const char* target :
         {"DEP-11", "DEP-11-icons", "DEP-11-icons-small", "DEP-11-icons-large",
          "Contents-deb", "DEP-11-icons-hidpi", "DEP-11-icons-large-hidpi"}) {
      set(absl::StrCat("Acquire::IndexTargets::deb::", target,
                       "::DefaultEnabled"),
          "false");
    }
    set("Acquire::PDiffs", "false");
    set("Acquire::GzipIndexes", "true");
    set("Acquire::Retries", "3");
    argv.push_back("update");
    SubprocessOptions options;
    options.environment = {
        absl::StrCat("APT_CONFIG=", (folder_ / "first.conf").string()),
        "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive"};
    options.working_directory = folder_.string();
    options.show_output = true;
    absl::StatusOr<SubprocessResult> result = RunSubprocess(argv, options);
    if (absl::IsNotFound(result.status())) {
      return absl::FailedPreconditionError(
          "no apt-get on this machine: the corpus is made from the package "
          "descriptions of a Debian archive");
    }
    return result;
  }

  // The indexes of `language`, in the order of their names.
  absl::StatusOr<std::vector<Description>> Read(
      const std::string& language) const {
    ASSIGN_OR_RETURN(const auto names, ListDirectory(folder_ / "lists"));
    std::vector<Description> descriptions;
    for (const std::string& name : names) {
      if (LanguageOfFile(name) != language) continue;
      const std::string path = folder_ / "lists" / name;
      absl::StatusOr<SubprocessResult> text =
          RunSubprocess({kAptHelper, "cat-file", path});
      if (!text.ok()) return Annotate(text.status(), path);
      if (text->exit_code != 0) {
        return absl::DataLossError(
            absl::StrCat("cannot unpack ", path, " (", Complaint(*text),
                         "); delete it to have it fetched again"));
      }
      std::vector<Description> more = ParseTranslations(text->output, language);
      std::move(more.begin(), more.end(), std::back_inserter(descriptions));
    }
    return descriptions;
  }

 private:
  const fs::path folder_;
  const std::vector<std::string> languages_;
};

// apt hangs on a full disk without an error, so check before.
absl::Status CheckFreeSpace(const std::string& folder, size_t languages) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error) return FileError(error.value(), "tell the free space of", folder);
  const uint64_t needed = (64 + 16 * languages) << 20;
  if (space.available >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the disk is full: expected ", needed >> 20, " MiB free in ",
                   folder, ", got ", space.available >> 20, " MiB"));
}

absl::Status CheckLanguages(const std::vector<std::string>& languages) {
  if (languages.empty()) {
    return absl::InvalidArgumentError(
        "languages: expected at least one, such as de or pt_BR");
  }
  for (size_t i = 0; i < languages.size(); ++i) {
    const std::string& name = languages[i];
    if (!IsLanguageName(name) || name == "en" || name == "none" ||
        name == "environment") {
      return absl::InvalidArgumentError(absl::StrCat(
          "languages: expected a language other than English, such as de or "
          "pt_BR, got \"",
          name, "\""));
    }
    if (std::count(languages.begin(), languages.end(), name) > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("languages: \"", name, "\" is there twice"));
    }
  }
  return absl::OkStatus();
}

// Orders pairs by a function of their text, so that the first n for any n are a
// fair sample of the languages and topics.
void Scatter(std::vector<SentencePair>* pairs) {
  const auto key = [](const SentencePair& pair) {
    return FoldIn(FoldIn(0, pair.language), pair.source);
  };
  std::sort(pairs->begin(), pairs->end(),
            [&](const SentencePair& a, const SentencePair& b) {
              const uint64_t i = key(a), j = key(b);
              return i != j ? i < j : a.source < b.source;
            });
}

// Why there are no English descriptions.
absl::Status NothingFetched(const SubprocessResult& update) {
  const std::string complaint = Complaint(update);
  if (absl::StrContains(update.error_output, "No space left on device")) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the disk is full: ", complaint));
  }
  if (complaint.empty()) {
    return absl::FailedPreconditionError(
        "apt fetched no package descriptions: are there Debian sources in "
        "/etc/apt?");
  }
  return absl::UnavailableError(
      absl::StrCat("cannot reach the Debian archive: ", complaint));
}

}  // namespace

std::string DebianCorpusReport::Table() const {
  Line sum{"all"};
  size_t width = 8;
  for (const Line& line : lines) {
    sum.train += line.train;
    sum.dev += line.dev;
    sum.test += line.test;
    width = std::max(width, line.language.size());
  }
  std::string table = absl::StrFormat("%-*s %8s %7s %7s\n", width, "language",
                                      "train", "dev", "test");
  const auto add = [&](const Line& line) {
    absl::StrAppendFormat(&table, "%-*s %8d %7d %7d\n", width, line.language,
                          line.train, line.dev, line.test);
  };
  for (const Line& line : lines) add(line);
  add(sum);
  return table;
}

absl::StatusOr<DebianCorpusReport> BuildDebianCorpus(
    const DebianCorpusOptions& options) {
  RETURN_IF_ERROR(CheckLanguages(options.languages));
  if (options.out.empty()) {
    return absl::InvalidArgumentError("out: expected a folder");
  }
  RETURN_IF_ERROR(MakeDirectories(options.out));
  std::error_code error;
  const fs::path out = fs::absolute(options.out, error);
  RETURN_IF_ERROR(CheckFreeSpace(out, options.languages.size()));
  PrivateApt apt(out / "apt", options.languages);
  RETURN_IF_ERROR(apt.Prepare());
  ASSIGN_OR_RETURN(const SubprocessResult update, apt.Update());
  ASSIGN_OR_RETURN(const std::vector<Description> english, apt.Read("en"));
  if (english.empty()) return NothingFetched(update);

  DebianCorpusReport report;
  if (!Complaint(update).empty()) {
    report.warnings.push_back(absl::StrCat("apt: ", Complaint(update)));
  }
  std::vector<SentencePair> train, dev, test;
  for (const std::string& language : options.languages) {
    ASSIGN_OR_RETURN(const std::vector<Description> translated,
                     apt.Read(language));
    if (translated.empty()) {
      report.warnings.push_back(absl::StrCat(
          "the archive has no descriptions in \"", language, "\""));
    }
    DebianCorpusReport::Line line{language};
    for (SentencePair& pair :
         CleanPairs(MatchDescriptions(english, translated, language,
                                      options.paragraphs),
                    options.paragraphs ? kMaxParagraphWords : kMaxTitleWords)) {
      switch (SplitOf(pair.target)) {
        case Split::kTrain:
          ++line.train, train.push_back(std::move(pair));
          break;
        case Split::kDev:
          ++line.dev, dev.push_back(std::move(pair));
          break;
        case Split::kTest:
          ++line.test, test.push_back(std::move(pair));
          break;
      }
    }
    report.lines.push_back(line);
  }
  if (train.empty()) {
    return absl::NotFoundError(
        absl::StrCat("no pairs of ", absl::StrJoin(options.languages, ", "),
                     " and English: ", absl::StrJoin(report.warnings, "; ")));
  }
  for (std::vector<SentencePair>* part : {&train, &dev, &test}) Scatter(part);
  RETURN_IF_ERROR(WriteCorpus((out / "train.tsv").string(), train));
  RETURN_IF_ERROR(WriteCorpus((out / "dev.tsv").string(), dev));
  RETURN_IF_ERROR(WriteCorpus((out / "test.tsv").string(), test));
  return report;
}

}  // namespace gshard
