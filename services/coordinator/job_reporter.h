// JobReporter: what a training job tells people: metrics, a progress line in
// the log, curves for TensorBoard, and JobProgress for those who watch.

#ifndef SERVICES_COORDINATOR_JOB_REPORTER_H_
#define SERVICES_COORDINATOR_JOB_REPORTER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/config/training_job.h"
#include "services/coordinator/progress_feed.h"
#include "services/metrics/metrics.h"
#include "services/train/event_file.h"
#include "services/train/local_trainer.h"
#include "services/train/progress.h"

namespace gshard {

// The metrics of training, which are those of the process: one job at a time.
struct TrainingMetrics {
  // `per_expert` adds a series for each expert of each layer.
  TrainingMetrics(Metrics& metrics, bool per_expert);

  Gauge step;
  Histogram step_duration;
  Gauge loss;
  Gauge balance_loss;
  Gauge learning_rate;
  Gauge gradient_norm;
  Counter tokens;
  Gauge tokens_per_second;
  CounterFamily expert_tokens;          // layer
  CounterFamily expert_tokens_dropped;  // layer, choice
  GaugeFamily load_imbalance;           // layer
  CounterFamily tokens_of_expert;       // layer, expert; may be unset
  Gauge checkpoint_time;
  Counter microbatches_retried;
  bool per_expert = false;
};

// Sums of a microbatch as a router reports them; `layers` and `experts` are the
// model's. Errors: InvalidArgument naming the field.
absl::StatusOr<StepStatistics> StatisticsFromProto(
    const v1::MicrobatchStats& stats, size_t layers, int64_t experts);

// Used by the job's thread only.
class JobReporter {
 public:
  // `metrics` may be null. The feed outlives the reporter.
  JobReporter(const TrainingJob& job, TrainingMetrics* metrics,
              ProgressFeed* feed);

  // Steps begin, at `now`, after `step` that have been made before.
  void Begin(int64_t step, absl::Time now);

  // A step is committed. Publishes when a progress line is due, or `last`.
  void OnStep(int64_t step, const StepResult& result, absl::Time now,
              bool last);

  void OnRetry();
  void OnCheckpoint(int64_t step, const std::string& directory, absl::Time now);

  // Publishes a change of state, with the reason if there is one.
  void SetState(v1::JobState state, const absl::Status& status = {});

 private:
  void ReportMetrics(int64_t step, const StepResult& result, double seconds);
  void WriteSummary(int64_t step, const StepResult& result, absl::Time now);

  const TrainingJob job_;
  const std::vector<std::string> layers_;
  TrainingMetrics* const metrics_;
  ProgressFeed* const feed_;
  v1::JobProgress progress_;
  std::unique_ptr<EventFile> events_;
  bool events_failed_ = false;
  absl::Time begin_;
  absl::Time last_step_time_;
  SmoothedRate step_rate_;
  // Since the last progress line.
  absl::Time line_time_;
  StepStatistics since_line_;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_JOB_REPORTER_H_
