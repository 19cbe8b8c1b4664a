// One microbatch: the unit of gradient summation.
//
// A microbatch is a pure function of (parameters, batch, seed, step, index):
// its random numbers are keyed by these, so whoever runs it, wherever the
// experts are, gets the same bits.

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
  // Of the sum over target tokens; of the parameters that the program has.
  GradientList gradients;
  StepStatistics statistics;
};

// Runs a training program, or one of evaluation. Thread-safe.
class MicrobatchRunner {
 public:
  // `program` is BuildTrainProgram's or BuildEvaluateProgram's for `config`, or
  // the router's side of it. It runs on `device`, which outlives the runner, or
  // on the CPU if null; gradients are on the host.
  MicrobatchRunner(const ModelConfig& config, Program program,
                   Device* device = nullptr);

  // Unimplemented, with the operator's name, if the device lacks a kernel.
  const absl::Status& status() const { return executor_.status(); }

  // `step` counts from 1, `index` from 0. `parameters` are those of the
  // program, as Load() makes them; `segments` runs the calls of a router's
  // program.
  absl::StatusOr<MicrobatchResult> Run(
      const Batch& batch, uint64_t seed, int64_t step, int64_t index,
      const TensorMap& parameters, SegmentRunner* segments = nullptr,
      std::function<bool()> cancelled = nullptr) const;

  // Runs a program of evaluation. What is random in it is a function of (seed,
  // index): the same after every step.
  absl::StatusOr<StepStatistics> Evaluate(
      const Batch& batch, uint64_t seed, int64_t index,
      const TensorMap& parameters, SegmentRunner* segments = nullptr,
      std::function<bool()> cancelled = nullptr) const;

  // Does to parameters what running the program would do each time: rounds
  // those that it takes as bfloat16, and copies all to the device. Errors:
  // those of the device.
  absl::Status Load(TensorMap& parameters) const;

 private:
  absl::StatusOr<MicrobatchResult> RunKeyed(
      const Batch& batch, uint64_t key, const TensorMap& parameters,
      SegmentRunner* segments, std::function<bool()> cancelled) const;

  const std::vector<std::string> moe_layers_;
  const DeviceExecutor executor_;
};

}  // namespace gshard

#endif  // SERVICES_TRAIN_MICROBATCH_H_
