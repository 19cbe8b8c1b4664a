// LoadSession messages of the coordinator to an expert worker: segments,
// parameters, optimizer, and whether they fit together.

#include "expert_worker/session_proto.h"
#include "services/moe/graph_ops.h"
#include "services/segments/call_segment.h"
#include "tests/fuzz/message_input.h"
#include "tests/fuzz/message_mutator.h"

namespace gshard {
namespace {

void Load(const v1::LoadSession& message) {
  const auto spec = WorkerSessionFromProto(message);
  if (!Accepted(spec.status())) return;
  const auto bytes = CheckWorkerSession(*spec);
  if (Accepted(bytes.status())) CHECK(*bytes >= 0);
}

}  // namespace
}  // namespace gshard

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  [[maybe_unused]] static const bool registered = [] {
    gshard::RegisterMoeOps();
    gshard::RegisterShardingOps();
    return true;
  }();
  gshard::ForEachMessage<gshard::v1::LoadSession>(gshard::Bytes(data, size),
                                                  gshard::Load);
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                          size_t max_size, unsigned seed) {
  gshard::v1::LoadSession message;
  return gshard::MutateMessageText(data, size, max_size, seed, &message);
}
