#include "client/job_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace gshard {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

v1::JobProgress Running() {
  v1::JobProgress progress;
  progress.set_job("tiny");
  progress.set_state(v1::JOB_STATE_RUNNING);
  progress.set_step(120);
  progress.set_total_steps(2000);
  progress.set_loss(4.8312);
  progress.set_eta_seconds(-1);
  return progress;
}

TEST(JobLinesTest, SaysHowTheHeldOutTextGoes) {
  v1::JobProgress progress = Running();
  EXPECT_THAT(JobLine(progress), StartsWith("step  120/2000  loss  4.8312"));
  EXPECT_THAT(JobLine(progress), Not(HasSubstr("held out")));
  progress.set_validation_step(100);
  progress.set_validation_loss(5.125);
  EXPECT_THAT(JobLine(progress), EndsWith("  held out 5.1250 at step 100"));
  progress.set_best_validation_step(100);
  progress.set_best_validation_loss(5.125);
  EXPECT_THAT(JobLine(progress),
              EndsWith("  held out 5.1250 at step 100, the best"));
  progress.set_best_validation_step(50);
  progress.set_best_validation_loss(4.5);
  EXPECT_THAT(JobLine(progress),
              EndsWith("  held out 5.1250 at step 100, best 4.5000 at 50"));
}

// As a resumed job is at first.
TEST(JobLinesTest, SaysNoNumbersBeforeTheFirstStep) {
  v1::JobProgress progress = Running();
  progress.set_loss(0);
  EXPECT_EQ(JobLine(progress), "job tiny: running from step 120/2000");
  progress.set_step(0);
  EXPECT_EQ(JobLine(progress), "job tiny: running");
}

TEST(JobLinesTest, SaysItOfAJobThatIsOver) {
  v1::JobProgress progress = Running();
  progress.set_state(v1::JOB_STATE_SUCCEEDED);
  progress.set_checkpoint_directory("out/step-00000120");
  EXPECT_THAT(JobLine(progress), EndsWith("checkpoint out/step-00000120"));
  progress.set_validation_step(120);
  progress.set_validation_loss(5.125);
  progress.set_best_validation_step(50);
  progress.set_best_validation_loss(4.5);
  EXPECT_THAT(JobLine(progress),
              EndsWith("checkpoint out/step-00000120; held out 5.1250 at step "
                       "120, best 4.5000 at 50"));
}

TEST(JobLinesTest, SaysWhatOfTheTextIsSkipped) {
  v1::JobProgress progress = Running();
  EXPECT_EQ(TextLine(progress), "");
  progress.set_text_pairs(1'204'331);
  EXPECT_EQ(TextLine(progress), "text: 1,204,331 pairs");
  progress.set_bad_lines(3'120);
  progress.set_left_out_long(8'004);
  EXPECT_EQ(TextLine(progress),
            "text: 1,204,331 pairs; skipped 3,120 bad lines, 8,004 longer than "
            "max_length");
  progress.set_text_pairs(1'000'000);
  EXPECT_THAT(TextLine(progress), StartsWith("warning: text: 1,000,000 pairs"));
}

}  // namespace
}  // namespace gshard
