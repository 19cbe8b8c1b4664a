#include "services/data/epoch_sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "services/data/shuffle.h"

namespace gshard {

std::vector<int64_t> EpochCounts(const std::vector<SamplingCell>& cells,
                                 double temperature) {
  std::map<int32_t, double> sums;  // sums of weights, by language
  double pairs = 0.0;
  for (const SamplingCell& cell : cells) {
    sums[cell.language] += cell.weight * cell.pairs;
    pairs += cell.pairs;
  }
  double total = 0.0;
  for (const auto& [language, sum] : sums) {
    total += std::pow(sum, 1.0 / temperature);
  }
  std::vector<int64_t> counts;
  for (const SamplingCell& cell : cells) {
    const double sum = sums[cell.language];
    const double share = std::pow(sum, 1.0 / temperature) / total *
                         (cell.weight * cell.pairs / sum);
    counts.push_back(std::max<int64_t>(1, std::llround(share * pairs)));
  }
  return counts;
}

EpochSampler EpochSampler::All(int32_t pairs) {
  EpochSampler sampler;
  sampler.pairs_ = pairs;
  return sampler;
}

absl::StatusOr<EpochSampler> EpochSampler::Create(
    const TokenizedText& text, const std::vector<TextFile>& files,
    double temperature, uint64_t seed) {
  EpochSampler sampler = All(text.size());
  const bool equal_weights = std::all_of(
      files.begin(), files.end(),
      [&](const TextFile& file) { return file.weight == files[0].weight; });
  if (equal_weights && temperature == 1.0) return sampler;
  // By language and weight, in the order of their values.
  std::map<std::pair<int32_t, double>, int32_t> numbers;
  for (int32_t i = 0; i < text.size(); ++i) {
    ++numbers[{text.language(i), files[text.file(i)].weight}];
  }
  for (auto& [cell, number] : numbers) {
    sampler.cells_.push_back({cell.first, cell.second, number});
    number = static_cast<int32_t>(sampler.cells_.size()) - 1;
  }
  sampler.counts_ = EpochCounts(sampler.cells_, temperature);
  const int64_t draws = std::accumulate(sampler.counts_.begin(),
                                        sampler.counts_.end(), int64_t{0});
  if (draws > std::numeric_limits<int32_t>::max()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("an epoch has ", draws, " pairs, expected below 2^31"));
  }
  sampler.cell_of_ = [&text, files, numbers](int32_t pair) {
    return numbers.at({text.language(pair), files[text.file(pair)].weight});
  };
  sampler.key_ = FoldIn(seed, "sampling");
  return sampler;
}

std::vector<int32_t> EpochSampler::Draw(int64_t epoch) const {
  std::vector<int32_t> drawn;
  if (counts_.empty()) {
    drawn.resize(pairs_);
    std::iota(drawn.begin(), drawn.end(), 0);
    return drawn;
  }
  std::vector<std::vector<int32_t>> members(cells_.size());
  for (size_t c = 0; c < cells_.size(); ++c) {
    members[c].reserve(cells_[c].pairs);
  }
  for (int32_t i = 0; i < pairs_; ++i) members[cell_of_(i)].push_back(i);
  drawn.reserve(std::accumulate(counts_.begin(), counts_.end(), int64_t{0}));
  for (size_t c = 0; c < cells_.size(); ++c) {
    DrawCell(c, epoch, std::move(members[c]), &drawn);
  }
  return drawn;
}

void EpochSampler::DrawCell(size_t cell, int64_t epoch,
                            std::vector<int32_t> pairs,
                            std::vector<int32_t>* drawn) const {
  const auto size = static_cast<int64_t>(pairs.size());
  const int64_t end = (epoch + 1) * counts_[cell];
  for (int64_t next = epoch * counts_[cell]; next < end;) {
    const int64_t pass = next / size;
    std::vector<int32_t> permuted = pairs;
    Shuffle(FoldIn(FoldIn(key_, cell), static_cast<uint64_t>(pass)), &permuted);
    const int64_t stop = std::min(end, (pass + 1) * size);
    drawn->insert(drawn->end(), permuted.begin() + (next - pass * size),
                  permuted.begin() + (stop - pass * size));
    next = stop;
  }
}

}  // namespace gshard
