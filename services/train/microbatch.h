// One microbatch: the unit of gradient summation.
//
// A microbatch is a pure function of (parameters, batch, seed, step, index):
// random numbers are keyed by these, so the result has the same bits on any
// process, wherever the experts are placed.

#ifndef SERVICES_TRAIN_MICROBATCH_H_
#define SERVICES_TRAIN_MICROBATCH_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "services/config/model_config.h"
#include "services/data/batch.h"
#include "services/graph/device_executor.h"
#include "services/model/transformer.h"
#include "services/segments/segment_runner.h"
#include "services/train/parameter_store.h"
#include "services/train/step_statistics.h"

namespace gshard {

struct MicrobatchResult {
  // Gradients of the loss summed over target tokens, for the parameters that
  // the program has.
  GradientList gradients;
  StepStatistics statistics;
};

// Runs a training or evaluation program. Thread-safe.
class MicrobatchRunner {
 public:
  // `program` is the result of BuildTrainProgram or BuildEvaluateProgram for
  // `config`, or the router's part of it. It runs on `device`, which outlives
  // the runner, or on the CPU if null; gradients are returned on the host, or
  // with `keep_gradients` where they were computed.
  MicrobatchRunner(const ModelConfig& config, Program program,
                   Device* device = nullptr, bool keep_gradients = false);

  // Unimplemented, with the operator's name, if the device lacks a kernel.
  const absl::Status& status() const { return executor_.status(); }

  // `step` counts from 1, `index` from 0. `parameters` are those of the
  // program, as prepared by Load(); `segments` executes the segment calls of a
  // router's program.
  absl::StatusOr<MicrobatchResult> Run(
      const Batch& batch, uint64_t seed, int64_t step, int64_t index,
      const TensorMap& parameters, SegmentRunner* segments = nullptr,
      std::function<bool()> cancelled = nullptr) const;

  // Runs an evaluation program. Its random numbers are a function of
  // (seed, index), so they are the same after every step.
  absl::StatusOr<StepStatistics> Evaluate(
      const Batch& batch, uint64_t seed, int64_t index,
      const TensorMap& parameters, SegmentRunner* segments = nullptr,
      std::function<bool()> cancelled = nullptr) const;

  // Prepares parameters once, so that a run of the program does not have to:
  // rounds those that the program uses as bfloat16, and copies to the device
  // those that are not there. Errors: those of the device.
  absl::Status Load(TensorMap& parameters) const;

  // The types in which Load() leaves the parameters, among others.
  const WeightForms& weight_forms() const { return executor_.weight_forms(); }

 private:
  absl::StatusOr<MicrobatchResult> RunKeyed(
      const Batch& batch, uint64_t key, const TensorMap& parameters,
      SegmentRunner* segments, std::function<bool()> cancelled) const;

  const std::vector<std::string> moe_layers_;
  const DeviceExecutor executor_;
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_MICROBATCH_H_
