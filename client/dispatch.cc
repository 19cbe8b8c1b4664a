#include "client/dispatch.h"

#include <algorithm>
#include <optional>
#include <ostream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/base/log.h"
#include "services/base/log_style.h"
#include "services/config/nearest_name.h"

namespace gshard {
namespace {

constexpr char kSummary[] =
    "Trains and serves a Mixture-of-Experts translator.\n\n";

// The continuations of `usage`.
std::string Overview(absl::Span<const Command> commands,
                     absl::string_view usage) {
  std::string text = absl::StrCat("Usage: ", usage, " [flags]\n\nCommands:\n");
  size_t width = 0;
  for (const Command& command : commands) {
    width = std::max(width, command.name.size());
  }
  for (const Command& command : commands) {
    absl::StrAppend(&text, "  ", command.name,
                    std::string(width + 2 - command.name.size(), ' '),
                    command.summary, "\n");
  }
  absl::StrAppend(&text,
                  "\n`gshard COMMAND --help` explains a command, with an "
                  "example; `gshard --version`\nprints the version.\n");
  return text;
}

// The command named by the first arguments, and their number.
const Command* Find(absl::Span<const Command> commands, Arguments arguments,
                    size_t* words) {
  for (size_t count : {2, 1}) {
    if (arguments.size() < count) continue;
    const std::string name = absl::StrJoin(arguments.subspan(0, count), " ");
    for (const Command& command : commands) {
      if (command.name == name) {
        *words = count;
        return &command;
      }
    }
  }
  return nullptr;
}

// The commands whose first of several words is `word`, like "data" in "data
// debian".
std::vector<Command> Group(absl::Span<const Command> commands,
                           absl::string_view word) {
  std::vector<Command> group;
  for (const Command& command : commands) {
    if (absl::StartsWith(command.name, absl::StrCat(word, " "))) {
      group.push_back(command);
    }
  }
  return group;
}

bool AsksForHelp(absl::string_view argument) {
  return argument == "--help" || argument == "-h";
}

absl::Status Unknown(absl::Span<const Command> commands, Arguments arguments) {
  const std::vector<Command> group = Group(commands, arguments[0]);
  if (!group.empty()) commands = group;
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.name);
  std::string message;
  std::string given = arguments[0];
  if (group.empty()) {
    message = absl::StrCat("unknown command \"", given, "\"");
  } else {
    if (arguments.size() > 1) absl::StrAppend(&given, " ", arguments[1]);
    message = absl::StrCat("expected one of `gshard ",
                           absl::StrJoin(names, "`, `gshard "),
                           "`, got `gshard ", given, "`");
    if (arguments.size() == 1) return UsageError(message);
  }
  const std::optional<std::string> nearest = NearestName(given, names);
  if (nearest.has_value()) {
    absl::StrAppend(&message, "; did you mean `gshard ", *nearest, "`?");
  } else {
    absl::StrAppend(&message, "; see `gshard --help`");
  }
  return UsageError(message);
}

int Finish(absl::Status status, Console& console) {
  console.out->flush();
  if (status.ok()) status = CheckOutput(console);
  const int code = ExitCodeOf(status);
  if (code == 0 || code == kExitNoReader) return code;
  *console.error << "gshard: "
                 << absl::AsciiStrToLower(
                        absl::StatusCodeToString(status.code()))
                 << ": " << status.message() << std::endl;
  return code;
}

}  // namespace

int Dispatch(absl::Span<const Command> commands, Arguments arguments,
             Console& console) {
  // Log lines are for a human reader.
  SetLogStyle(LogStyle::kPlain);
  SetLogThreshold(LogSeverity::kWarning);
  if (arguments.empty()) {
    *console.error << kSummary << Overview(commands, "gshard COMMAND");
    return 2;
  }
  if (arguments[0] == "--version" || arguments[0] == "version") {
    *console.out << "gshard " << GSHARD_VERSION << std::endl;
    return 0;
  }
  // "gshard help X" is "gshard X --help".
  std::vector<std::string> asked;
  if (arguments[0] == "help" && arguments.size() > 1) {
    asked.assign(arguments.begin() + 1, arguments.end());
    asked.push_back("--help");
    arguments = asked;
  } else if (arguments[0] == "help" || AsksForHelp(arguments[0])) {
    *console.out << kSummary << Overview(commands, "gshard COMMAND");
    return 0;
  }
  size_t words = 0;
  const Command* command = Find(commands, arguments, &words);
  if (command == nullptr) {
    const std::vector<Command> group = Group(commands, arguments[0]);
    if (!group.empty() && arguments.size() > 1 && AsksForHelp(arguments[1])) {
      *console.out << Overview(
          group, absl::StrCat("gshard ", arguments[0], " COMMAND"));
      return 0;
    }
    return Finish(Unknown(commands, arguments), console);
  }
  return Finish(command->run(arguments.subspan(words), console), console);
}

}  // namespace gshard
