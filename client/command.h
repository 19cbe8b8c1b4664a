// Common parts of all `gshard` commands: input and output, flags, and usage
// errors.

#ifndef CLIENT_COMMAND_H_
#define CLIENT_COMMAND_H_

#include <signal.h>

#include <iosfwd>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "services/config/flags.h"

namespace gshard {

// Input and output of a command. Not owned.
struct Console {
  int in;  // a descriptor
  std::ostream* out;
  std::ostream* error;
  Flags::Environment environment;

  // The output is a terminal: lines may be overwritten.
  bool out_is_terminal = false;
};

// Arguments after the command's name.
using Arguments = absl::Span<const std::string>;

struct Command {
  std::string name;     // "data debian" has a blank
  std::string summary;  // without a full stop, for the list of commands
  absl::Status (*run)(Arguments arguments, Console& console);
};

// The same error, marked as a usage error: the program then exits with 2
// instead of 1.
absl::Status UsageError(absl::Status status);
absl::Status UsageError(absl::string_view message);
bool IsUsageError(const absl::Status& status);

// The same error, marked so that the program exits with `code`. Codes of
// sysexits.h that batch systems act on:
inline constexpr int kExitTemporary = 75;   // EX_TEMPFAIL: try again
inline constexpr int kExitDoNotRetry = 70;  // EX_SOFTWARE: it would not help
// What a shell says of a program that SIGPIPE has ended. Nothing is printed.
inline constexpr int kExitNoReader = 128 + SIGPIPE;
absl::Status WithExitCode(absl::Status status, int code);

// The program's exit code: 0 for OK, the code of WithExitCode, 2 for a usage
// error, otherwise 1.
int ExitCodeOf(const absl::Status& status);

// Errors: Cancelled with kExitNoReader if standard output is a pipe that nobody
// reads any more; else ResourceExhausted if writing to console.out failed, e.g.
// on a full disk.
absl::Status CheckOutput(const Console& console);

// Tells the user that the command goes on trying, for as long as `left`, after
// the error `why`.
void SayWhatIsAwaited(absl::Duration left, const absl::Status& why,
                      Console& console);

// Parses the flags; prints the help and returns nothing if that was requested.
// Errors are usage errors.
absl::StatusOr<std::optional<Flags::Result>> ParseFlags(Flags& flags,
                                                        Arguments arguments,
                                                        Console& console);

// The absolute form of `path`, relative to the current directory, without "."
// and ".."; empty stays empty. Members of a system may have other current
// directories.
std::string AbsolutePath(const std::string& path);

}  // namespace gshard

#endif  // CLIENT_COMMAND_H_
