#include "services/data/held_out.h"

#include <algorithm>
#include <limits>
#include <numeric>

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
  const auto sentences = static_cast<int32_t>(chosen.size());
  // One epoch, sorted as a whole.
  ASSIGN_OR_RETURN(
      const BatchOrder order,
      BatchOrder::Create(
          sentences, [&](int32_t i) { return text.lengths(chosen[i]); },
          {.seed = options.seed,
           .tokens = options.tokens,
           .microbatches_per_step = 1,
           .pool = std::numeric_limits<int32_t>::max()},
          EpochSampler::All(sentences)));
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
