// A worker's programs are partitioned: no fuzzer asks how their operators are.
// So the build of the fuzzers does without services/partition.

#include "services/moe/sharding_rules.h"

namespace gshard {

void RegisterMoeSharding() {}

}  // namespace gshard
