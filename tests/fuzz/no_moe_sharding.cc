// Workers get programs that are already partitioned, so no fuzzer needs the
// sharding rules; this stub keeps services/partition out of their build.

#include "services/moe/sharding_rules.h"

namespace gshard {

void RegisterMoeSharding() {}

}  // namespace gshard
