// The command by which a worker loads all experts of a job.

#ifndef TESTS_EXPERT_WORKER_LOAD_COMMAND_H_
#define TESTS_EXPERT_WORKER_LOAD_COMMAND_H_

#include <string>
#include <vector>

#include "proto/gshard/v1/coordinator.pb.h"
#include "services/config/training_job_proto.h"
#include "services/graph/text.h"
#include "tests/expert_worker/training_model.h"

namespace gshard {

// Initialized from the job's seed.
inline v1::Command TrainingLoad(const std::string& session,
                                const TrainingJob& job,
                                const std::vector<Segment>& segments) {
  v1::Command command;
  v1::LoadSession& load = *command.mutable_load_session();
  load.set_session(session);
  load.set_training(true);
  v1::WorkerSession& worker = *load.mutable_worker();
  for (const Segment& segment : segments) {
    v1::Segment& added = *worker.add_segments();
    added.set_name(segment.name);
    added.set_program(ProgramToText(segment.program));
  }
  for (int32_t e = 0; e < job.model.experts; ++e) worker.add_experts(e);
  worker.set_total_experts(job.model.experts);
  for (const ParameterSpec& spec : SpecsOf(job.model, true)) {
    v1::ExpertParameter& added = *worker.add_parameters();
    added.set_name(spec.name);
    added.set_element_type(v1::ELEMENT_TYPE_FLOAT32);
    added.mutable_dims()->Add(spec.dims.begin(), spec.dims.end());
    v1::Initializer& initializer = *added.mutable_initializer();
    initializer.set_kind(static_cast<v1::Initializer::Kind>(
        static_cast<int>(spec.initializer.kind) + 1));
    initializer.set_stddev(spec.initializer.stddev);
    initializer.set_fan_in(spec.initializer.fan_in);
  }
  worker.mutable_source()->set_initial_seed(job.seed);
  *worker.mutable_optimizer() = OptimizerConfigToProto(job.optimizer);
  worker.set_microbatches_per_step(kMicrobatches);
  return command;
}

}  // namespace gshard

#endif  // TESTS_EXPERT_WORKER_LOAD_COMMAND_H_
