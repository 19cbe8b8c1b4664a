#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/integration/hostile_rows.h"

namespace gshard {
namespace {

using enum absl::StatusCode;

constexpr char kTranslate[] = "TranslationService.Translate";
constexpr char kStream[] = "TranslationService.TranslateStream";
constexpr char kExplain[] = "TranslationService.ExplainRouting";

std::string Times(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

std::string Quoted(const std::string& text) {
  return absl::StrCat("'", text, "' ");
}

// A sentence with more fields, or with another text.
std::string Euro(const std::string& more = "") {
  return absl::StrCat("sentences { text: 'Euro' source_language: 'de' ", more,
                      "} ");
}
std::string Sentence(const std::string& text) {
  return absl::StrCat("sentences { source_language: 'de' text: ", Quoted(text),
                      "} ");
}
std::string Options(const std::string& options) {
  return absl::StrCat(Euro(), "options { ", options, " } ");
}
std::string Term(const std::string& source, const std::string& target) {
  return absl::StrCat("terms { source: ", Quoted(source),
                      "target: ", Quoted(target), "} ");
}
// "Zölle": the umlaut is bytes 1 and 2 of 6.
std::string Keep(const std::string& spans) {
  return absl::StrCat(
      "sentences { source_language: 'de' text: 'Z\\303\\266lle' ", spans, "} ");
}

std::vector<HostileRow> SentenceRows() {
  return {
      {kTranslate, "sentences", "", "", kInvalidArgument},
      {kTranslate, "sentences", "sentences {}", "", kInvalidArgument},
      {kTranslate, "sentences", Times(65, Euro()), "", kResourceExhausted},
      {kTranslate, "sentences", Euro() + Sentence(""), "", kInvalidArgument,
       "sentences[1].text"},

      {kTranslate, "sentences.text", Euro(), "", kOk},
      {kTranslate, "sentences.text", Sentence("nul \\000 byte"), "", kOk},
      {kTranslate, "sentences.text", Sentence(""), "", kInvalidArgument},
      {kTranslate, "sentences.text", Sentence(" \\t\\n "), "",
       kInvalidArgument},
      {kTranslate, "sentences.text", Sentence("not \\377 UTF-8"), "",
       kInvalidArgument},
      {kTranslate, "sentences.text", Sentence("half \\303"), "",
       kInvalidArgument},
      {kTranslate, "sentences.text", Sentence("\\355\\240\\200"), "",
       kInvalidArgument},  // a surrogate
      {kTranslate, "sentences.text", Sentence(Times(16385, "a")), "",
       kInvalidArgument},
      {kTranslate, "sentences.text", Sentence(Times(200, "Euro ")), "",
       kInvalidArgument},  // too many tokens

      {kTranslate, "sentences.source_language", "sentences { text: 'Euro' }",
       "", kInvalidArgument},
      {kTranslate, "sentences.source_language",
       "sentences { text: 'Euro' source_language: 'xx' }", "",
       kInvalidArgument},
      {kTranslate, "sentences.source_language",
       "sentences { text: 'Euro' source_language: 'pad' }", "",
       kInvalidArgument},  // a special piece, no language
      {kTranslate, "sentences.source_language",
       "sentences { text: 'Euro' source_language: '/s' }", "",
       kInvalidArgument},
      {kTranslate, "sentences.source_language",
       "sentences { text: 'Euro' source_language: '../de' }", "",
       kInvalidArgument},
      {kTranslate, "sentences.source_language",
       "sentences { text: 'Euro' source_language: '\\377' }", "",
       kInvalidArgument},
      {kTranslate, "sentences.source_language",
       absl::StrCat("sentences { text: 'Euro' source_language: ",
                    Quoted(Times(20000, "d")), "}"),
       "", kInvalidArgument},

      {kTranslate, "sentences.target_prefix", Euro("target_prefix: '\\377' "),
       "", kInvalidArgument},
      {kTranslate, "sentences.target_prefix",
       Euro(absl::StrCat("target_prefix: ", Quoted(Times(16385, "e")))), "",
       kInvalidArgument},
      {kTranslate, "sentences.target_prefix",
       Euro(absl::StrCat("target_prefix: ", Quoted(Times(100, "Euro ")))), "",
       kInvalidArgument},  // too many tokens
      {kTranslate, "sentences.target_prefix",
       Euro("target_prefix: '\\346\\227\\245' "), "",
       kInvalidArgument},  // not writable in the model's alphabet

      {kTranslate, "sentences.keep", Keep("keep {}"), "", kInvalidArgument},
      {kTranslate, "sentences.keep", Keep(Times(1000, "keep { end: 1 } ")), "",
       kOk},  // duplicates
      {kTranslate, "sentences.keep.begin", Keep("keep { begin: -1 end: 1 }"),
       "", kInvalidArgument, "keep[0]"},
      {kTranslate, "sentences.keep.begin", Keep("keep { begin: 4 end: 4 }"), "",
       kInvalidArgument, "keep[0]"},
      {kTranslate, "sentences.keep.begin", Keep("keep { begin: 2 end: 4 }"), "",
       kInvalidArgument, "keep[0]"},
      {kTranslate, "sentences.keep.begin",
       Keep("keep { begin: -2147483648 end: 2147483647 }"), "",
       kInvalidArgument, "keep[0]"},
      {kTranslate, "sentences.keep.end", Keep("keep { begin: 0 end: 7 }"), "",
       kInvalidArgument, "keep[0]"},
      {kTranslate, "sentences.keep.end", Keep("keep { begin: 0 end: 2 }"), "",
       kInvalidArgument, "keep[0]"},
      {kTranslate, "sentences.keep.end",
       Keep("keep { begin: 0 end: -2147483648 }"), "", kInvalidArgument,
       "keep[0]"},

      {kTranslate, "model", Euro() + "model: 'other'", "", kNotFound},
      {kTranslate, "model", Euro() + "model: 'names@99'", "", kNotFound},
      {kTranslate, "model", Euro() + "model: '../names'", "", kNotFound},
      {kTranslate, "model", Euro() + "model: '\\377'", "", kInvalidArgument},
      {kTranslate, "model",
       absl::StrCat(Euro(), "model: ", Quoted(Times(258, "m"))), "",
       kInvalidArgument},
      {kTranslate, "require_full", Euro() + "require_full: true", "", kOk},
  };
}

std::vector<HostileRow> OptionRows() {
  std::vector<HostileRow> rows = {
      {kTranslate, "options", Options(""), "", kOk},
      {kTranslate, "options.greedy", Options("greedy: true beam_size: 2"), "",
       kInvalidArgument},
      {kTranslate, "options.greedy", Options("greedy: true n_best: 2"), "",
       kInvalidArgument, "n_best"},
      {kTranslate, "options.n_best", Options("n_best: 5"), "",
       kInvalidArgument},
      {kTranslate, "options.n_best", Options("n_best: 3 beam_size: 2"), "",
       kInvalidArgument},

      {kTranslate, "options.terms", Options(Times(65, Term("a", "b"))), "",
       kInvalidArgument},
      {kTranslate, "options.terms", Options(Times(64, Term("a", "b"))), "",
       kOk},
      {kTranslate, "options.terms.source", Options(Term("", "b")), "",
       kInvalidArgument},
      {kTranslate, "options.terms.source", Options(Term(" \\t", "b")), "",
       kInvalidArgument},
      {kTranslate, "options.terms.source", Options(Term(Times(257, "a"), "b")),
       "", kInvalidArgument},
      {kTranslate, "options.terms.source", Options(Term("\\377", "b")), "",
       kInvalidArgument},
      {kTranslate, "options.terms.target", Options(Term("Euro", "")), "",
       kInvalidArgument},
      {kTranslate, "options.terms.target",
       Options(Term("Euro", Times(257, "a"))), "", kInvalidArgument},
      {kTranslate, "options.terms.target", Options(Term("Euro", "\\377")), "",
       kInvalidArgument},
      {kTranslate, "options.terms.target",
       Options(Term("Euro", "\\346\\227\\245")), "", kInvalidArgument},
      // Written with an ordinary "e", or with one space.
      {kTranslate, "options.terms.target",
       Options(Term("Euro", "\\357\\275\\205uro")), "", kInvalidArgument,
       "only as \"euro\""},
      {kTranslate, "options.terms.target", Options(Term("Euro", "a  a")), "",
       kInvalidArgument, "only as"},
      {kTranslate, "options.terms.target", Options(Term("Euro", " euro ")), "",
       kOk},
      {kTranslate, "options.terms.target",
       Options(Term("Euro", Times(128, "a ")) + "max_length: 8"), "",
       kInvalidArgument, "fewer than 8 tokens"},

      {kTranslate, "options.unknown", Options("unknown: 3"), "",
       kInvalidArgument},
      {kTranslate, "options.unknown", Options("unknown: -1"), "",
       kInvalidArgument},
      {kTranslate, "options.alternatives",
       Options("alternatives: true greedy: true"), "", kInvalidArgument},
      {kTranslate, "options.alternatives",
       Options("alternatives: true " + Term("a", "b")), "", kInvalidArgument},
      {kTranslate, "options.alternatives",
       Keep("keep { end: 1 }") + "options { alternatives: true }", "",
       kInvalidArgument},
  };
  const std::string draw = "sampling {} ";
  for (const std::string& other :
       {std::string("greedy: true"), std::string("alternatives: true"),
        std::string("beam_size: 2"), Term("a", "b")}) {
    rows.push_back({kTranslate, "options.sampling", Options(draw + other), ""});
  }
  rows.push_back({kTranslate, "options.sampling",
                  Keep("keep { end: 1 }") + "options { " + draw + "}", ""});
  rows.push_back({kTranslate, "options.sampling.seed",
                  Options("sampling { seed: 18446744073709551615 } n_best: 32"),
                  "", kOk});
  for (const char* value : {"-1", "-2147483648", "65", "2147483647"}) {
    rows.push_back({kTranslate, "options.sampling.top_k",
                    Options(absl::StrCat("sampling { top_k: ", value, " }")),
                    ""});
  }
  for (const char* value : {"-1", "0.009", "10.1", "1e-45", "nan", "inf"}) {
    rows.push_back(
        {kTranslate, "options.sampling.temperature",
         Options(absl::StrCat("sampling { temperature: ", value, " }")), ""});
  }
  for (const char* value : {"-1", "-2147483648", "33", "2147483647"}) {
    rows.push_back({kTranslate, "options.beam_size",
                    Options(absl::StrCat("beam_size: ", value)), ""});
    rows.push_back({kTranslate, "options.n_best",
                    Options(absl::StrCat("n_best: ", value)), ""});
  }
  for (const char* value : {"-1", "-2147483648", "65", "2147483647"}) {
    rows.push_back({kTranslate, "options.max_length",
                    Options(absl::StrCat("max_length: ", value)), ""});
  }
  for (const char* value : {"-0.1", "4.1", "1e30", "nan", "inf", "-inf"}) {
    rows.push_back({kTranslate, "options.length_penalty",
                    Options(absl::StrCat("length_penalty: ", value)), ""});
  }
  return rows;
}

// The same sentence as the field of an ExplainRoutingRequest.
std::string Explain(const std::string& sentence, const std::string& more = "") {
  return absl::StrCat(sentence.substr(0, 8), sentence.substr(9), more);
}

}  // namespace

std::vector<HostileRow> TranslateRows() {
  std::vector<HostileRow> rows = SentenceRows();
  for (HostileRow& row : OptionRows()) rows.push_back(std::move(row));
  return rows;
}

std::vector<HostileRow> TranslateStreamRows() {
  std::vector<HostileRow> rows = {
      {kStream, "request", "", "", kInvalidArgument, "sentences"},
      {kStream, "id",
       absl::StrCat("id: 18446744073709551615 request { ", Euro(), "}"), "",
       kOk},
      {kStream, "timeout_ms",
       absl::StrCat("timeout_ms: -1 request { ", Euro(), "}"), "",
       kInvalidArgument},
      {kStream, "timeout_ms",
       absl::StrCat("timeout_ms: -9223372036854775808 request { ", Euro(), "}"),
       "", kInvalidArgument},
      {kStream, "timeout_ms",
       absl::StrCat("timeout_ms: 9223372036854775807 request { ", Euro(), "}"),
       "", kOk},
  };
  for (HostileRow row : TranslateRows()) {
    row.method = kStream;
    row.field = "request." + row.field;
    row.text = absl::StrCat("request { ", row.text, " }");
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<HostileRow> ExplainRoutingRows() {
  std::vector<HostileRow> rows = {
      {kExplain, "sentence", "", "", kInvalidArgument},
      {kExplain, "sentence.target_prefix", Explain(Euro("target_prefix: 'a' ")),
       "", kInvalidArgument},
      {kExplain, "sentence.keep", Explain(Keep("keep { end: 1 }")), "",
       kInvalidArgument},
      {kExplain, "sentence.keep.begin", Explain(Keep("keep { begin: -1 }")), "",
       kInvalidArgument, "keep"},
      {kExplain, "sentence.keep.end", Explain(Keep("keep { end: -1 }")), "",
       kInvalidArgument, "keep"},
      {kExplain, "target", Explain(Euro(), "target: '\\377'"), "",
       kInvalidArgument, "ExplainRoutingRequest"},
      {kExplain, "target",
       Explain(Euro(), absl::StrCat("target: ", Quoted(Times(16385, "e")))), "",
       kInvalidArgument},
      {kExplain, "target",
       Explain(Euro(), absl::StrCat("target: ", Quoted(Times(100, "Euro ")))),
       "", kInvalidArgument},
      {kExplain, "target", Explain(Euro(), "target: '\\346\\227\\245'"), "",
       kInvalidArgument},
      {kExplain, "target", Explain(Euro(), "target: 'euro'"), "", kOk},
  };
  for (HostileRow row : SentenceRows()) {
    const bool whole = row.field == "sentences" || row.field == "require_full";
    const bool text = row.field == "sentences.text" ||
                      row.field == "sentences.source_language";
    if (whole || (!text && row.field != "model")) continue;
    row.method = kExplain;
    row.text = Explain(row.text);
    if (row.field != "model") row.field = "sentence" + row.field.substr(9);
    // An error about text that is not UTF-8 does not name the field here.
    if (row.text.find("\\377") != std::string::npos ||
        row.text.find("\\303'") != std::string::npos ||
        row.text.find("\\355") != std::string::npos) {
      row.says = "ExplainRoutingRequest";
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace gshard
