#include "services/data/held_out.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "services/base/check.h"
#include "services/base/status_macros.h"
#include "services/data/batch_order.h"
#include "services/data/shuffle.h"

namespace gshard {

absl::StatusOr<HeldOut> HeldOut::Create(const TokenizedText& text,
                                        const HeldOutOptions& options) {
  CHECK(options.max_sentences >= 0);
  std::vector<int32_t> chosen(text.size());
  std::iota(chosen.begin(), chosen.end(), 0);
  if (options.max_sentences > 0 && options.max_sentences < text.size()) {
    Shuffle(FoldIn(options.seed, "held out"), &chosen);
    chosen.resize(options.max_sentences);
    std::sort(chosen.begin(), chosen.end());
  }
  std::vector<int32_t> lengths, target_lengths;
  for (const int32_t i : chosen) {
    lengths.push_back(text.lengths(i).longest);
    target_lengths.push_back(text.lengths(i).target);
  }
  // One epoch, sorted as a whole.
  ASSIGN_OR_RETURN(
      const BatchOrder order,
      BatchOrder::Create(std::move(lengths),
                         {.seed = options.seed,
                          .tokens = options.tokens,
                          .microbatches_per_step = 1,
                          .pool = std::numeric_limits<int32_t>::max()},
                         std::move(target_lengths)));
  HeldOut held_out;
  const int64_t count = order.MicrobatchesInEpoch(0);
  for (int64_t i = 0; i < count; ++i) {
    std::vector<int32_t>& indices =
        held_out.microbatches_.emplace_back(order.Microbatch(i, 0));
    for (int32_t& index : indices) index = chosen[index];
  }
  return held_out;
}

const std::vector<int32_t>& HeldOut::Microbatch(int32_t index) const {
  CHECK(index >= 0 && index < microbatches());
  return microbatches_[index];
}

}  // namespace gshard
