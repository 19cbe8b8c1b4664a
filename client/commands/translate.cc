// gshard translate: translates line by line.

#include <limits>
#include <nlohmann/json.hpp>
#include <ostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/commands.h"
#include "client/json_output.h"
#include "client/line_source.h"
#include "client/line_translator.h"
#include "client/translate_flags.h"
#include "services/base/status_macros.h"

namespace gshard {
namespace {

// A translation must not contain line breaks.
std::string OneLine(const std::string& text) {
  return absl::StrReplaceAll(text, {{"\n", " "}, {"\r", " "}});
}

std::string ToJson(const SourceLine& line,
                   const v1::TranslationResult* result) {
  nlohmann::ordered_json json;
  json["line"] = line.number;
  json["language"] = line.language;
  json["source"] = line.text;
  json["hypotheses"] = nlohmann::ordered_json::array();
  if (!line.error.ok()) json["error"] = std::string(line.error.message());
  if (result != nullptr) {
    json["source_token_count"] = result->source_token_count();
    json["unknown_source_tokens"] = result->unknown_source_tokens();
    json["phrase_count"] = result->phrase_count();
    json["lost_choice_share"] = result->lost_choice_share();
    for (const v1::Hypothesis& hypothesis : result->hypotheses()) {
      json["hypotheses"].push_back({{"text", hypothesis.text()},
                                    {"score", hypothesis.score()},
                                    {"token_count", hypothesis.token_count()},
                                    {"truncated", hypothesis.truncated()},
                                    {"phrases_met", hypothesis.phrases_met()}});
    }
  }
  return JsonLine(json);
}

std::string ToText(const SourceLine& line, const v1::TranslationResult* result,
                   bool n_best) {
  if (!n_best) {
    return result == nullptr || result->hypotheses().empty()
               ? ""
               : OneLine(result->hypotheses(0).text());
  }
  std::string text;
  if (result == nullptr) return text;
  for (const v1::Hypothesis& hypothesis : result->hypotheses()) {
    absl::StrAppend(&text, text.empty() ? "" : "\n", line.number, "\t",
                    absl::StrFormat("%.4f", hypothesis.score()), "\t",
                    OneLine(hypothesis.text()));
  }
  return text;
}

}  // namespace

absl::Status TranslateCommand(Arguments arguments, Console& console) {
  TranslateFlags translate(console);
  LineFormat format;
  std::string file;
  std::string on_error = "stop";
  bool json = false;
  Flags flags("gshard translate",
              "Translates its arguments, else a file or standard input, line "
              "by line: a line comes out for each that goes in, in the same "
              "order; blank lines stay blank. Lines that are there travel "
              "together; none waits for one that is still to come.");
  flags.Positional("[TEXT...]", 0, std::numeric_limits<int>::max(),
                   "each is one line");
  flags.Text("from", &format.language, "LANGUAGE",
             "language of the text; left out: the model's default");
  flags.Text("file", &file, "FILE", "text to translate; \"-\": standard input");
  flags.Bool("tsv", &format.tab_separated,
             "lines are language<TAB>text; further columns are not read");
  flags.Integer("n_best", &translate.n_best, 1, 32,
                "translations a line; above 1 each is printed as line "
                "number<TAB>score<TAB>text, best first");
  flags.Choice("on_error", &on_error, {"stop", "blank"},
               "for a line that is refused, such as one that is too long: stop "
               "there, or leave it blank (\"error\" with --json), go on, and "
               "exit with 1 at the end");
  flags.Bool("json", &json, "print one JSON object a line");
  translate.Declare(flags);
  flags.Example(
      "gshard translate \"Bibliothek zum Lesen von Bildern\" --from de");
  flags.Example("gshard translate --tsv < data/test.tsv > english.txt");
  flags.Example(
      "gshard translate --from de --file book.txt --greedy --timeout 5m "
      "--on_error blank");
  flags.Example(
      "gshard translate --from de \"Bibliothek\" --n_best 4 --beam 8");
  flags.Example(
      "gshard translate --from de \"Bibliothek zum Lesen\" --prefix \"library "
      "for\" --alternatives");
  flags.Example(
      "gshard translate --from de --file titles.txt --sample --n_best 5 --seed "
      "1");
  flags.Example(
      "gshard translate --from de --file titles.txt --glossary terms.tsv "
      "--keep "
      "GIMP,libpng");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();
  if (!parsed->positional.empty() && !file.empty()) {
    return UsageError("expected texts or --file, got both");
  }
  if (format.tab_separated && !format.language.empty()) {
    return UsageError("expected --tsv or --from, got both");
  }

  LineTranslator::Source source;
  if (!parsed->positional.empty()) {
    source = LinesOfTexts(parsed->positional, format);
  } else if (file.empty() || file == "-") {
    source = LinesOfFile(console.in, format);
  } else {
    ASSIGN_OR_RETURN(source, LinesOfPath(file, format));
  }
  translate.options.blank_errors = on_error == "blank";
  const bool several = translate.n_best > 1 || translate.alternatives;
  ASSIGN_OR_RETURN(const auto translator, translate.Connect(console));
  int64_t degraded = 0, blank = 0;
  absl::Status first_error;
  absl::Status status = translator->Translate(
      {[&]() -> absl::StatusOr<std::optional<SourceLine>> {
         // Stop if the output cannot be written.
         RETURN_IF_ERROR(CheckOutput(console));
         return source.next();
       },
       source.ready},
      [&](const SourceLine& line, const v1::TranslationResult* result) {
        if (result != nullptr && result->lost_choice_share() > 0) ++degraded;
        if (!line.error.ok() && blank++ == 0) first_error = line.error;
        if (json) {
          *console.out << ToJson(line, result) << std::endl;
        } else if (!several || result != nullptr) {
          *console.out << ToText(line, result, several) << std::endl;
        }
      });
  WarnOfDegraded(degraded, console);
  if (status.ok()) status = BlankLines(blank, first_error);
  return format.language.empty() && !format.tab_separated
             ? AskForLanguage(status)
             : status;
}

}  // namespace gshard
