#include "client/job_lines.h"

#include <chrono>
#include <ostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/job_panel.h"
#include "client/proto_json.h"
#include "services/base/status_macros.h"
#include "services/coordinator/store/progress_feed.h"
#include "services/rpc/process/signal_watcher.h"
#include "services/rpc/wire/status.h"
#include "services/train/progress.h"

namespace gshard {
namespace {

// "  held out 4.8312 at step 500, the best"; nothing before the first.
std::string ValidationText(const v1::JobProgress& progress) {
  if (progress.validation_step() == 0) return "";
  std::string text =
      absl::StrFormat("  held out %.4f at step %d", progress.validation_loss(),
                      progress.validation_step());
  if (progress.best_validation_step() == progress.validation_step()) {
    absl::StrAppend(&text, ", the best");
  } else if (progress.best_validation_step() > 0) {
    absl::StrAppendFormat(&text, ", best %.4f at %d",
                          progress.best_validation_loss(),
                          progress.best_validation_step());
  }
  return text;
}

}  // namespace

bool HasLoss(const v1::JobProgress& progress) {
  return progress.step() > 0 && progress.loss() != 0;
}

std::string JobLine(const v1::JobProgress& progress) {
  const std::string& why = progress.status().message();
  if (progress.state() != v1::JOB_STATE_RUNNING || !HasLoss(progress) ||
      !why.empty()) {
    std::string line = absl::StrCat("job ", progress.job(), ": ",
                                    JobStateName(progress.state()));
    if (progress.state() == v1::JOB_STATE_RUNNING && !HasLoss(progress) &&
        progress.step() > 0) {
      absl::StrAppend(&line, " from step ", progress.step(), "/",
                      progress.total_steps());
    }
    if (!why.empty()) absl::StrAppend(&line, ", ", why);
    if (IsOver(progress.state())) {
      absl::StrAppend(&line, " at step ", progress.step(), " after ",
                      FormatDuration(progress.elapsed_seconds()));
      if (!progress.checkpoint_directory().empty()) {
        absl::StrAppend(&line, "; checkpoint ",
                        progress.checkpoint_directory());
      }
      if (progress.validation_step() > 0) {
        absl::StrAppend(&line, ";", ValidationText(progress).substr(1));
      }
    }
    return line;
  }
  Progress shown{.step = progress.step(),
                 .total_steps = progress.total_steps(),
                 .loss = progress.loss(),
                 .balance_loss = progress.balance_loss(),
                 .overflow_share = progress.overflow_ratio(),
                 .tokens_per_second = progress.tokens_per_second(),
                 .eta_seconds = std::nullopt};
  if (progress.eta_seconds() >= 0.0) {
    shown.eta_seconds = progress.eta_seconds();
  }
  return absl::StrCat(FormatProgress(shown), ValidationText(progress));
}

std::string TextLine(const v1::JobProgress& progress) {
  if (progress.text_pairs() == 0) return "";
  const auto pairs = static_cast<double>(progress.text_pairs());
  const auto bad = static_cast<double>(progress.bad_lines());
  const auto too_long = static_cast<double>(progress.left_out_long());
  const double skipped = bad + too_long;
  std::string line = absl::StrCat(
      skipped > 0.01 * (pairs + skipped) ? "warning: text: " : "text: ",
      FormatCount(pairs), " pairs");
  if (skipped > 0) {
    absl::StrAppend(&line, "; skipped ", FormatCount(bad), " bad lines, ",
                    FormatCount(too_long), " longer than max_length");
  }
  return line;
}

absl::Status FollowJob(CoordinatorClient& coordinator, const std::string& job,
                       bool submitted, bool json, Console& console) {
  SignalWatcher signals([&](int) { coordinator.Interrupt(); });
  JobPanel panel;    // on a terminal
  std::string text;  // the last TextLine
  const auto print = [&](const v1::JobProgress& progress) {
    if (json) {
      *console.out << ProtoToJsonLine(progress) << std::endl;
      return;
    }
    // Read once an attempt, with the same result unless the job was resumed.
    std::string now = TextLine(progress);
    if (!now.empty() && now != text) {
      text = std::move(now);
      *console.out << panel.Clear() << text << std::endl;
    }
    if (console.out_is_terminal) {
      *console.out << panel.Draw(progress) << std::flush;
      if (!IsOver(progress.state())) return;
      *console.out << "\n";
    }
    *console.out << JobLine(progress) << std::endl;
  };
  bool drawn = false;  // a panel ends the output
  const absl::StatusOr<v1::JobProgress> last = coordinator.WatchJob(
      job, submitted,
      [&](const v1::JobProgress& progress) {
        print(progress);
        drawn = console.out_is_terminal && !json;
        // Nobody reads it any more, or the disk is full.
        if (!CheckOutput(console).ok()) coordinator.Interrupt();
      },
      [&](std::chrono::milliseconds left, const absl::Status& why) {
        // What it says, above all the ETA, is no longer so.
        if (std::exchange(drawn, false)) {
          *console.out << panel.Clear() << std::flush;
        }
        SayWhatIsAwaited(absl::FromChrono(left), why, console);
      });
  if (drawn && !last.ok()) {
    *console.out << std::endl;
  }
  if (absl::IsCancelled(last.status())) {
    RETURN_IF_ERROR(CheckOutput(console));
    return absl::CancelledError(absl::StrCat(
        "no longer watching; the job goes on, see `gshard watch ", job, "`"));
  }
  if (!last.ok()) return WithRetryCode(last.status());
  if (last->state() == v1::JOB_STATE_SUCCEEDED) return absl::OkStatus();
  const int code = last->retryable() ? kExitTemporary : kExitDoNotRetry;
  const absl::Status why = FromProtoStatus(last->status());
  if (last->state() == v1::JOB_STATE_CANCELLED && why.ok()) {
    return WithExitCode(
        absl::CancelledError(absl::StrCat("job ", job, " was cancelled")),
        code);
  }
  return WithExitCode(
      Annotate(why.ok() ? absl::UnknownError("no reason given") : why,
               absl::StrCat("job ", job)),
      code);
}

absl::Status WithRetryCode(const absl::Status& status) {
  if (status.ok() || IsUsageError(status)) return status;
  const bool passes =
      absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
      absl::IsResourceExhausted(status) || absl::IsAborted(status);
  return WithExitCode(status, passes ? kExitTemporary : kExitDoNotRetry);
}

}  // namespace gshard
