// Frames in shared memory, as routers and workers on one machine exchange them.
// The first byte is the number of 16-byte units per write.

#include <algorithm>
#include <memory>
#include <utility>

#include "services/base/check.h"
#include "services/rpc/shared/frame_reader.h"
#include "services/rpc/shared/frame_writer.h"
#include "services/rpc/shared/shared_memory.h"
#include "tests/fuzz/fuzzer.h"

namespace gshard {
namespace {

constexpr FrameLimits kLimits = {
    .max_bytes = 1 << 15, .max_header_bytes = 1 << 12, .max_tensors = 16};

// Reads every byte, so that AddressSanitizer checks its location.
uint64_t Sum(const Tensor& tensor) {
  uint64_t sum = 0;
  const auto* const bytes = reinterpret_cast<const uint8_t*>(tensor.raw());
  for (size_t i = 0; i < tensor.bytes(); ++i) sum += bytes[i];
  return sum;
}

// One shared memory as its two parties see it; Reset() zeroes its counters.
struct Pair {
  std::unique_ptr<SharedMemory> peers, mine;

  Pair() {
    const MemoryAccount account(int64_t{1} << 20);
    peers = *SharedMemory::Create(kMinRingBytes, account);
    mine = *SharedMemory::Open(peers->offer(), account);
  }
  void Reset() const {
    for (const auto party : {SharedMemory::kOfferer, SharedMemory::kOpener}) {
      peers->words(party).written = 0;
      peers->words(party).read = 0;
    }
  }
};

// Sends an accepted frame back and checks that it arrives unchanged.
void Resend(SharedRingWriter& writer, FrameReader& reader,
            const ExpertFrame& frame) {
  FrameWriter sent(frame);
  while (true) {
    const auto done = sent.WriteTo(writer);
    CHECK(done.ok());
    const auto again = reader.Next();
    CHECK(again.ok());
    if (!again->has_value()) {
      CHECK(!*done);
      continue;
    }
    CHECK(*done);
    CHECK((*again)->header.SerializeAsString() ==
          frame.header.SerializeAsString());
    CHECK((*again)->tensors.size() == frame.tensors.size());
    for (size_t i = 0; i < frame.tensors.size(); ++i) {
      CHECK(Sum((*again)->tensors[i]) == Sum(frame.tensors[i]));
    }
    return;
  }
}

void Read(absl::string_view bytes, size_t at_a_time) {
  static const Pair& pair = *new Pair();
  pair.Reset();
  SharedRingWriter peer(*pair.peers), back(*pair.mine);
  SharedRingReader ring(*pair.mine), ring_back(*pair.peers);
  FrameReader reader(&ring, kLimits), reader_back(&ring_back, kLimits);
  while (!bytes.empty()) {
    const size_t room = *peer.Room();
    const absl::string_view part = bytes.substr(0, std::min(room, at_a_time));
    bytes.remove_prefix(part.size());
    peer.Put(part.data(), part.size());
    peer.Flush();
    while (true) {
      const auto frame = reader.Next();
      if (!Accepted(frame.status())) return;
      if (reader.ended()) return;
      if (!frame->has_value()) break;
      Resend(back, reader_back, **frame);
    }
  }
}

}  // namespace
}  // namespace gshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  gshard::Read(gshard::Bytes(data + 1, size - 1),
               16 * std::max<size_t>(1, data[0]));
  return 0;
}
