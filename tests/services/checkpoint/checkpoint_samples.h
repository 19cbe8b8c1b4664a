// Small checkpoints, written the way a router and any number of workers do.

#ifndef TESTS_SERVICES_CHECKPOINT_CHECKPOINT_SAMPLES_H_
#define TESTS_SERVICES_CHECKPOINT_CHECKPOINT_SAMPLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/checkpoint/checkpoint.h"
#include "tests/testing/tensors.h"

namespace gshard {

constexpr int kNumExperts = 7;

inline std::string ExpertName(int e) { return absl::StrCat("moe_0/wi/", e); }
inline TensorSpec ExpertSpec(int e) {
  return {ExpertName(e), ElementType::kFloat32, {3, 4}};
}
inline Tensor ExpertWeight(int e, int64_t step) {
  return RandomTensor({3, 4}, 100 * step + e);
}
inline TensorSpec DenseSpec() { return {"dense", ElementType::kFloat32, {5}}; }
inline Tensor DenseWeight(int64_t step) { return RandomTensor({5}, 7 + step); }

inline std::vector<TensorSpec> AllSpecs() {
  std::vector<TensorSpec> specs = {DenseSpec()};
  for (int e = 0; e < kNumExperts; ++e) specs.push_back(ExpertSpec(e));
  return specs;
}

// The experts of `worker`. Round-robin assignment makes counts uneven, and 0
// for some workers if there are more workers than experts.
inline std::vector<int> ExpertsOf(int worker, int num_workers) {
  std::vector<int> experts;
  for (int e = worker; e < kNumExperts; e += num_workers) experts.push_back(e);
  return experts;
}

inline absl::StatusOr<std::vector<TensorEntry>> WriteWorker(
    const std::string& root, int64_t step, int worker, int num_workers,
    FaultPoints* faults = nullptr) {
  std::vector<TensorSpec> specs;
  for (const int e : ExpertsOf(worker, num_workers)) {
    specs.push_back(ExpertSpec(e));
  }
  ASSIGN_OR_RETURN(
      const auto writer,
      CheckpointWriter::Create(root, step, absl::StrCat("worker-", worker),
                               specs, faults));
  for (const int e : ExpertsOf(worker, num_workers)) {
    RETURN_IF_ERROR(writer->Write(ExpertName(e), ExpertWeight(e, step)));
  }
  return writer->Finish();
}

inline absl::StatusOr<std::vector<TensorEntry>> WriteRouter(
    const std::string& root, int64_t step, FaultPoints* faults = nullptr) {
  ASSIGN_OR_RETURN(
      const auto writer,
      CheckpointWriter::Create(root, step, "router", {DenseSpec()}, faults));
  RETURN_IF_ERROR(writer->Write("dense", DenseWeight(step)));
  return writer->Finish();
}

inline absl::StatusOr<std::vector<TensorEntry>> WriteShards(
    const std::string& root, int64_t step, int num_workers,
    FaultPoints* faults = nullptr) {
  ASSIGN_OR_RETURN(auto entries, WriteRouter(root, step, faults));
  for (int w = 0; w < num_workers; ++w) {
    ASSIGN_OR_RETURN(const auto more,
                     WriteWorker(root, step, w, num_workers, faults));
    entries.insert(entries.end(), more.begin(), more.end());
  }
  return entries;
}

inline Manifest ManifestOf(int64_t step,
                           const std::vector<TensorEntry>& entries) {
  Manifest manifest;
  manifest.step = step;
  manifest.model_config = "experts: 7";
  manifest.tokenizer_file = "tokenizer.model";
  manifest.metadata = {{"seed", "1"}};
  manifest.tensors = entries;
  return manifest;
}

inline absl::StatusOr<std::string> WriteCheckpoint(
    const std::string& root, int64_t step, int num_workers,
    FaultPoints* faults = nullptr) {
  ASSIGN_OR_RETURN(const auto entries,
                   WriteShards(root, step, num_workers, faults));
  return CommitCheckpoint(root, ManifestOf(step, entries), "pieces", "",
                          faults);
}

// Succeeds if `reader` holds what WriteCheckpoint writes at its step.
inline ::testing::AssertionResult HoldsItsStep(const CheckpointReader& reader) {
  const int64_t step = reader.manifest().step;
  const absl::Status complete = reader.CheckExactly(AllSpecs());
  if (!complete.ok()) return ::testing::AssertionFailure() << complete;
  for (const TensorSpec& spec : AllSpecs()) {
    const auto tensor = reader.Read(spec);
    if (!tensor.ok()) return ::testing::AssertionFailure() << tensor.status();
    const Tensor expected =
        spec.name == "dense"
            ? DenseWeight(step)
            : ExpertWeight(std::stoi(spec.name.substr(9)), step);
    if (!TensorEqual(*tensor, expected)) {
      return ::testing::AssertionFailure() << spec.name << " is another";
    }
  }
  const auto tokenizer = reader.ReadTokenizer();
  if (tokenizer.ok() && *tokenizer == "pieces") {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << "the tokenizer is another";
}

}  // namespace gshard

#endif  // TESTS_SERVICES_CHECKPOINT_CHECKPOINT_SAMPLES_H_
