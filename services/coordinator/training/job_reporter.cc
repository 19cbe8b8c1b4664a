#include "services/coordinator/training/job_reporter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/model/parameters.h"
#include "services/rpc/wire/status.h"

namespace gshard {
namespace {

// Wall clock, for display and metrics.
double UnixSeconds() {
  return absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch());
}

absl::Status CheckCount(absl::string_view field, int64_t value) {
  constexpr int64_t kMost = int64_t{1} << 53;
  if (value >= 0 && value <= kMost) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("stats.", field, ": expected 0 to 2^53, got ", value));
}

}  // namespace

TrainingMetrics::TrainingMetrics(Metrics& metrics, bool per_expert)
    : jobs(metrics.AddGaugeFamily("gshard_jobs", "Jobs that are not over.",
                                  {"state"})),
      jobs_ended(metrics.AddCounterFamily("gshard_jobs_ended_total",
                                          "Jobs that are over.", {"state"})),
      running(metrics.AddGauge(
          "gshard_train_running",
          "1 while a job trains, or waits or recovers to do so.")),
      step(metrics.AddGauge("gshard_train_step", "Steps committed.")),
      step_duration(metrics.AddHistogram("gshard_train_step_duration_seconds",
                                         "Time from step to step.")),
      loss(metrics.AddGauge("gshard_train_loss",
                            "Cross-entropy of the last step in nats a token, "
                            "with label smoothing and z-loss.")),
      balance_loss(metrics.AddGauge(
          "gshard_balance_loss",
          "Balance loss of the last step, mean over layers; 1 is even.")),
      learning_rate(metrics.AddGauge("gshard_train_learning_rate",
                                     "Learning rate of the last step.")),
      gradient_norm(metrics.AddGauge(
          "gshard_train_gradient_norm",
          "Norm of the last step's gradient, before clipping.")),
      logit_magnitude(metrics.AddGauge(
          "gshard_train_logit_magnitude",
          "Largest |logsumexp| of a token's output logits in the last step.")),
      tokens(metrics.AddCounter("gshard_train_tokens_total",
                                "Target tokens trained on.")),
      tokens_per_second(
          metrics.AddGauge("gshard_train_tokens_per_second",
                           "Target tokens a second in the last step.")),
      expert_tokens(metrics.AddCounterFamily(
          "gshard_expert_tokens_total",
          "Choices of tokens that were routed to an expert.", {"layer"})),
      expert_tokens_dropped(metrics.AddCounterFamily(
          "gshard_expert_tokens_dropped_total",
          "Choices of tokens that got no slot.", {"layer", "choice"})),
      load_imbalance(metrics.AddGaugeFamily(
          "gshard_expert_load_imbalance_ratio",
          "Rows of the fullest expert over the mean, in the last step.",
          {"layer"})),
      gate_logit_magnitude(metrics.AddGaugeFamily(
          "gshard_train_gate_logit_magnitude",
          "Largest |logsumexp| of a token's gate logits in the last step.",
          {"layer"})),
      checkpoint_time(metrics.AddGauge(
          "gshard_checkpoint_last_success_timestamp_seconds",
          "When the last checkpoint was committed or, if that was later, the "
          "job began to train from it or from nothing: what it has learnt "
          "since would be lost with its members; 0 before it begins.")),
      microbatches_retried(
          metrics.AddCounter("gshard_train_microbatches_retried_total",
                             "Microbatches that were handed out again.")),
      attempts(metrics.AddCounter(
          "gshard_train_attempts_total",
          "Times that members have loaded a job, the first included.")),
      nonfinite_steps(
          metrics.AddCounter("gshard_train_nonfinite_steps_total",
                             "Steps whose loss or gradient was not finite.")),
      phase_seconds(metrics.AddCounterFamily(
          "gshard_train_phase_seconds_total",
          "Time that steps spent in each of their phases; checkpoint: that "
          "they waited for one.",
          {"phase"})),
      validation_loss(metrics.AddGauge(
          "gshard_validation_loss",
          "Cross-entropy of the held-out text in nats a token.")),
      validation_overflow(metrics.AddGauge(
          "gshard_validation_overflow_ratio",
          "Share of the held-out text's choices that got no slot.")),
      per_expert(per_expert) {
  for (const v1::JobState state :
       {v1::JOB_STATE_QUEUED, v1::JOB_STATE_WAITING, v1::JOB_STATE_RUNNING,
        v1::JOB_STATE_RECOVERING}) {
    jobs.With({JobStateName(state)}).Set(0);
  }
  for (const v1::JobState state :
       {v1::JOB_STATE_SUCCEEDED, v1::JOB_STATE_FAILED,
        v1::JOB_STATE_CANCELLED}) {
    (void)jobs_ended.With({JobStateName(state)});
  }
  if (per_expert) {
    tokens_of_expert = metrics.AddCounterFamily(
        "gshard_expert_rows_total",
        "Choices of tokens that were routed to this expert.",
        {"layer", "expert", "experts"}, kMaxExpertSeries);
  }
}

void TrainingMetrics::CountJob(v1::JobState before, v1::JobState after) const {
  if (before == after) return;
  const bool is_new = before == v1::JOB_STATE_UNSPECIFIED;
  if (!is_new) jobs.With({JobStateName(before)}).Add(-1);
  if (!IsOver(after)) {
    jobs.With({JobStateName(after)}).Add(1);
  } else if (!is_new) {  // else it ended under an earlier coordinator
    jobs_ended.With({JobStateName(after)}).Increment();
  }
}

absl::StatusOr<StepStatistics> StatisticsFromProto(
    const v1::MicrobatchStats& stats, size_t layers, int64_t experts) {
  StepStatistics out;
  RETURN_IF_ERROR(CheckCount("target_tokens", stats.target_tokens()));
  RETURN_IF_ERROR(CheckCount("sentences", stats.sentences()));
  if (static_cast<size_t>(stats.layers_size()) != layers) {
    return absl::InvalidArgumentError(absl::StrCat("stats.layers: expected ",
                                                   layers, " layers, got ",
                                                   stats.layers_size()));
  }
  out.target_tokens = stats.target_tokens();
  out.sentences = stats.sentences();
  out.loss_sum = stats.loss_sum();
  out.logit_magnitude = stats.logit_magnitude();
  for (const v1::LayerStats& layer : stats.layers()) {
    LayerStatistics& to = out.layers.emplace_back();
    to.balance_loss_sum = layer.balance_loss_sum();
    to.groups = layer.groups();
    to.logit_magnitude = layer.gate_logit_magnitude();
    to.routed_first = layer.routed_first();
    to.routed_second = layer.routed_second();
    to.overflow_first = layer.overflow_first();
    to.overflow_second = layer.overflow_second();
    for (const int64_t count : {to.groups, to.routed_first, to.routed_second,
                                to.overflow_first, to.overflow_second}) {
      RETURN_IF_ERROR(CheckCount("layers", count));
    }
    if (layer.expert_rows_size() != experts) {
      return absl::InvalidArgumentError(
          absl::StrCat("stats.layers.expert_rows: expected ", experts,
                       " experts, got ", layer.expert_rows_size()));
    }
    for (const int64_t rows : layer.expert_rows()) {
      RETURN_IF_ERROR(CheckCount("layers.expert_rows", rows));
    }
    to.expert_rows.assign(layer.expert_rows().begin(),
                          layer.expert_rows().end());
  }
  return out;
}

JobReporter::JobReporter(const TrainingJob& job, TrainingMetrics* metrics,
                         ProgressFeed* feed)
    : job_(job),
      layers_(MoeLayerNames(job.model)),
      metrics_(metrics),
      feed_(feed),
      progress_(feed->Latest()),
      elapsed_before_(progress_.elapsed_seconds()) {
  if (progress_.total_steps() == 0) progress_.set_total_steps(job_.steps);
  if (metrics_ == nullptr) return;
  metrics_->running.Set(1);
  metrics_->checkpoint_time.Set(0);  // not that of the job before
}

JobReporter::~JobReporter() {
  if (metrics_ != nullptr) metrics_->running.Set(0);
}

double JobReporter::Elapsed(MonotonicTime now) const {
  if (begin_ == MonotonicTime::InfinitePast()) return elapsed_before_;
  return elapsed_before_ + absl::ToDoubleSeconds(now - begin_);
}

void JobReporter::Begin(int64_t step, MonotonicTime now) {
  last_step_time_ = line_time_ = now;
  if (begin_ == MonotonicTime::InfinitePast()) begin_ = now;
  step_rate_.emplace();
  since_line_ = {};
  progress_.set_begun(true);
  progress_.set_step(step);
  progress_.set_eta_seconds(-1);
  // Steps begin from a checkpoint, or from nothing.
  if (metrics_ != nullptr) metrics_->checkpoint_time.Set(UnixSeconds());
  if (job_.summary_directory.empty() || events_ != nullptr) return;
  auto events =
      EventFile::Create(job_.summary_directory, job_.name, UnixSeconds());
  if (events.ok()) {
    events_ = *std::move(events);
  } else {
    LogWarning("no event file", {{"status", events.status()}});
  }
}

std::optional<int64_t> JobReporter::StepsIn(double seconds) const {
  const auto rate = step_rate_.has_value() ? step_rate_->rate() : std::nullopt;
  if (!rate.has_value()) return std::nullopt;
  return static_cast<int64_t>(std::max(0.0, *rate * seconds));
}

void JobReporter::SetTotalSteps(int64_t steps, int64_t cooldown) {
  progress_.set_submitted_steps(job_.steps);
  progress_.set_total_steps(steps);
  progress_.set_cooldown_steps(cooldown);
}

void JobReporter::ReportMetrics(int64_t step, const StepResult& result,
                                double seconds, absl::string_view trace_id) {
  if (metrics_ == nullptr) return;
  const StepStatistics& statistics = result.statistics;
  metrics_->step.Set(static_cast<double>(step));
  metrics_->step_duration.Observe(seconds, trace_id);
  metrics_->loss.Set(statistics.loss());
  metrics_->balance_loss.Set(statistics.balance_loss());
  metrics_->learning_rate.Set(result.learning_rate);
  metrics_->gradient_norm.Set(result.gradient_norm);
  metrics_->logit_magnitude.Set(statistics.logit_magnitude);
  metrics_->tokens.Increment(static_cast<double>(statistics.target_tokens));
  if (seconds > 0) {
    metrics_->tokens_per_second.Set(
        static_cast<double>(statistics.target_tokens) / seconds);
  }
  for (size_t l = 0; l < statistics.layers.size(); ++l) {
    const LayerStatistics& layer = statistics.layers[l];
    const std::string& name = layers_[l];
    metrics_->expert_tokens.With({name}).Increment(
        static_cast<double>(layer.routed_first + layer.routed_second));
    metrics_->expert_tokens_dropped.With({name, "first"})
        .Increment(static_cast<double>(layer.overflow_first));
    metrics_->expert_tokens_dropped.With({name, "second"})
        .Increment(static_cast<double>(layer.overflow_second));
    metrics_->load_imbalance.With({name}).Set(layer.imbalance());
    metrics_->gate_logit_magnitude.With({name}).Set(layer.logit_magnitude);
    if (!metrics_->per_expert) continue;
    const std::string experts = absl::StrCat(layer.expert_rows.size());
    for (size_t e = 0; e < layer.expert_rows.size(); ++e) {
      metrics_->tokens_of_expert.With({name, absl::StrCat(e), experts})
          .Increment(static_cast<double>(layer.expert_rows[e]));
    }
  }
}

void JobReporter::OnStep(int64_t step, const StepResult& result,
                         MonotonicTime now, bool last,
                         absl::string_view trace_id) {
  const StepStatistics& statistics = result.statistics;
  const double seconds = absl::ToDoubleSeconds(now - last_step_time_);
  last_step_time_ = now;
  step_rate_->Observe(1.0, seconds);
  ReportMetrics(step, result, seconds, trace_id);
  (void)since_line_.Merge(statistics);  // same job, so it fits

  const double elapsed = Elapsed(now);
  std::optional<double> eta =
      step_rate_->TimeFor(static_cast<double>(progress_.total_steps() - step));
  if (eta.has_value() && job_.time_limit_seconds > 0) {
    eta = std::max(
        0.0,
        std::min(*eta, static_cast<double>(job_.time_limit_seconds) - elapsed));
  }
  if (last) eta = 0.0;
  const double line_seconds = absl::ToDoubleSeconds(now - line_time_);
  double imbalance = 0.0;
  for (const LayerStatistics& layer : statistics.layers) {
    imbalance += layer.imbalance() / static_cast<double>(layers_.size());
  }
  progress_.set_state(v1::JOB_STATE_RUNNING);
  progress_.clear_status();
  progress_.set_step(step);
  progress_.set_loss(statistics.loss());
  progress_.set_balance_loss(statistics.balance_loss());
  progress_.set_overflow_ratio(statistics.overflow_share());
  progress_.set_load_imbalance(imbalance);
  progress_.set_gradient_norm(result.gradient_norm);
  progress_.set_learning_rate(result.learning_rate);
  progress_.set_logit_magnitude(statistics.logit_magnitude);
  progress_.set_gate_logit_magnitude(statistics.gate_logit_magnitude());
  progress_.set_elapsed_seconds(elapsed);
  progress_.set_eta_seconds(eta.value_or(-1));
  if (line_seconds > 0) {
    progress_.set_tokens_per_second(
        static_cast<double>(since_line_.target_tokens) / line_seconds);
  }
  const bool due = last || step == 1 || step % job_.progress_every_steps == 0;
  if (!due) return feed_->Update(progress_);
  since_line_ = {};
  line_time_ = now;
  const std::string line =
      FormatProgress({.step = step,
                      .total_steps = progress_.total_steps(),
                      .loss = progress_.loss(),
                      .balance_loss = progress_.balance_loss(),
                      .overflow_share = progress_.overflow_ratio(),
                      .tokens_per_second = progress_.tokens_per_second(),
                      .eta_seconds = eta});
  LogInfo("progress", {{"job", job_.name}, {"line", line}});
  WriteSummary(step, result);
  feed_->Publish(progress_);
}

void JobReporter::WriteSummary(int64_t step, const StepResult& result) {
  const auto scalar = [](const char* tag, double value) {
    return Scalar{.tag = tag, .value = static_cast<float>(value)};
  };
  std::vector<Scalar> scalars = {
      scalar("train/loss", progress_.loss()),
      scalar("train/balance_loss", progress_.balance_loss()),
      scalar("train/overflow_ratio", progress_.overflow_ratio()),
      scalar("train/load_imbalance_ratio", progress_.load_imbalance()),
      scalar("train/tokens_per_second", progress_.tokens_per_second()),
      scalar("train/learning_rate", progress_.learning_rate()),
      scalar("train/gradient_norm", progress_.gradient_norm()),
      scalar("train/logit_magnitude", progress_.logit_magnitude())};
  for (size_t l = 0; l < layers_.size(); ++l) {
    const LayerStatistics& layer = result.statistics.layers[l];
    scalars.push_back({absl::StrCat("balance_loss/", layers_[l]),
                       static_cast<float>(layer.balance_loss())});
    scalars.push_back({absl::StrCat("gate_logit_magnitude/", layers_[l]),
                       static_cast<float>(layer.logit_magnitude)});
  }
  AddEvents(step, scalars);
}

void JobReporter::AddEvents(int64_t step, const std::vector<Scalar>& scalars) {
  if (events_ == nullptr) return;
  const absl::Status status = events_->Add(UnixSeconds(), step, scalars);
  if (!status.ok() && !events_failed_) {
    events_failed_ = true;
    LogWarning("cannot write the event file", {{"status", status}});
  }
}

void JobReporter::OnPhase(const char* phase, absl::Duration duration) {
  if (metrics_ == nullptr) return;
  metrics_->phase_seconds.With({phase}).Increment(
      std::max(0.0, absl::ToDoubleSeconds(duration)));
}

void JobReporter::OnValidation(int64_t step, const StepStatistics& sums,
                               MonotonicTime begin, MonotonicTime end) {
  // Validation takes time of the job, but not of the steps.
  const absl::Duration spent = end - begin;
  last_step_time_ += spent;
  line_time_ += spent;
  if (step_rate_.has_value()) {
    step_rate_->Observe(0.0, absl::ToDoubleSeconds(spent));
  }
  progress_.set_validation_step(step);
  progress_.set_validation_loss(sums.loss());
  progress_.set_validation_overflow_ratio(sums.overflow_share());
  FindBest(step, sums.loss());
  if (metrics_ != nullptr) {
    metrics_->validation_loss.Set(sums.loss());
    metrics_->validation_overflow.Set(sums.overflow_share());
  }
  LogInfo("validation", {{"job", job_.name},
                         {"step", step},
                         {"loss", sums.loss()},
                         {"overflow", sums.overflow_share()},
                         {"best_step", progress_.best_validation_step()}});
  AddEvents(step, {{"validation/loss", static_cast<float>(sums.loss())},
                   {"validation/overflow_ratio",
                    static_cast<float>(sums.overflow_share())}});
  feed_->Publish(progress_);
}

void JobReporter::FindBest(int64_t step, double loss) {
  if (!std::isfinite(loss)) return;
  const int64_t best = progress_.best_validation_step();
  const double least = progress_.best_validation_loss();
  // The first on ties, like BestCheckpoint.
  if (best > 0 && (loss > least || (loss == least && step >= best))) return;
  progress_.set_best_validation_step(step);
  progress_.set_best_validation_loss(loss);
}

void JobReporter::OnText(const v1::TextLoaded& text) {
  progress_.set_text_pairs(text.pairs());
  progress_.set_bad_lines(text.bad_lines());
  progress_.set_left_out_long(text.left_out_long());
  progress_.set_text_digest(text.digest());
  progress_.set_held_out_microbatches(text.validation_microbatches());
  feed_->Update(progress_);
}

void JobReporter::OnRetry() {
  if (metrics_ != nullptr) metrics_->microbatches_retried.Increment();
}

void JobReporter::OnNonfinite(const absl::Status& what) {
  if (metrics_ != nullptr) metrics_->nonfinite_steps.Increment();
  LogWarning("not finite", {{"job", job_.name}, {"status", what}});
  progress_.set_nonfinite_steps(progress_.nonfinite_steps() + 1);
  *progress_.mutable_status() = ToProtoStatus(what);
  feed_->Publish(progress_);
}

void JobReporter::OnSkipped(int64_t step, MonotonicTime now) {
  const MonotonicTime before = std::exchange(last_step_time_, now);
  step_rate_->Observe(1.0, absl::ToDoubleSeconds(now - before));
  progress_.set_step(step);
  feed_->Update(progress_);
}

void JobReporter::OnAttempt(int64_t attempt) {
  if (metrics_ != nullptr) metrics_->attempts.Increment();
  progress_.set_attempt(attempt);
}

void JobReporter::OnCheckpoint(int64_t step, const std::string& directory) {
  if (metrics_ != nullptr) metrics_->checkpoint_time.Set(UnixSeconds());
  SetCheckpoint(step, directory);
  feed_->Update(progress_);
  LogInfo("checkpoint committed",
          {{"job", job_.name}, {"step", step}, {"directory", directory}});
}

void JobReporter::SetCheckpoint(int64_t step, const std::string& directory) {
  progress_.set_checkpoint_step(step);
  progress_.set_checkpoint_directory(directory);
}

void JobReporter::SetState(v1::JobState state, const absl::Status& status,
                           bool retryable) {
  progress_.set_state(state);
  progress_.set_retryable(retryable);
  if (status.ok()) {
    progress_.clear_status();
  } else {
    *progress_.mutable_status() = ToProtoStatus(status);
  }
}

void JobReporter::Publish() { feed_->Publish(progress_); }

}  // namespace gshard
