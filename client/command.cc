#include "client/command.h"

#include <poll.h>
#include <unistd.h>

#include <filesystem>
#include <ostream>
#include <system_error>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "services/storage/object_path.h"

namespace gshard {
namespace {

constexpr char kUsagePayload[] = "gshard/usage";
constexpr char kExitPayload[] = "gshard/exit_code";

}  // namespace

absl::Status UsageError(absl::Status status) {
  status.SetPayload(kUsagePayload, absl::Cord());
  return status;
}

absl::Status UsageError(absl::string_view message) {
  return UsageError(absl::InvalidArgumentError(message));
}

bool IsUsageError(const absl::Status& status) {
  return status.GetPayload(kUsagePayload).has_value();
}

absl::Status WithExitCode(absl::Status status, int code) {
  status.SetPayload(kExitPayload, absl::Cord(absl::StrCat(code)));
  return status;
}

absl::Status CheckOutput(const Console& console) {
  if (console.out->good()) return absl::OkStatus();
  pollfd out = {STDOUT_FILENO, 0, 0};  // both events are always reported
  if (poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0) {
    return WithExitCode(absl::CancelledError("nobody reads the output"),
                        kExitNoReader);
  }
  return absl::ResourceExhaustedError(
      "the output could not be written; is the disk full?");
}

void SayWhatIsAwaited(absl::Duration left, const absl::Status& why,
                      Console& console) {
  *console.error << "gshard: waiting for up to "
                 << absl::FormatDuration(absl::Ceil(left, absl::Seconds(1)))
                 << ": " << why.message() << std::endl;
}

int ExitCodeOf(const absl::Status& status) {
  if (status.ok()) return 0;
  int code = IsUsageError(status) ? 2 : 1;
  if (const auto payload = status.GetPayload(kExitPayload)) {
    (void)absl::SimpleAtoi(std::string(*payload), &code);
  }
  return code;
}

absl::StatusOr<std::optional<Flags::Result>> ParseFlags(Flags& flags,
                                                        Arguments arguments,
                                                        Console& console) {
  absl::StatusOr<Flags::Result> result =
      flags.Parse(arguments, console.environment);
  if (!result.ok()) return UsageError(result.status());
  if (result->help) {
    *console.out << flags.Help();
    return std::optional<Flags::Result>();
  }
  return std::optional<Flags::Result>(*std::move(result));
}

std::string AbsolutePath(const std::string& path) {
  if (path.empty() || IsUrl(path)) return path;
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return path;
  return absolute.lexically_normal().string();
}

}  // namespace gshard
