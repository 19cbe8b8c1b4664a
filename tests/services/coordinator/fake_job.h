// The job that fake members train, and its expected result.

#ifndef TESTS_SERVICES_COORDINATOR_FAKE_JOB_H_
#define TESTS_SERVICES_COORDINATOR_FAKE_JOB_H_

#include <cstdint>
#include <memory>
#include <set>
#include <string>

#include "services/config/training_job.h"
#include "services/train/parameter_store.h"
#include "tests/services/storage/scratch_directory.h"

namespace gshard {

// A tokenizer for the job, trained once per process.
const std::string& FakeTokenizerPath();

// A job of a tiny model, with its files in `scratch`.
TrainingJob MakeFakeJob(const std::string& name,
                        const ScratchDirectory& scratch);

// All parameters of the job after `steps` steps of the fake gradients, of which
// those in `skipped` changed nothing. Its initialize_from is a checkpoint
// itself or empty.
std::unique_ptr<ParameterStore> ExpectedParameters(
    const TrainingJob& job, int64_t steps,
    const std::set<int64_t>& skipped = {});

// Expects the checkpoint of `step` to hold these parameters, bit for bit.
void ExpectTrained(TrainingJob job, int64_t step,
                   const std::set<int64_t>& skipped = {});

}  // namespace gshard

#endif  // TESTS_SERVICES_COORDINATOR_FAKE_JOB_H_
