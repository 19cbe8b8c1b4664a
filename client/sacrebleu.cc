#include "client/sacrebleu.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/base/subprocess.h"

namespace gshard {
namespace {

bool Works(std::vector<std::string> command, const std::stop_token& stop) {
  command.push_back("--version");
  const absl::StatusOr<SubprocessResult> result =
      RunSubprocess(command, {.stop = stop});
  return result.ok() && result->exit_code == 0;
}

}  // namespace

absl::StatusOr<Sacrebleu> Sacrebleu::Find(const std::string& path,
                                          std::stop_token stop) {
  if (!path.empty()) {
    if (Works({path}, stop)) return Sacrebleu({path}, stop);
    return absl::NotFoundError(
        absl::StrCat("no sacrebleu that runs at ", path));
  }
  const std::vector<std::vector<std::string>> commands = {
      {"sacrebleu"}, {"python3", "-m", "sacrebleu"}};
  for (const std::vector<std::string>& command : commands) {
    if (Works(command, stop)) return Sacrebleu(command, stop);
  }
  return absl::NotFoundError(
      "sacrebleu is not installed; `pip install sacrebleu` installs it");
}

absl::StatusOr<std::vector<Score>> Sacrebleu::Compare(
    const std::string& hypotheses_path,
    const std::string& references_path) const {
  std::vector<std::string> command = command_;
  // The references come first, as --metrics consumes all following arguments.
  for (const std::string& argument :
       {references_path, std::string("--input"), hypotheses_path}) {
    command.push_back(argument);
  }
  for (const char* argument :
       {"--metrics", "bleu", "chrf", "--width", "2", "--format", "json"}) {
    command.push_back(argument);
  }
  // The variable would replace the flag.
  ASSIGN_OR_RETURN(
      const SubprocessResult result,
      RunSubprocess(command,
                    {.environment = {"SACREBLEU_FORMAT=json"}, .stop = stop_}));
  if (result.exit_code != 0) {
    return absl::InternalError(absl::StrCat(
        "sacrebleu ended with ", result.exit_code, ": ", result.error_output));
  }
  const nlohmann::json json =
      nlohmann::json::parse(result.output, nullptr, /*allow_exceptions=*/false);
  std::vector<Score> scores;
  for (const nlohmann::json& one :
       json.is_array() ? json : nlohmann::json::array({json})) {
    if (!one.is_object() || !one.contains("name") || !one["name"].is_string() ||
        !one.contains("score") || !one["score"].is_number()) {
      return absl::InternalError(absl::StrCat(
          "expected scores as JSON from sacrebleu, got: ", result.output));
    }
    const auto signature = one.find("signature");
    scores.push_back({one["name"], one["score"],
                      signature != one.end() && signature->is_string()
                          ? signature->get<std::string>()
                          : ""});
  }
  return scores;
}

}  // namespace gshard
