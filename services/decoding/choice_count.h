// Statistics of a sentence's expert choices: how many had no available expert,
// and their cost.

#ifndef SERVICES_DECODING_CHOICE_COUNT_H_
#define SERVICES_DECODING_CHOICE_COUNT_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "services/graph/program.h"
#include "services/tensor/tensor.h"

namespace gshard {

// Expert choices of tokens, in all MoE layers.
struct ChoiceCount {
  int64_t made = 0;
  int64_t lost = 0;
  // Relative to the other tokens of the step: a choice costs in proportion to
  // its expert's load, since a layer waits for the busiest expert.
  double cost = 0;

  double lost_share() const {
    return made == 0 ? 0.0
                     : static_cast<double>(lost) / static_cast<double>(made);
  }
  double mean_cost() const {
    return made == 0 ? 1.0 : cost / static_cast<double>(made);
  }
};

// Adds the choices reported in the outputs of a serving program ("lost/<layer>"
// i32[T], "kept/<layer>" i32[E], and "expert/<layer>" i32[T, 2], without which
// all choices cost the same). Token t belongs to sentence sentence_of_token[t],
// to none if that is negative. REQUIRES: the spans fit the outputs and each
// other.
void AddChoices(const Program& program, const std::vector<Tensor>& outputs,
                absl::Span<const int32_t> sentence_of_token,
                absl::Span<ChoiceCount> sentences);

}  // namespace gshard

#endif  // SERVICES_DECODING_CHOICE_COUNT_H_
