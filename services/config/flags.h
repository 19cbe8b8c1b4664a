// Flags of one command: typed, without globals, from the command line, the
// environment or a default.
//
//   struct RouterFlags {
//     std::string listen = "0.0.0.0:8000";
//     int64_t beam = 4;
//   };
//
//   RouterFlags values;
//   Flags flags("gshard_router", "Serves the Translate RPC.");
//   flags.Text("listen", &values.listen, "HOST:PORT", "address to serve at");
//   flags.Integer("beam", &values.beam, 1, 64, "hypotheses kept a sentence");
//   flags.Example("gshard_router --listen=127.0.0.1:8000 --beam=1");
//   ASSIGN_OR_RETURN(const Flags::Result result, flags.Parse(arguments));
//
// A flag is written "--beam=1" or "--beam 1"; a Boolean one "--follow",
// "--no-follow" or "--follow=false"; '-' and '_' inside a name are equivalent.
// "--" ends flags. A flag that is not on the command line is read from the
// environment, GSHARD_BEAM; else it keeps its default, the variable's value at
// declaration.
//
// Not thread-safe. The variables must outlive the Flags.

#ifndef SERVICES_CONFIG_FLAGS_H_
#define SERVICES_CONFIG_FLAGS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "services/config/interval.h"

namespace gshard {

class Flags {
 public:
  // `command` as the user types it, and a one-sentence summary.
  Flags(std::string command, std::string summary);

  // Each declares a flag. `name` must be new and have lower-case letters,
  // digits and '_'; `placeholder` stands for the value in the help; `help` says
  // what the flag does; its range and default are appended.
  void Integer(absl::string_view name, int64_t* value, int64_t low,
               int64_t high, absl::string_view help);
  void Real(absl::string_view name, double* value, Interval interval,
            absl::string_view help);
  void Bool(absl::string_view name, bool* value, absl::string_view help);
  void Text(absl::string_view name, std::string* value,
            absl::string_view placeholder, absl::string_view help);
  // One of `choices`.
  void Choice(absl::string_view name, std::string* value,
              std::vector<std::string> choices, absl::string_view help);
  // Separated by commas; empty text is an empty list.
  void List(absl::string_view name, std::vector<std::string>* value,
            absl::string_view placeholder, absl::string_view help);
  // As "1.5s", "200ms" or "2h"; at least 0, at most 10 years (87600h).
  void Duration(absl::string_view name, absl::Duration* value,
                absl::string_view help);

  // Makes the already declared flag `name` mandatory.
  void Require(absl::string_view name);

  // Accepts between `least` and `most` arguments that are not flags; by default
  // none. `placeholder` stands for them in the help.
  void Positional(absl::string_view placeholder, int least, int most,
                  absl::string_view help);

  // Accepts --version, for a program that has no commands.
  void Version(absl::string_view version);

  // A command line to show at the end of the help.
  void Example(absl::string_view command_line);

  struct Result {
    // --help or --version was given; nothing else was checked.
    bool help = false;
    bool version = false;
    std::vector<std::string> positional;
  };

  // Returns the environment variable `name`, or null.
  using Environment = std::function<const char*(const char* name)>;

  // Sets the variables. `arguments` exclude the program's name.
  //
  // Errors: InvalidArgument that names the flag, what it accepts and what came;
  // for an unknown flag, the nearest one that exists: "unknown flag --baem; did
  // you mean --beam?".
  absl::StatusOr<Result> Parse(absl::Span<const std::string> arguments,
                               const Environment& environment);
  // With the environment of the process.
  absl::StatusOr<Result> Parse(absl::Span<const std::string> arguments);

  // Parse() for main(): prints the help or the version if requested, or the
  // error. Returns the exit code, 0 or 2, if the program should end now.
  std::optional<int> ParseOrExit(absl::Span<const std::string> arguments);

  // The --help page: summary, usage, flags in columns with range, default and
  // environment variable, examples. Lines have at most 80 columns where words
  // allow.
  std::string Help() const;

  // The variables GSHARD_* of `environment`, a list as `environ`, that no flag
  // is read from, but that differ in at most two letters from one that is; each
  // with that one. Flags of other programs are no mistakes.
  std::vector<std::pair<std::string, std::string>> Misspelt(
      const char* const* environment) const;

 private:
  enum class Source { kDefault, kEnvironment, kFlag };

  struct Flag {
    std::string name;
    std::string placeholder = "";  // empty: Boolean
    std::string help;
    std::string range = "";  // empty: anything
    std::function<absl::Status(absl::string_view)> set;
    std::string default_text = "";  // the value when declared
    bool required = false;
    Source source = Source::kDefault;
  };

  // "max_tokens" is read from "GSHARD_MAX_TOKENS".
  static std::string EnvironmentName(absl::string_view flag);

  void Add(Flag flag);
  Flag* Find(absl::string_view name);
  absl::Status Unknown(absl::string_view name) const;
  absl::Status ReadFlag(absl::Span<const std::string> arguments, size_t* i);
  absl::Status ReadEnvironment(const Environment& environment);

  std::string command_;
  std::string summary_;
  std::vector<Flag> flags_;
  std::string version_ = "";  // empty: no --version
  std::string positional_placeholder_;
  std::string positional_help_;
  int least_positional_ = 0;
  int most_positional_ = 0;
  std::vector<std::string> examples_;
};

}  // namespace gshard

#endif  // SERVICES_CONFIG_FLAGS_H_
