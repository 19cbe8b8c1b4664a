#include "services/config/flags.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/config/nearest_name.h"

namespace gshard {
namespace {

// 10 years: clocks count nanoseconds in 64 bits, and now and a multiple of a
// duration must be no time that is past.
constexpr absl::Duration kMaxDuration = absl::Hours(87'600);

constexpr char kEnvironmentPrefix[] = "GSHARD_";

// Variables of other programs whose names are similar to a server's; complete
// by tests/docs/environment.py.
constexpr const char* kOfOtherPrograms[] = {"GSHARD_MEMORY_GIB",
                                            "GSHARD_MODELS", "GSHARD_RESUME"};

absl::Status Unexpected(absl::string_view expected, absl::string_view got) {
  return absl::InvalidArgumentError(
      absl::StrCat("expected ", expected, ", got \"", got, "\""));
}

// "one", "two or three", "1 to 5".
std::string CountText(int least, int most) {
  const auto word = [](int count) {
    const char* const words[] = {"none", "one", "two", "three"};
    return count <= 3 ? words[count] : absl::StrCat(count);
  };
  if (most == std::numeric_limits<int>::max()) {
    return absl::StrCat("at least ", word(least));
  }
  if (least == most) return word(most);
  if (least == 0) return absl::StrCat("at most ", word(most));
  return absl::StrCat(word(least), most == least + 1 ? " or " : " to ",
                      word(most));
}

}  // namespace

Flags::Flags(std::string command, std::string summary)
    : command_(std::move(command)), summary_(std::move(summary)) {}

std::string Flags::EnvironmentName(absl::string_view flag) {
  return absl::StrCat(kEnvironmentPrefix, absl::AsciiStrToUpper(flag));
}

void Flags::Integer(absl::string_view name, int64_t* value, int64_t low,
                    int64_t high, absl::string_view help) {
  const std::string range = absl::StrCat(low, " to ", high);
  Add({.name = std::string(name),
       .placeholder = "N",
       .help = std::string(help),
       .range = range,
       .set = [=](absl::string_view text) -> absl::Status {
         int64_t number;
         if (!absl::SimpleAtoi(text, &number) || number < low ||
             number > high) {
           return Unexpected(absl::StrCat("a whole number, ", range), text);
         }
         *value = number;
         return absl::OkStatus();
       },
       .default_text = absl::StrCat(*value)});
}

void Flags::Real(absl::string_view name, double* value, Interval interval,
                 absl::string_view help) {
  Add({.name = std::string(name),
       .placeholder = "X",
       .help = std::string(help),
       .range = interval.ToString(),
       .set = [=](absl::string_view text) -> absl::Status {
         double number;
         if (!absl::SimpleAtod(text, &number) || !interval.Contains(number)) {
           return Unexpected(absl::StrCat("a number, ", interval.ToString()),
                             text);
         }
         *value = number;
         return absl::OkStatus();
       },
       .default_text = absl::StrCat(*value)});
}

void Flags::Bool(absl::string_view name, bool* value, absl::string_view help) {
  Add({.name = std::string(name),
       .help = std::string(help),
       .set = [=](absl::string_view text) -> absl::Status {
         if (text != "true" && text != "false") {
           return Unexpected("true or false", text);
         }
         *value = text == "true";
         return absl::OkStatus();
       },
       .default_text = std::string(*value ? "true" : "false")});
}

void Flags::Text(absl::string_view name, std::string* value,
                 absl::string_view placeholder, absl::string_view help) {
  Add({.name = std::string(name),
       .placeholder = std::string(placeholder),
       .help = std::string(help),
       .set = [=](absl::string_view text) -> absl::Status {
         *value = std::string(text);
         return absl::OkStatus();
       },
       .default_text = *value});
}

void Flags::Choice(absl::string_view name, std::string* value,
                   std::vector<std::string> choices, absl::string_view help) {
  const std::string range = absl::StrJoin(choices, " or ");
  Add({.name = std::string(name),
       .placeholder = "CHOICE",
       .help = std::string(help),
       .range = range,
       .set = [=](absl::string_view text) -> absl::Status {
         if (std::find(choices.begin(), choices.end(), text) == choices.end()) {
           return Unexpected(range, text);
         }
         *value = std::string(text);
         return absl::OkStatus();
       },
       .default_text = *value});
}

void Flags::List(absl::string_view name, std::vector<std::string>* value,
                 absl::string_view placeholder, absl::string_view help) {
  Add({.name = std::string(name),
       .placeholder = absl::StrCat(placeholder, ",..."),
       .help = std::string(help),
       .set = [=](absl::string_view text) -> absl::Status {
         std::vector<std::string> items;
         if (!text.empty()) items = absl::StrSplit(text, ',');
         if (std::find(items.begin(), items.end(), "") != items.end()) {
           return Unexpected("items with one comma between two", text);
         }
         *value = std::move(items);
         return absl::OkStatus();
       },
       .default_text = absl::StrJoin(*value, ",")});
}

void Flags::Duration(absl::string_view name, absl::Duration* value,
                     absl::string_view help) {
  const std::string range =
      absl::StrCat("at most ", absl::FormatDuration(kMaxDuration));
  Add({.name = std::string(name),
       .placeholder = "DURATION",
       .help = std::string(help),
       .range = range,
       .set = [=](absl::string_view text) -> absl::Status {
         absl::Duration duration;
         if (!absl::ParseDuration(text, &duration) ||
             duration < absl::ZeroDuration() || duration > kMaxDuration) {
           return Unexpected(
               absl::StrCat("a duration such as 1.5s, 200ms or 2h, ", range),
               text);
         }
         *value = duration;
         return absl::OkStatus();
       },
       .default_text = absl::FormatDuration(*value)});
}

void Flags::Require(absl::string_view name) {
  Flag* flag = Find(name);
  CHECK(flag != nullptr);
  flag->required = true;
}

void Flags::Positional(absl::string_view placeholder, int least, int most,
                       absl::string_view help) {
  positional_placeholder_ = std::string(placeholder);
  positional_help_ = std::string(help);
  least_positional_ = least;
  most_positional_ = most;
}

void Flags::Version(absl::string_view version) {
  version_ = std::string(version);
}

void Flags::Example(absl::string_view command_line) {
  examples_.emplace_back(command_line);
}

void Flags::Add(Flag flag) {
  CHECK(Find(flag.name) == nullptr);
  CHECK(flag.name != "help");
  CHECK(!absl::StrContains(flag.name, '-'));
  flags_.push_back(std::move(flag));
}

Flags::Flag* Flags::Find(absl::string_view name) {
  for (Flag& flag : flags_) {
    if (flag.name == absl::StrReplaceAll(name, {{"-", "_"}})) return &flag;
  }
  return nullptr;
}

absl::Status Flags::Unknown(absl::string_view name) const {
  std::string message = absl::StrCat("unknown flag --", name, " of ", command_);
  std::vector<std::string> names;
  for (const Flag& flag : flags_) names.push_back(flag.name);
  const std::optional<std::string> nearest =
      NearestName(absl::StrReplaceAll(name, {{"-", "_"}}), names);
  if (nearest.has_value()) {
    absl::StrAppend(&message, "; did you mean --", *nearest, "?");
  } else {
    absl::StrAppend(&message, "; see ", command_, " --help");
  }
  return absl::InvalidArgumentError(message);
}

// Reads the flag at arguments[*i], and advances if its value is the next
// argument.
absl::Status Flags::ReadFlag(absl::Span<const std::string> arguments,
                             size_t* i) {
  const absl::string_view argument = arguments[*i];
  const size_t equals = argument.find('=');
  const bool has_value = equals != absl::string_view::npos;
  // A single dash is treated as a mistyped flag.
  const size_t dashes = absl::StartsWith(argument, "--") ? 2 : 1;
  const absl::string_view name =
      argument.substr(0, equals).substr(dashes);  // npos: all of it

  Flag* flag = dashes == 2 ? Find(name) : nullptr;
  absl::string_view value;
  if (flag == nullptr) {
    absl::string_view positive = name;
    Flag* negated = absl::ConsumePrefix(&positive, "no-") && !has_value
                        ? Find(positive)
                        : nullptr;
    if (negated == nullptr || !negated->placeholder.empty()) {
      return Unknown(name);
    }
    flag = negated;
    value = "false";
  } else if (has_value) {
    value = argument.substr(equals + 1);
  } else if (flag->placeholder.empty()) {
    value = "true";
  } else if (*i + 1 < arguments.size() &&
             !absl::StartsWith(arguments[*i + 1], "--")) {
    value = arguments[++*i];
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("--", name, ": expected a value, got nothing"));
  }
  flag->source = Source::kFlag;
  return Annotate(flag->set(value), absl::StrCat("--", flag->name));
}

absl::Status Flags::ReadEnvironment(const Environment& environment) {
  for (Flag& flag : flags_) {
    if (flag.source == Source::kFlag) continue;
    const std::string variable = EnvironmentName(flag.name);
    const char* value = environment(variable.c_str());
    if (value == nullptr) continue;
    flag.source = Source::kEnvironment;
    RETURN_IF_ERROR(Annotate(flag.set(value), variable));
  }
  return absl::OkStatus();
}

std::vector<std::pair<std::string, std::string>> Flags::Misspelt(
    const char* const* environment) const {
  std::vector<std::string> names;
  for (const Flag& flag : flags_) names.push_back(EnvironmentName(flag.name));
  std::vector<std::pair<std::string, std::string>> misspelt;
  for (; *environment != nullptr; ++environment) {
    const absl::string_view entry = *environment;
    const absl::string_view name = entry.substr(0, entry.find('='));
    if (!absl::StartsWith(name, kEnvironmentPrefix) ||
        std::find(names.begin(), names.end(), name) != names.end() ||
        std::find(std::begin(kOfOtherPrograms), std::end(kOfOtherPrograms),
                  name) != std::end(kOfOtherPrograms)) {
      continue;
    }
    auto nearest = NearestNameWithin(name, names, 2);
    if (nearest.has_value()) misspelt.emplace_back(name, *std::move(nearest));
  }
  return misspelt;
}

absl::StatusOr<Flags::Result> Flags::Parse(
    absl::Span<const std::string> arguments, const Environment& environment) {
  Result result;
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    if (argument == "--help" || argument == "-h") {
      result.help = true;
      return result;
    }
    if (argument == "--version" && !version_.empty()) {
      result.version = true;
      return result;
    }
  }

  bool flags_ended = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (!flags_ended && argument == "--") {
      flags_ended = true;
    } else if (!flags_ended && argument.size() > 1 && argument[0] == '-') {
      RETURN_IF_ERROR(ReadFlag(arguments, &i));
    } else {
      result.positional.push_back(argument);
    }
  }
  RETURN_IF_ERROR(ReadEnvironment(environment));

  for (const Flag& flag : flags_) {
    if (flag.required && flag.source == Source::kDefault) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag.name, ": expected a value, as ", command_,
                       " requires it, got nothing"));
    }
  }
  const int count = static_cast<int>(result.positional.size());
  if (most_positional_ == 0 && count > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected no arguments but flags, got \"", result.positional[0], "\""));
  }
  if (count < least_positional_ || count > most_positional_) {
    return absl::InvalidArgumentError(
        absl::StrCat(positional_placeholder_, ": expected ",
                     CountText(least_positional_, most_positional_), ", got ",
                     count == 0 ? "none" : absl::StrCat(count)));
  }
  return result;
}

absl::StatusOr<Flags::Result> Flags::Parse(
    absl::Span<const std::string> arguments) {
  return Parse(arguments,
               [](const char* name) -> const char* { return getenv(name); });
}

std::optional<int> Flags::ParseOrExit(absl::Span<const std::string> arguments) {
  const absl::StatusOr<Result> parsed = Parse(arguments);
  if (!parsed.ok()) {
    std::fprintf(stderr, "%s\n",
                 std::string(parsed.status().message()).c_str());
    return 2;
  }
  if (parsed->help) {
    std::fputs(Help().c_str(), stdout);
    return 0;
  }
  if (parsed->version) {
    std::printf("gshard %s\n", version_.c_str());
    return 0;
  }
  return std::nullopt;
}

}  // namespace gshard
