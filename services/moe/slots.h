// Assigns the slots of one group's experts, in the order given by the options.
// Gating decides what each token wants; this decides what it gets.

#ifndef SERVICES_MOE_SLOTS_H_
#define SERVICES_MOE_SLOTS_H_

#include <cstdint>
#include <vector>

#include "services/moe/gating.h"

namespace gshard {

// One group of S tokens; element 2 * s + k of an array is choice k of token s.
struct GroupChoices {
  int64_t tokens = 0;
  // -1: padding, or no second choice.
  const int32_t* expert = nullptr;
  // 0: rejected by the policy for the second expert.
  const uint8_t* wanted = nullptr;
  // Softmax probability. Read by kBatchPriority and kProbability only.
  const float* probability = nullptr;
};

// Reuses its memory from group to group. Not thread-safe.
class SlotAssigner {
 public:
  SlotAssigner(SlotOrder order, bool literal, int64_t capacity,
               int64_t num_experts);

  // Sets slot[2 * s + k], -1 where there is none.
  void Assign(const GroupChoices& group, int32_t* slot);

 private:
  void AssignChoice(const GroupChoices& group, int64_t choice, int32_t* slot);
  void AssignByProbability(const GroupChoices& group, int32_t* slot);

  const SlotOrder order_;
  const bool literal_;
  const int64_t capacity_;
  std::vector<int32_t> count_;   // [E] the paper's c_e, of this group
  std::vector<int32_t> sorted_;  // scratch: tokens, or choices by expert
};

}  // namespace gshard

#endif  // SERVICES_MOE_SLOTS_H_
