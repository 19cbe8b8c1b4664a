// gshard evaluate: translates and scores a held-out split.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <ostream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/commands.h"
#include "client/interrupt.h"
#include "client/json_output.h"
#include "client/line_translator.h"
#include "client/model_files.h"
#include "client/sacrebleu.h"
#include "client/translate_flags.h"
#include "services/base/status_macros.h"
#include "services/base/table.h"
#include "services/data/corpus.h"
#include "services/storage/file.h"

namespace gshard {
namespace {

// Texts of a set of sentences, one per line.
struct TextSet {
  std::string name;    // a language, or "all"
  std::string prefix;  // of its files' names: "de.", or nothing for all
  std::string sources = {};
  std::string references = {};
  std::string hypotheses = {};
  int64_t sentences = 0;
};

struct ScoredSet {
  std::string name;
  int64_t sentences = 0;
  std::vector<Score> scores;
};

// By language, and all of them at the end.
std::vector<TextSet> SetsOf(const std::vector<SentencePair>& pairs,
                            const std::vector<std::string>& hypotheses) {
  std::map<std::string, TextSet> languages;
  TextSet all{.name = "all", .prefix = ""};
  for (size_t i = 0; i < pairs.size(); ++i) {
    const std::string& language = pairs[i].language;
    TextSet& own = languages[language];
    own.name = language;
    own.prefix = language + ".";
    for (TextSet* set : {&own, &all}) {
      absl::StrAppend(&set->sources, pairs[i].source, "\n");
      absl::StrAppend(&set->references, pairs[i].target, "\n");
      absl::StrAppend(&set->hypotheses, hypotheses[i], "\n");
      ++set->sentences;
    }
  }
  std::vector<TextSet> sets;
  for (auto& [language, set] : languages) sets.push_back(std::move(set));
  sets.push_back(std::move(all));
  return sets;
}

absl::Status WriteTexts(const std::string& directory, const TextSet& set) {
  const std::string begin = absl::StrCat(directory, "/", set.prefix);
  RETURN_IF_ERROR(WriteFileAtomically(begin + "sources.txt", set.sources));
  RETURN_IF_ERROR(
      WriteFileAtomically(begin + "references.txt", set.references));
  return WriteFileAtomically(begin + "hypotheses.txt", set.hypotheses);
}

absl::StatusOr<std::vector<ScoredSet>> ScoreAll(
    const Sacrebleu& sacrebleu, const std::string& directory,
    const std::vector<TextSet>& sets) {
  std::vector<ScoredSet> scored;
  for (const TextSet& set : sets) {
    const std::string begin = absl::StrCat(directory, "/", set.prefix);
    ASSIGN_OR_RETURN(
        std::vector<Score> scores,
        sacrebleu.Compare(begin + "hypotheses.txt", begin + "references.txt"));
    scored.push_back({set.name, set.sentences, std::move(scores)});
  }
  return scored;
}

std::string ScoreTable(const std::vector<ScoredSet>& scored) {
  std::vector<std::string> columns = {"language", "sentences"};
  std::vector<size_t> right = {1};
  for (const Score& score : scored.front().scores) {
    right.push_back(columns.size());
    columns.push_back(score.metric);
  }
  Table table(columns, right);
  for (const ScoredSet& set : scored) {
    std::vector<std::string> row = {set.name, absl::StrCat(set.sentences)};
    for (const Score& score : set.scores) {
      row.push_back(absl::StrFormat("%.2f", score.score));
    }
    row.resize(columns.size());
    table.AddRow(row);
  }
  std::string text = table.ToText();
  for (const Score& score : scored.back().scores) {
    absl::StrAppend(&text, score.metric, " ", score.signature, "\n");
  }
  return text;
}

std::string SampleTable(const std::vector<SentencePair>& pairs,
                        const std::vector<std::string>& hypotheses,
                        int64_t samples) {
  Table table({"language", "source", "reference", "ours"});
  for (size_t i = 0; i < pairs.size() && i < static_cast<size_t>(samples);
       ++i) {
    table.AddRow(
        {pairs[i].language, pairs[i].source, pairs[i].target, hypotheses[i]});
  }
  return table.ToText();
}

// A folder that is removed with the object, unless it is to be kept.
class OutputDirectory {
 public:
  // Keeps the folder that the user has named, if any.
  static absl::StatusOr<std::unique_ptr<OutputDirectory>> Create(
      const std::string& named) {
    std::string path = named;
    if (named.empty()) {
      std::error_code error;
      path = std::filesystem::temp_directory_path(error).string() +
             "/gshard-evaluate-XXXXXX";
      if (mkdtemp(path.data()) == nullptr) {
        return Annotate(FileError(errno, "make directory", path), "see --out");
      }
    } else {
      RETURN_IF_ERROR(MakeDirectories(path));
    }
    return std::unique_ptr<OutputDirectory>(
        new OutputDirectory(path, !named.empty()));
  }
  ~OutputDirectory() {
    std::error_code error;
    if (!kept_) std::filesystem::remove_all(path_, error);
  }
  OutputDirectory(const OutputDirectory&) = delete;
  OutputDirectory& operator=(const OutputDirectory&) = delete;

  const std::string& path() const { return path_; }
  void Keep() { kept_ = true; }

 private:
  OutputDirectory(std::string path, bool kept)
      : path_(std::move(path)), kept_(kept) {}

  const std::string path_;
  bool kept_;
};

nlohmann::ordered_json ScoresToJson(const std::vector<ScoredSet>& scored) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const ScoredSet& set : scored) {
    nlohmann::ordered_json one = {{"language", set.name},
                                  {"sentences", set.sentences}};
    for (const Score& score : set.scores) {
      one["scores"].push_back({{"metric", score.metric},
                               {"score", score.score},
                               {"signature", score.signature}});
    }
    json.push_back(one);
  }
  return json;
}

}  // namespace

absl::Status EvaluateCommand(Arguments arguments, Console& console) {
  TranslateFlags translate(console);
  ObjectStoreOptions store;
  std::string test, language, out, sacrebleu_path;
  int64_t limit = 0;
  int64_t samples = 8;
  bool json = false;
  Flags flags("gshard evaluate",
              "Translates held-out text and prints the scores that sacreBLEU "
              "gives, if that is installed, by language and over all, and a "
              "few translations. Lines that a router refuses count as empty "
              "translations.");
  flags.Text("test", &test, "FILE",
             "tab-separated language, source and target; or source and target "
             "with --from");
  flags.Require("test");
  flags.Text("from", &language, "LANGUAGE",
             "language of lines with two columns; left out: they are skipped");
  flags.Integer("limit", &limit, 0, 1'000'000'000,
                "sentences to take, from the start of the file; 0: all");
  flags.Text("out", &out, "DIR",
             "folder for hypotheses.txt, references.txt and sources.txt, and "
             "the same by language; left out: none are kept, unless sacreBLEU "
             "fails");
  flags.Text("sacrebleu", &sacrebleu_path, "PATH",
             "the program; left out: the one on PATH, or python3 -m sacrebleu");
  flags.Integer("samples", &samples, 0, 1'000'000, "translations to print");
  flags.Bool("json", &json, "print one JSON object");
  AddStoreFlags(flags, &store, /*has_insecure=*/true);
  translate.Declare(flags);
  flags.Example("gshard evaluate --test data/test.tsv --limit 500 --beam 4");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();

  store.insecure = translate.system.security.insecure;
  ConfigureObjectStore(store);

  ASSIGN_OR_RETURN(
      const Corpus corpus,
      ReadCorpus(test, {.default_language = language, .max_pairs = limit}));
  if (corpus.bad_lines > 0) {
    *console.error << "gshard: " << test << ": " << corpus.BadLineSummary()
                   << "\n";
  }
  const std::vector<SentencePair>& pairs = corpus.pairs;
  std::unique_ptr<OutputDirectory> directory;
  if (!out.empty()) {
    ASSIGN_OR_RETURN(directory, OutputDirectory::Create(out));
  }
  translate.options.blank_errors = true;
  ASSIGN_OR_RETURN(const auto translator, translate.Connect(console));

  const auto started = std::chrono::steady_clock::now();
  std::vector<std::string> hypotheses;
  int64_t degraded = 0, blank = 0;
  absl::Status first_error;
  size_t next = 0;
  const absl::Status translated = translator->Translate(
      {[&]() -> absl::StatusOr<std::optional<SourceLine>> {
        if (next == pairs.size()) return std::optional<SourceLine>();
        // What is wrong with this many is wrong with the request.
        if (blank >= 100 && blank == std::ssize(hypotheses)) return first_error;
        const SentencePair& pair = pairs[next];
        return std::optional<SourceLine>(
            SourceLine{corpus.lines[next++], pair.language, pair.source});
      }},
      [&](const SourceLine& line, const v1::TranslationResult* result) {
        if (!line.error.ok() && blank++ == 0) first_error = line.error;
        if (result != nullptr && result->lost_choice_share() > 0) ++degraded;
        hypotheses.push_back(
            result == nullptr || result->hypotheses().empty()
                ? ""
                : absl::StrReplaceAll(result->hypotheses(0).text(),
                                      {{"\n", " "}, {"\r", " "}}));
        if (console.out_is_terminal && !json) {
          *console.error << "\rtranslated " << hypotheses.size() << " of "
                         << pairs.size() << std::flush;
        }
      });
  RETURN_IF_ERROR(Annotate(translated, test));
  if (console.out_is_terminal && !json) *console.error << "\r\x1b[K";
  WarnOfDegraded(degraded, console);
  if (blank > 0) {
    const absl::Status refused = Annotate(BlankLines(blank, first_error), test);
    // Not the text but the request is wrong, such as its language.
    if (blank == static_cast<int64_t>(pairs.size())) return refused;
    *console.error << "gshard: warning: " << refused.message() << std::endl;
  }
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - started;

  const std::vector<TextSet> sets = SetsOf(pairs, hypotheses);
  const Interrupt interrupt;  // from here on a folder may have to be removed
  if (directory == nullptr) {
    ASSIGN_OR_RETURN(directory, OutputDirectory::Create(out));
  }
  for (const TextSet& set : sets) {
    RETURN_IF_ERROR(WriteTexts(directory->path(), set));
  }

  std::vector<ScoredSet> scored;
  std::string no_scores;
  absl::Status failed;  // the translations are there all the same
  const absl::StatusOr<Sacrebleu> sacrebleu =
      Sacrebleu::Find(sacrebleu_path, interrupt.token());
  // After a stop request sacreBLEU is not found.
  RETURN_IF_ERROR(interrupt.status());
  if (sacrebleu.ok()) {
    auto scores = ScoreAll(*sacrebleu, directory->path(), sets);
    RETURN_IF_ERROR(interrupt.status());
    if (scores.ok()) {
      scored = *std::move(scores);
    } else {
      failed = Annotate(scores.status(),
                        absl::StrCat("translations are in ", directory->path(),
                                     ", but without scores"));
      no_scores = std::string(scores.status().message());
      directory->Keep();
    }
  } else {
    no_scores = std::string(sacrebleu.status().message());
  }

  if (json) {
    nlohmann::ordered_json object;
    object["sentences"] = pairs.size();
    object["degraded_sentences"] = degraded;
    object["blank_sentences"] = blank;
    object["seconds"] = seconds.count();
    if (scored.empty()) {
      object["no_scores_because"] = no_scores;
    } else {
      object["results"] = ScoresToJson(scored);
    }
    if (!out.empty() || !failed.ok()) {
      object["out"] = AbsolutePath(directory->path());
    }
    *console.out << JsonText(object) << "\n";
    return failed;
  }
  *console.out << SampleTable(pairs, hypotheses, samples) << "\n"
               << absl::StrFormat(
                      "%d sentences in %.1f s, %.1f a second\n", pairs.size(),
                      seconds.count(),
                      pairs.size() / std::max(seconds.count(), 1e-9));
  if (scored.empty()) {
    *console.out << "No scores: " << no_scores << ".\n";
  } else {
    *console.out << ScoreTable(scored);
  }
  return failed;
}

}  // namespace gshard
