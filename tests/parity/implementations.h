// Maps each public implementation to our options that route alike. One line
// each: to cover another, add its numbers to the data and a line here.
//
// Covers the routing (experts, slots, drops) of all of them, and the weights of
// all but one. Not covered, on purpose:
//   - hf_nllb_random_before weighs the first choice p1 / (p1 + p2), but the
//     second p2: its policy `random` overwrites the normalised weight with the
//     probability. No option gives two scales at once;
//   - fairseq's balance loss with padding: its mean probability includes padded
//     rows, so the contents of padding change the gradient;
//   - lingvo's balance loss with padding divides by S, padding included. Ours
//     divides by valid tokens; the ratio is (valid / S)^2;
//   - hf_nllb's router returns no balance loss;
//   - hf_nllb has no slots: which choices it keeps is compared, not where;
//   - how each computes C: the tests set the capacity that it used.

#ifndef TESTS_PARITY_IMPLEMENTATIONS_H_
#define TESTS_PARITY_IMPLEMENTATIONS_H_

#include <string>
#include <vector>

#include "services/moe/gating.h"

namespace gshard {

// How an implementation's balance loss relates to ours.
enum class AuxScale {
  kOurs,           // E * sum f m
  kPrinted,        // sum f m / E, as in the paper
  kOverAllTokens,  // as ours, but divided by S^2, padding included
  kNotComparable,
};

struct Implementation {
  std::string name;
  GatingOptions options;
  AuxScale aux = AuxScale::kOurs;
  bool padded = false;
  // Requires C = 2S / E, so it is missing from the overflow cases.
  bool only_exact_capacity = false;
  // The first weight is on another scale than the second; see above.
  bool first_weight_differs = false;
};

inline std::vector<Implementation> Implementations() {
  constexpr auto kAll = SecondExpertPolicy::kAll;
  constexpr auto kRandom = SecondExpertPolicy::kRandom;
  constexpr auto kSampling = SecondExpertPolicy::kSampling;
  constexpr auto kBefore = Normalize::kBeforeCapacity;
  constexpr auto kAfter = Normalize::kAfterCapacity;
  const auto gate = [](SecondExpertPolicy second, Normalize normalize,
                       SlotOrder order = SlotOrder::kToken) {
    return GatingOptions{
        .second_expert = second, .normalize = normalize, .order = order};
  };
  const auto topk = [&](SlotOrder order) {
    GatingOptions options = gate(kAll, kAfter, order);
    options.balance_both_choices = true;
    return options;
  };
  const auto literal = [&](SecondExpertPolicy second) {
    GatingOptions options = gate(second, kBefore);
    options.literal = true;
    return options;
  };
  constexpr auto kBpr = SlotOrder::kBatchPriority;
  return {
      {"paper_alg1_all", literal(kAll), AuxScale::kPrinted},
      {"paper_alg1_random", literal(kRandom), AuxScale::kPrinted},
      {"lingvo_port_legacy1_all", gate(kAll, kBefore)},
      {"lingvo_port_legacy1_random", gate(kRandom, kBefore)},
      {"lingvo_port_legacy1_all_padded", gate(kAll, kBefore),
       AuxScale::kOverAllTokens, /*padded=*/true},
      {"lingvo_port_legacy0_all", gate(kAll, kAfter)},
      {"lingvo_port_legacy0_random", gate(kRandom, kAfter)},
      {"fairseq_all_before", gate(kAll, kBefore)},
      {"fairseq_all_after", gate(kAll, kAfter)},
      {"fairseq_all_before_bpr", gate(kAll, kBefore, kBpr)},
      {"fairseq_all_after_bpr", gate(kAll, kAfter, kBpr)},
      {"fairseq_all_before_padded", gate(kAll, kBefore),
       AuxScale::kNotComparable, /*padded=*/true},
      {"fairseq_random_before", gate(kRandom, kBefore)},
      {"fairseq_random_after", gate(kRandom, kAfter)},
      {"fairseq_sampling_after", gate(kSampling, kAfter)},
      {"fairscale_sampling", gate(kSampling, kAfter), AuxScale::kPrinted,
       /*padded=*/false, /*only_exact_capacity=*/true},
      {"deepspeed_top2_nosampling", gate(kAll, kAfter)},
      {"deepspeed_top2_sampling", gate(kSampling, kAfter)},
      {"deepspeed_topk2_probs", topk(SlotOrder::kProbability)},
      {"deepspeed_topk2_position", topk(SlotOrder::kPosition)},
      {"tutel_top2", gate(kAll, kBefore)},
      {"tutel_top2_bpr", gate(kAll, kBefore, kBpr)},
      {"hf_nllb_all_before", gate(kAll, kBefore), AuxScale::kNotComparable},
      {"hf_nllb_all_after", gate(kAll, kAfter), AuxScale::kNotComparable},
      {"hf_nllb_random_before", gate(kRandom, Normalize::kNever),
       AuxScale::kNotComparable, /*padded=*/false,
       /*only_exact_capacity=*/false, /*first_weight_differs=*/true},
      {"lucidrains_all", gate(kAll, kBefore)},
  };
}

}  // namespace gshard

#endif  // TESTS_PARITY_IMPLEMENTATIONS_H_
