// How the parties of a SharedMemory wake each other: a futex beside the rings.
//
// A party that has nothing to do says in its `wants` what would change that,
// looks once more, and sleeps until its `bell` changes. Whoever brings that
// rings. Neither word is trusted: a peer that changes them can make this side
// look in vain, or not be woken by the peer itself.

#ifndef SERVICES_RPC_SHARED_SHARED_BELL_H_
#define SERVICES_RPC_SHARED_SHARED_BELL_H_

#include <chrono>
#include <cstdint>
#include <optional>

#include "services/rpc/shared/shared_memory.h"

namespace gshard {

// What a sleeper may want, together.
inline constexpr uint32_t kWantsBytes = 1;  // to read
inline constexpr uint32_t kWantsRoom = 2;   // to write

// Wakes the party whose words these are.
void RingBell(SharedMemory::Words& words);

// The same if it sleeps and wants this. To be called after what it wants was
// published.
void RingBellFor(SharedMemory::Words& words, uint32_t what);

// Says what it wants. To be followed by a last look, and SleepUntilRung().
void AnnounceSleep(SharedMemory::Words& words, uint32_t wants);

// Returns when the bell is not at `heard` any more, when it was rung, or after
// `most`; or for no reason.
void SleepUntilRung(SharedMemory::Words& words, uint32_t heard,
                    std::optional<std::chrono::milliseconds> most);

}  // namespace gshard

#endif  // SERVICES_RPC_SHARED_SHARED_BELL_H_
