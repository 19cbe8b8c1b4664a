#include "services/cluster/placement.h"

namespace gshard {

ExpertLists Place(int32_t num_experts, int32_t num_workers) {
  ExpertLists lists(num_workers);
  int32_t expert = 0;
  for (int32_t w = 0; w < num_workers; ++w) {
    const int32_t count =
        num_experts / num_workers + (w < num_experts % num_workers ? 1 : 0);
    for (int32_t i = 0; i < count; ++i) lists[w].push_back(expert++);
  }
  return lists;
}

}  // namespace gshard
