#include "client/job_panel.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/coordinator_client.h"
#include "client/job_lines.h"
#include "services/coordinator/store/progress_feed.h"
#include "services/train/progress.h"

namespace gshard {
namespace {

constexpr size_t kMaxLosses = 48;
constexpr int kBarWidth = 40;

std::string Bar(double share) {
  const int full = static_cast<int>(std::lround(share * kBarWidth));
  return absl::StrCat("[", std::string(full, '#'),
                      std::string(kBarWidth - full, '-'), "]");
}

// Whether to keep it visible above the panel.
bool IsWorthKeeping(const v1::JobProgress& progress) {
  return !progress.status().message().empty() &&
         (progress.state() == v1::JOB_STATE_RUNNING ||
          (progress.state() == v1::JOB_STATE_RECOVERING &&
           progress.step() > 0));
}

}  // namespace

std::string Sparkline(const std::deque<double>& values) {
  static const char* const kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  std::string line;
  for (const double value : values) {
    if (!std::isfinite(value)) {
      line += "?";
      continue;
    }
    const double share = high > low ? (value - low) / (high - low) : 0.0;
    line += kBlocks[static_cast<int>(std::lround(share * 7))];
  }
  return line;
}

std::vector<std::string> JobPanel::Lines(const v1::JobProgress& progress,
                                         const std::deque<double>& losses) {
  std::string head =
      absl::StrCat(progress.job(), "  ", JobStateName(progress.state()));
  if (progress.attempt() > 1) {
    absl::StrAppend(&head, ", attempt ", progress.attempt());
  }
  if (progress.nonfinite_steps() > 0) {
    absl::StrAppend(&head, ", ", progress.nonfinite_steps(),
                    " steps not finite");
  }
  if (progress.state() != v1::JOB_STATE_RUNNING &&
      !progress.status().message().empty()) {
    absl::StrAppend(&head, ": ", progress.status().message());
  }
  std::vector<std::string> lines = {head};
  if (progress.step() == 0 || progress.total_steps() <= 0) return lines;
  const double share =
      std::clamp(static_cast<double>(progress.step()) /
                     static_cast<double>(progress.total_steps()),
                 0.0, 1.0);
  lines.push_back(absl::StrFormat("%s %5.1f%%  step %d/%d", Bar(share),
                                  100 * share, progress.step(),
                                  progress.total_steps()));
  const bool eta_known = progress.eta_seconds() >= 0.0;
  lines.push_back(absl::StrCat(
      "ETA ", eta_known ? FormatDuration(progress.eta_seconds()) : "--:--:--",
      "  elapsed ", FormatDuration(progress.elapsed_seconds()), "  ",
      FormatCount(progress.tokens_per_second()), " tok/s"));
  if (losses.empty()) return lines;
  lines.push_back(
      absl::StrFormat("loss %7.4f  %s", progress.loss(), Sparkline(losses)));
  lines.push_back(absl::StrFormat(
      "balance %.3f  overflow %.1f%%  busiest expert %.1fx  gradient %.3g  "
      "rate %.3g",
      progress.balance_loss(), 100 * progress.overflow_ratio(),
      progress.load_imbalance(), progress.gradient_norm(),
      progress.learning_rate()));
  if (!progress.checkpoint_directory().empty()) {
    lines.push_back(absl::StrCat("checkpoint of step ",
                                 progress.checkpoint_step(), ": ",
                                 progress.checkpoint_directory()));
  }
  return lines;
}

std::string JobPanel::Clear() {
  if (drawn_ == 0) return "";
  // Moves to the panel's first line, and clears everything below.
  const size_t up = std::exchange(drawn_, 0) - 1;
  return absl::StrCat("\r", up > 0 ? absl::StrCat("\x1b[", up, "A") : "",
                      "\x1b[J");
}

std::string JobPanel::Draw(const v1::JobProgress& progress) {
  std::string text = Clear();
  if (IsWorthKeeping(progress) && progress.status().message() != noted_) {
    noted_ = progress.status().message();
    absl::StrAppend(&text, JobLine(progress), "\n");
  }
  if (progress.state() == v1::JOB_STATE_RUNNING &&
      progress.step() > last_step_ && HasLoss(progress)) {
    losses_.push_back(progress.loss());
    if (losses_.size() > kMaxLosses) losses_.pop_front();
  }
  last_step_ = progress.step();
  // Disables wrapping, so that the number of lines drawn is known.
  text += "\x1b[?7l";
  for (const std::string& line : Lines(progress, losses_)) {
    absl::StrAppend(&text, drawn_ > 0 ? "\n" : "", line);
    ++drawn_;
  }
  return text + "\x1b[?7h";
}

}  // namespace gshard
