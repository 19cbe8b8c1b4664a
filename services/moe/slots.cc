#include "services/moe/slots.h"

#include <algorithm>
#include <numeric>

namespace gshard {

SlotAssigner::SlotAssigner(SlotOrder order, bool literal, int64_t capacity,
                           int64_t num_experts)
    : order_(order),
      literal_(literal),
      capacity_(capacity),
      count_(num_experts + 1) {}

void SlotAssigner::AssignChoice(const GroupChoices& group, int64_t choice,
                                int32_t* slot) {
  slot[choice] = -1;
  const int32_t expert = group.expert[choice];
  if (expert < 0) return;
  if (group.wanted[choice]) {
    if (count_[expert] < capacity_) slot[choice] = count_[expert];
    ++count_[expert];
  } else if (literal_) {
    ++count_[expert];  // Algorithm 1, line 22: outside the `if`
  }
}

void SlotAssigner::Assign(const GroupChoices& group, int32_t* slot) {
  std::fill(count_.begin(), count_.end(), 0);
  switch (order_) {
    case SlotOrder::kToken:
      for (int64_t k = 0; k < 2; ++k) {
        for (int64_t s = 0; s < group.tokens; ++s) {
          AssignChoice(group, 2 * s + k, slot);
        }
      }
      return;
    case SlotOrder::kBatchPriority:
      sorted_.resize(group.tokens);
      std::iota(sorted_.begin(), sorted_.end(), 0);
      std::stable_sort(
          sorted_.begin(), sorted_.end(), [&](int32_t a, int32_t b) {
            return group.probability[2 * a] > group.probability[2 * b];
          });
      for (int64_t k = 0; k < 2; ++k) {
        for (const int32_t s : sorted_) AssignChoice(group, 2 * s + k, slot);
      }
      return;
    case SlotOrder::kPosition:
      for (int64_t choice = 0; choice < 2 * group.tokens; ++choice) {
        AssignChoice(group, choice, slot);
      }
      return;
    case SlotOrder::kProbability:
      AssignByProbability(group, slot);
      return;
  }
}

void SlotAssigner::AssignByProbability(const GroupChoices& group,
                                       int32_t* slot) {
  const int64_t choices = 2 * group.tokens;
  const auto wants = [&](int64_t choice) {
    return group.expert[choice] >= 0 && group.wanted[choice];
  };
  // Counting sort: afterwards expert e's choices end at count_[e].
  for (int64_t i = 0; i < choices; ++i) {
    if (wants(i)) ++count_[group.expert[i] + 1];
  }
  std::partial_sum(count_.begin(), count_.end(), count_.begin());
  sorted_.resize(count_.back());
  for (int64_t i = 0; i < choices; ++i) {
    slot[i] = -1;
    if (wants(i)) sorted_[count_[group.expert[i]]++] = static_cast<int32_t>(i);
  }
  auto begin = sorted_.begin();
  for (size_t e = 0; e + 1 < count_.size(); ++e) {
    const auto end = sorted_.begin() + count_[e];
    if (end - begin > capacity_) {
      std::nth_element(begin, begin + capacity_, end,
                       [&](int32_t a, int32_t b) {
                         const float pa = group.probability[a];
                         const float pb = group.probability[b];
                         return pa != pb ? pa > pb : a < b;
                       });
      std::sort(begin, begin + capacity_);
    }
    const int64_t kept = std::min<int64_t>(end - begin, capacity_);
    for (int64_t i = 0; i < kept; ++i) slot[begin[i]] = static_cast<int32_t>(i);
    begin = end;
  }
}

}  // namespace gshard
