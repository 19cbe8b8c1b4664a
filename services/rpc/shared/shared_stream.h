// Streams of frames between processes of one machine, whose frames go through
// memory that both share, while the stream itself goes on as it was: it begins
// and ends it, tells each side that the other lives, and carries the frames if
// there is no such memory.
//
//   OpenStream<ExpertFrame, ExpertFrame>(
//       channel, method, OfferSharedMemory(factory, sharing, options),
//       options);
//   ServeStream<ExpertFrame, ExpertFrame>(
//       context, AcceptSharedMemory(factory, sharing, options), options);
//
// To handlers and senders nothing changes: order, limits, errors and ends are
// as stream.h says. The first frame of the client has the offer; the server
// answers it before anything else. From its answer on the server's frames come
// by the memory, from the client's answer to that on the client's. Whoever is
// not allowed to open the stream has nobody to offer memory to; for others see
// shared_memory.h. A peer that breaks the rings ends the stream with an error.

#ifndef SERVICES_RPC_SHARED_SHARED_STREAM_H_
#define SERVICES_RPC_SHARED_SHARED_STREAM_H_

#include <chrono>
#include <cstddef>

#include "services/base/memory_account.h"
#include "services/rpc/wire/stream.h"

namespace gshard {

struct SharingOptions {
  // What all streams of a process may share; 0: none does.
  MemoryAccount account = 0;

  // Of each of a stream's two rings, see shared_memory.h. Larger frames pass
  // through them in parts. A stream takes twice this and a page.
  size_t ring_bytes = size_t{1} << 20;

  // A peer that leaves a full ring as it is for so long is lost: UNAVAILABLE.
  std::chrono::milliseconds patience{5'000};
};

using FrameHandlerFactory = StreamHandlerFactory<ExpertFrame, ExpertFrame>;

// For the client's side: streams that it opens offer memory, whatever the
// server's address. One on another machine refuses, and the memory goes.
// Handlers use the sender that the factory is given, not that of OpenStream().
FrameHandlerFactory OfferSharedMemory(FrameHandlerFactory factory,
                                      const SharingOptions& sharing,
                                      const StreamOptions& options = {});

// For the server's side: the offers of clients are accepted.
FrameHandlerFactory AcceptSharedMemory(FrameHandlerFactory factory,
                                       const SharingOptions& sharing,
                                       const StreamOptions& options = {});

}  // namespace gshard

#endif  // SERVICES_RPC_SHARED_SHARED_STREAM_H_
