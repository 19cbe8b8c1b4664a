// JobReporter: the output of a training job: metrics, a progress line in the
// log, curves for TensorBoard, and JobProgress for watchers.

#ifndef SERVICES_COORDINATOR_TRAINING_JOB_REPORTER_H_
#define SERVICES_COORDINATOR_TRAINING_JOB_REPORTER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/gshard/v1/coordinator.pb.h"
#include "services/base/monotonic_time.h"
#include "services/config/training_job.h"
#include "services/coordinator/store/progress_feed.h"
#include "services/metrics/metrics.h"
#include "services/train/event_file.h"
#include "services/train/progress.h"
#include "services/train/step_statistics.h"

namespace gshard {

// The training metrics of the process: of the job that runs, and counts of all.
struct TrainingMetrics {
  // `per_expert` adds a series for each expert of each layer.
  TrainingMetrics(Metrics& metrics, bool per_expert);

  // A job has come (from UNSPECIFIED) or its state has changed.
  void CountJob(v1::JobState before, v1::JobState after) const;

  GaugeFamily jobs;          // state, unless final
  CounterFamily jobs_ended;  // final state
  Gauge running;
  Gauge step;
  Histogram step_duration;
  Gauge loss;
  Gauge balance_loss;
  Gauge learning_rate;
  Gauge gradient_norm;
  Gauge logit_magnitude;
  Counter tokens;
  Gauge tokens_per_second;
  CounterFamily expert_tokens;          // layer
  CounterFamily expert_tokens_dropped;  // layer, choice
  GaugeFamily load_imbalance;           // layer
  GaugeFamily gate_logit_magnitude;     // layer
  // By layer, expert and how many there are; may be unset.
  CounterFamily tokens_of_expert;
  Gauge checkpoint_time;  // from which on work would be lost
  Counter microbatches_retried;
  Counter attempts;
  Counter nonfinite_steps;
  CounterFamily phase_seconds;  // phase
  Gauge validation_loss;
  Gauge validation_overflow;
  bool per_expert = false;
};

// Sums of a microbatch as a router reports them; `layers` and `experts` are the
// model's. Errors: InvalidArgument naming the field.
absl::StatusOr<StepStatistics> StatisticsFromProto(
    const v1::MicrobatchStats& stats, size_t layers, int64_t experts);

// Used by the job's thread only.
class JobReporter {
 public:
  // `metrics` may be null. The feed outlives the reporter. The job counts as
  // running while this lives.
  JobReporter(const TrainingJob& job, TrainingMetrics* metrics,
              ProgressFeed* feed);
  ~JobReporter();

  JobReporter(const JobReporter&) = delete;
  JobReporter& operator=(const JobReporter&) = delete;

  // Steps begin, or resume, at `now`, with `step` steps done before.
  void Begin(int64_t step, MonotonicTime now);

  // Training time so far, in seconds: since the first Begin(), plus the time
  // under earlier coordinators, from the feed.
  double Elapsed(MonotonicTime now) const;

  // Steps that fit into this time at the recent pace, rounded down; nullopt
  // while the pace is unknown.
  std::optional<int64_t> StepsIn(double seconds) const;

  // The job ends with step `steps`, earlier than the job says, after a cooldown
  // of `cooldown` steps.
  void SetTotalSteps(int64_t steps, int64_t cooldown);

  // A step is committed. Publishes when a progress line is due, or if `last`.
  // `trace_id` as in Histogram.
  void OnStep(int64_t step, const StepResult& result, MonotonicTime now,
              bool last, absl::string_view trace_id);

  // Reports the sums over the held-out text after `step`. Publishes.
  void OnValidation(int64_t step, const StepStatistics& sums,
                    MonotonicTime begin, MonotonicTime end);

  // `loss` was measured after `step`: records it if it is the lowest.
  void FindBest(int64_t step, double loss);

  // Reports the text that a router has read.
  void OnText(const v1::TextLoaded& text);

  void OnRetry();

  // Duration of a phase of a step: "microbatches", "prepare", "commit" or
  // "checkpoint" (if steps waited for it).
  void OnPhase(const char* phase, absl::Duration duration);

  // A step was not finite and is skipped or undone. Publishes.
  void OnNonfinite(const absl::Status& what);
  // It is passed by: as OnStep(), without results.
  void OnSkipped(int64_t step, MonotonicTime now);

  // Attempt number `attempt` begins.
  void OnAttempt(int64_t attempt);
  void OnCheckpoint(int64_t step, const std::string& directory);
  // The checkpoint that the job goes on from; step 0: none. After a restart the
  // job waits until it is there.
  void SetCheckpoint(int64_t step, const std::string& directory);

  // A change of state, with the reason if there is one, and whether a finished
  // job may be submitted again. Publish() publishes it.
  void SetState(v1::JobState state, const absl::Status& status = {},
                bool retryable = false);

  void Publish();

  const v1::JobProgress& progress() const { return progress_; }

 private:
  void ReportMetrics(int64_t step, const StepResult& result, double seconds,
                     absl::string_view trace_id);
  void WriteSummary(int64_t step, const StepResult& result);
  void AddEvents(int64_t step, const std::vector<Scalar>& scalars);

  const TrainingJob job_;
  const std::vector<std::string> layers_;
  TrainingMetrics* const metrics_;
  ProgressFeed* const feed_;
  v1::JobProgress progress_;
  std::unique_ptr<EventFile> events_;
  bool events_failed_ = false;
  const double elapsed_before_;                          // seconds
  MonotonicTime begin_ = MonotonicTime::InfinitePast();  // first attempt
  MonotonicTime last_step_time_;
  std::optional<SmoothedRate> step_rate_;  // set by Begin
  // Since the last progress line.
  MonotonicTime line_time_;
  StepStatistics since_line_;
};

}  // namespace gshard

#endif  // SERVICES_COORDINATOR_TRAINING_JOB_REPORTER_H_
