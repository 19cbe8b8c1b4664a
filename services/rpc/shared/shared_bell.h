// Wake-ups between the two parties of a SharedMemory: a futex beside the rings.
//
// A party without work sets in its `wants` which events to be woken for, checks
// for work once more, and sleeps until its `bell` changes. The party that
// causes such an event rings the bell. Neither word is trusted: a peer that
// tampers with them can only cause spurious wake-ups of this side, or prevent
// wake-ups by the peer itself.

#ifndef SERVICES_RPC_SHARED_SHARED_BELL_H_
#define SERVICES_RPC_SHARED_SHARED_BELL_H_

#include <chrono>
#include <cstdint>
#include <optional>

#include "services/rpc/shared/shared_memory.h"

namespace gshard {

// Events that a sleeper may wait for; a bit mask.
inline constexpr uint32_t kWantsBytes = 1;  // bytes to read
inline constexpr uint32_t kWantsRoom = 2;   // room to write

// Wakes the party to which these words belong.
void RingBell(SharedMemory::Words& words);

// The same, but only if the party sleeps and waits for this event. Call it
// after the event was published.
void RingBellFor(SharedMemory::Words& words, uint32_t what);

// Sets the events to be woken for. Follow it by a last check for work, then
// SleepUntilRung().
void AnnounceSleep(SharedMemory::Words& words, uint32_t wants);

// Returns when the bell differs from `heard`, was rung, or after `most`; may
// also return spuriously.
void SleepUntilRung(SharedMemory::Words& words, uint32_t heard,
                    std::optional<std::chrono::milliseconds> most);

}  // namespace gshard

#endif  // SERVICES_RPC_SHARED_SHARED_BELL_H_
