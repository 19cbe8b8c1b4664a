#include "services/coordinator/membership/training_memory.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/amount_text.h"
#include "services/base/status_macros.h"
#include "services/cluster/failure_domains.h"
#include "services/cluster/placement.h"
#include "services/coordinator/membership/session_plan.h"
#include "services/model/parameters.h"
#include "services/train/job_options.h"
#include "services/train/parameter_store.h"

namespace gshard {
namespace {

constexpr double kFloatBytes = 4;
constexpr double kChoices = 2;  // experts per token

// Counts of parameters, or of one expert's, and of their optimizer state.
struct Numbers {
  double weights = 0;
  double state = 0;
  double factors = 0;  // operands of matrix products
};

double Product(const Dims& dims) {
  double product = 1;
  for (const int64_t size : dims) product *= static_cast<double>(size);
  return product;
}

Numbers Count(const TrainingJob& job, bool per_expert) {
  const auto optimizer = MakeOptimizer(job.optimizer);
  Numbers numbers;
  for (const ParameterSpec& spec : ParametersOf(job.model, per_expert)) {
    const Dims dims(spec.dims.begin() + (per_expert ? 1 : 0), spec.dims.end());
    const double size = Product(dims);
    numbers.weights += size;
    if (dims.size() > 1) numbers.factors += size;
    numbers.state +=
        StateNumbers(*optimizer, OptimizerDims(dims, spec.row_dims));
  }
  return numbers;
}

// The workers that hold experts, no more than there are of these. With buddies
// each one's, the next one, is in another failure domain, if possible.
std::vector<Member> HoldersInOrder(const TrainingJob& job,
                                   const std::vector<Member>& workers) {
  const size_t count = std::min<size_t>(workers.size(), job.model.experts);
  if (!job.recovery.buddies) return {workers.begin(), workers.begin() + count};
  std::vector<std::string> domains;
  for (const Member& worker : workers) {
    domains.push_back(worker.info.failure_domain);
  }
  std::vector<Member> ordered;
  for (const int32_t w : SpreadOverDomains(domains, count)) {
    ordered.push_back(workers[w]);
  }
  return ordered;
}

// Bytes that a worker offers beside what it serves; 0: unlimited.
int64_t MemoryOffered(const Member& worker) {
  const int64_t bytes = worker.info.capacity_bytes;
  return bytes == 0 ? 0 : std::max<int64_t>(bytes - worker.served_bytes, 1);
}

bool OffersLess(const Member& a, const Member& b) {
  const int64_t of_a = MemoryOffered(a), of_b = MemoryOffered(b);
  return of_a != 0 && (of_b == 0 || of_a < of_b);
}

std::string HolderName(const Member& worker) {
  const std::string name = absl::StrCat("expert worker '", worker.info.id, "'");
  if (worker.served_bytes == 0) return name;
  return absl::StrCat(name, " beside ", BytesText(worker.served_bytes),
                      " of served models");
}

std::string Text(double bytes) {
  return BytesText(static_cast<int64_t>(std::min(bytes, 0x1p60)));
}

}  // namespace

TrainingMemory MemoryOfWorker(const TrainingJob& job, int64_t experts,
                              int64_t replicas) {
  const ModelConfig& model = job.model;
  const Numbers one = Count(job, /*per_expert=*/true);
  const auto held = static_cast<double>(experts + replicas);
  double parameters = held * kFloatBytes * (one.weights + one.state);
  if (model.compute_type == ComputeType::kBFloat16) {
    // Replicas are not run, so they have no rounded copies.
    parameters += static_cast<double>(experts) * kFloatBytes / 2 * one.factors;
  }
  // Every layer keeps its rows and hidden activations.
  const double rows = kChoices *
                      static_cast<double>(job.tokens_per_microbatch) *
                      static_cast<double>(experts) /
                      static_cast<double>(std::max<int64_t>(1, model.experts));
  return {.parameters = parameters,
          .sum = held * kFloatBytes * one.weights,
          .gradient = static_cast<double>(experts) * kFloatBytes * one.weights,
          .rows = rows * kFloatBytes *
                  static_cast<double>(model.model_width + model.expert_width) *
                  static_cast<double>(MoeLayerNames(model).size()),
          // Replicas are written only when steps are over.
          .copy = static_cast<double>(experts) * kFloatBytes *
                  (one.weights + one.state)};
}

TrainingMemory MemoryOfCoordinator(const TrainingJob& job) {
  const Numbers dense = Count(job, /*per_expert=*/false);
  const double gradient = kFloatBytes * dense.weights;
  const double parameters = gradient + kFloatBytes * dense.state;
  return {.parameters = parameters,
          .sum = gradient,
          .gradient = gradient,
          .copy = parameters};
}

absl::StatusOr<int32_t> LargestWindow(const TrainingJob& job,
                                      const TrainingMemory& memory,
                                      int64_t capacity,
                                      absl::string_view holder,
                                      bool asynchronous_checkpoints) {
  int64_t window = job.microbatches_per_step;
  while (capacity > 0 && window > 0 &&
         memory.Total(window, asynchronous_checkpoints) >
             static_cast<double>(capacity)) {
    --window;
  }
  if (window > 0) return static_cast<int32_t>(window);
  return absl::ResourceExhaustedError(
      absl::StrCat("training takes ", Text(memory.Total(1)), " of ", holder,
                   " (parameters and optimizer state ", Text(memory.parameters),
                   ", gradients ", Text(memory.sum + memory.gradient),
                   ", rows of a microbatch ", Text(memory.rows),
                   "), which offers ", Text(static_cast<double>(capacity))));
}

std::vector<WorkerShare> ShareExperts(const TrainingJob& job,
                                      const std::vector<Member>& workers) {
  const std::vector<Member> holders = HoldersInOrder(job, workers);
  ExpertLists lists = Place(static_cast<int32_t>(job.model.experts),
                            static_cast<int32_t>(holders.size()));
  std::vector<WorkerShare> shares;
  for (size_t w = 0; w < holders.size(); ++w) {
    shares.push_back({.worker = holders[w],
                      .experts = std::move(lists[w]),
                      .replicated = {}});
  }
  if (!job.recovery.buddies || shares.size() < 2) return shares;
  for (size_t i = 0; i < shares.size(); ++i) {
    shares[i].replicated = shares[i > 0 ? i - 1 : shares.size() - 1].experts;
  }
  return shares;
}

absl::StatusOr<int32_t> LargestWindow(const TrainingJob& job,
                                      const std::vector<WorkerShare>& shares,
                                      bool asynchronous_checkpoints) {
  auto window = static_cast<int32_t>(job.microbatches_per_step);
  for (const WorkerShare& share : shares) {
    // The copy of what is on a device is on its host.
    ASSIGN_OR_RETURN(
        const int32_t fits,
        LargestWindow(
            job,
            MemoryOfWorker(job, std::ssize(share.experts),
                           std::ssize(share.replicated)),
            MemoryOffered(share.worker), HolderName(share.worker),
            asynchronous_checkpoints && share.worker.info.device == "cpu"));
    window = std::min(window, fits);
  }
  return window;
}

absl::StatusOr<std::vector<Member>> WorkersWithMemory(
    const TrainingJob& job, std::vector<Member> workers, size_t least) {
  absl::Status first;
  while (true) {
    const absl::Status fits =
        LargestWindow(job, ShareExperts(job, workers)).status();
    if (fits.ok()) return workers;
    if (first.ok()) first = fits;
    if (workers.size() <= std::max<size_t>(least, 1)) return first;
    workers.erase(std::min_element(workers.begin(), workers.end(), OffersLess));
  }
}

}  // namespace gshard
