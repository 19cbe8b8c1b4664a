// gshard data debian: parallel text from any Debian machine.

#include <nlohmann/json.hpp>

#include "client/commands.h"
#include "client/json_output.h"
#include "services/base/status_macros.h"
#include "services/data/debian_corpus.h"

namespace gshard {

absl::Status DataDebianCommand(Arguments arguments, Console& console) {
  DebianCorpusOptions options;
  options.languages = {"de", "fr", "es", "pt_BR"};
  bool json = false;
  Flags flags(
      "gshard data debian",
      "Makes parallel text, into English, from the package descriptions that "
      "apt serves: DIR/train.tsv, dev.tsv and test.tsv with tab-separated "
      "language, source and target. Nothing in dev or test stands in train. "
      "apt's own lists stay as they are. The text carries the licences of its "
      "packages: use it, don't redistribute it.");
  flags.List("languages", &options.languages, "LANGUAGE",
             "languages of the archive's Translation indexes");
  flags.Text("out", &options.out, "DIR", "folder to write to");
  flags.Require("out");
  flags.Bool("paragraphs", &options.paragraphs,
             "take paragraphs besides the titles");
  flags.Bool("json", &json, "print the counts as one JSON object");
  flags.Example("gshard data debian --languages de,fr,es,pt_BR --out data");
  ASSIGN_OR_RETURN(const auto parsed, ParseFlags(flags, arguments, console));
  if (!parsed.has_value()) return absl::OkStatus();

  ASSIGN_OR_RETURN(const DebianCorpusReport report, BuildDebianCorpus(options));
  for (const std::string& warning : report.warnings) {
    *console.error << "gshard: " << warning << "\n";
  }
  if (!json) {
    *console.out << report.Table();
    return absl::OkStatus();
  }
  nlohmann::ordered_json object;
  object["out"] = AbsolutePath(options.out);
  for (const DebianCorpusReport::Line& line : report.lines) {
    object["languages"][line.language] = {
        {"train", line.train}, {"dev", line.dev}, {"test", line.test}};
  }
  *console.out << JsonText(object) << "\n";
  return absl::OkStatus();
}

}  // namespace gshard
