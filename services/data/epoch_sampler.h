// EpochSampler: which pairs an epoch consists of, and how often each occurs.
//
// Pairs of one language and one weight form a cell. With n_l the sum of the
// weights of language l's pairs and T the temperature, the language has the
// share n_l^(1/T), normalized over languages, divided among its cells in
// proportion to their sums of weights. An epoch of N pairs takes from a cell
// its share times N, rounded, at least one. They are drawn from the cell's
// pairs in passes, each a random permutation, that continue from epoch to
// epoch: up to the current pass every pair of a cell has occurred equally
// often.
//
// All of it is a function of (cells, temperature, seed, epoch).

#ifndef SERVICES_DATA_EPOCH_SAMPLER_H_
#define SERVICES_DATA_EPOCH_SAMPLER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "services/config/training_job.h"
#include "services/data/tokenized_text.h"

namespace gshard {

struct SamplingCell {
  int32_t language = 0;
  double weight = 1.0;  // > 0, of each pair
  int32_t pairs = 0;    // > 0

  bool operator==(const SamplingCell&) const = default;
};

// Number of pairs that an epoch takes from each cell. The shares sum to 1
// except for rounding. REQUIRES: temperature >= 1.
std::vector<int64_t> EpochCounts(const std::vector<SamplingCell>& cells,
                                 double temperature);

// Thread-safe.
class EpochSampler {
 public:
  // `text` must outlive this and consist of `files`. Every pair once per epoch
  // if all weights are equal and the temperature is 1. Takes 2 passes over the
  // pairs' languages and files. Errors: ResourceExhausted if an epoch has 2^31
  // pairs or more.
  static absl::StatusOr<EpochSampler> Create(const TokenizedText& text,
                                             const std::vector<TextFile>& files,
                                             double temperature, uint64_t seed);

  // Every pair of `pairs` once.
  static EpochSampler All(int32_t pairs);

  // The pairs of an epoch, counted from 0; may contain duplicates. Takes 4
  // bytes per pair of the text besides the result.
  std::vector<int32_t> Draw(int64_t epoch) const;

 private:
  EpochSampler() = default;
  void DrawCell(size_t cell, int64_t epoch, std::vector<int32_t> pairs,
                std::vector<int32_t>* drawn) const;

  int32_t pairs_ = 0;
  // Empty if every pair occurs once.
  std::vector<int64_t> counts_;  // per epoch, by cell
  std::vector<SamplingCell> cells_;
  std::function<int32_t(int32_t pair)> cell_of_;
  uint64_t key_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_DATA_EPOCH_SAMPLER_H_
