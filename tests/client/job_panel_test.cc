#include "client/job_panel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

v1::JobProgress Running(int64_t step, double loss) {
  v1::JobProgress progress;
  progress.set_job("titles");
  progress.set_state(v1::JOB_STATE_RUNNING);
  progress.set_attempt(1);
  progress.set_step(step);
  progress.set_total_steps(200);
  progress.set_loss(loss);
  progress.set_balance_loss(1.25);
  progress.set_overflow_ratio(0.021);
  progress.set_load_imbalance(1.3);
  progress.set_gradient_norm(0.5);
  progress.set_learning_rate(0.001);
  progress.set_tokens_per_second(12345);
  progress.set_elapsed_seconds(61);
  progress.set_eta_seconds(3600);
  return progress;
}

// A terminal that interprets the escape sequences of panels and yields the
// visible text.
class Terminal {
 public:
  void Write(const std::string& text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') {
        if (++row_ == lines_.size()) lines_.emplace_back();
        column_ = 0;
      } else if (text[i] == '\r') {
        column_ = 0;
      } else if (text[i] == '\x1b') {
        i = Sequence(text, i + 2);
      } else {
        std::string& line = lines_[row_];
        line.resize(std::max(line.size(), column_));
        line.replace(column_++, 1, 1, text[i]);
      }
    }
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  size_t Sequence(const std::string& text, size_t i) {
    std::string number;
    while (!absl::ascii_isalpha(text[i])) number += text[i++];
    if (text[i] == 'A') {
      row_ -= std::stoul(number);
    } else if (text[i] == 'J') {
      lines_.resize(row_ + 1);
      lines_[row_].resize(column_);
    } else {
      EXPECT_THAT(number, StartsWith("?7"));
    }
    return i;
  }

  std::vector<std::string> lines_ = {""};
  size_t row_ = 0, column_ = 0;
};

TEST(JobPanelTest, SaysWhereTheJobIs) {
  v1::JobProgress progress = Running(50, 4.5);
  progress.set_attempt(2);
  progress.set_checkpoint_step(40);
  progress.set_checkpoint_directory("/c/step-00000040");
  EXPECT_THAT(
      JobPanel::Lines(progress, {6.0, 4.5}),
      ElementsAre(
          "titles  running, attempt 2",
          "[##########------------------------------]  25.0%  step 50/200",
          "ETA 01:00:00  elapsed 00:01:01  12,345 tok/s", "loss  4.5000  █▁",
          "balance 1.250  overflow 2.1%  busiest expert 1.3x  gradient 0.5  "
          "rate 0.001",
          "checkpoint of step 40: /c/step-00000040"));
}

TEST(JobPanelTest, SaysWhatAJobWaitsFor) {
  v1::JobProgress progress;
  progress.set_job("titles");
  progress.set_state(v1::JOB_STATE_WAITING);
  progress.set_total_steps(200);
  progress.mutable_status()->set_message("waits for members");
  EXPECT_THAT(JobPanel::Lines(progress, {}),
              ElementsAre("titles  waiting: waits for members"));
}

TEST(JobPanelTest, IsDrawnInPlaceBelowWhatStays) {
  Terminal terminal;
  JobPanel panel;
  terminal.Write("$ gshard train\n");
  terminal.Write(panel.Draw(Running(1, 0)));  // resumed: no loss yet
  terminal.Write(panel.Draw(Running(2, 6.0)));
  terminal.Write(panel.Draw(Running(3, 5.0)));
  v1::JobProgress lost = Running(3, 5.0);
  lost.set_state(v1::JOB_STATE_RECOVERING);
  lost.mutable_status()->set_message("worker 'w' was lost");
  terminal.Write(panel.Draw(lost));
  terminal.Write(panel.Draw(lost));
  terminal.Write(panel.Draw(Running(4, 4.0)));
  EXPECT_THAT(
      terminal.lines(),
      ElementsAre("$ gshard train",
                  "job titles: recovering, worker 'w' was lost",
                  "titles  running", HasSubstr("step 4/200"), StartsWith("ETA"),
                  "loss  4.0000  █▅▁", StartsWith("balance")));
  terminal.Write(panel.Clear());
  EXPECT_THAT(terminal.lines(),
              ElementsAre("$ gshard train",
                          "job titles: recovering, worker 'w' was lost", ""));
}

TEST(SparklineTest, ShowsTheCourseOfValues) {
  EXPECT_EQ(Sparkline({}), "");
  EXPECT_EQ(Sparkline({3.0, 3.0}), "▁▁");
  EXPECT_EQ(Sparkline({0, 1, 2, 3, 4, 5, 6, 7}), "▁▂▃▄▅▆▇█");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Sparkline({1.0, nan, 2.0}), "▁?█");
}

}  // namespace
}  // namespace gshard
