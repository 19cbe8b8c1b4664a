// Streams of frames between processes of one machine, whose frames travel
// through shared memory. The underlying gRPC stream still begins and ends the
// exchange, detects the loss of the peer, and carries the frames if there is no
// shared memory.
//
//   OpenStream<ExpertFrame, ExpertFrame>(
//       channel, method, OfferSharedMemory(factory, sharing, options),
//       options);
//   ServeStream<ExpertFrame, ExpertFrame>(
//       context, AcceptSharedMemory(factory, sharing, options), options);
//
// Handlers and senders behave as in stream.h, with the same order, limits,
// errors and ends. The client's first frame contains the offer, and the server
// answers it before anything else. After its answer the server sends its frames
// through the memory; after confirming that answer, so does the client. A
// client that is not allowed to open the stream gets no chance to offer memory;
// for others see shared_memory.h. A peer that corrupts the rings ends the
// stream with an error.

#ifndef SERVICES_RPC_SHARED_SHARED_STREAM_H_
#define SERVICES_RPC_SHARED_SHARED_STREAM_H_

#include <chrono>
#include <cstddef>

#include "services/base/memory_account.h"
#include "services/rpc/wire/stream.h"

namespace gshard {

struct SharingOptions {
  // Limit of the memory that all streams of a process may share; 0: no sharing.
  MemoryAccount account = 0;

  // Bytes of each of a stream's two rings, see shared_memory.h. Larger frames
  // pass through them in parts. A stream takes twice this and a page.
  size_t ring_bytes = size_t{1} << 20;

  // A peer that takes nothing from a full ring for this long counts as lost:
  // UNAVAILABLE.
  std::chrono::milliseconds patience{5'000};
};

using FrameHandlerFactory = StreamHandlerFactory<ExpertFrame, ExpertFrame>;

// For the client: its streams offer memory, whatever the server's address. A
// server on another machine declines, and the memory is freed. Handlers must
// use the sender that the factory is given, not the one of OpenStream().
FrameHandlerFactory OfferSharedMemory(FrameHandlerFactory factory,
                                      const SharingOptions& sharing,
                                      const StreamOptions& options = {});

// For the server: accepts the offers of clients.
FrameHandlerFactory AcceptSharedMemory(FrameHandlerFactory factory,
                                       const SharingOptions& sharing,
                                       const StreamOptions& options = {});

}  // namespace gshard

#endif  // SERVICES_RPC_SHARED_SHARED_STREAM_H_
