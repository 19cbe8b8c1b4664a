// RoutingTrace: which experts each token of a sentence visits, in the encoder
// and along a given translation.

#ifndef SERVICES_DECODING_ROUTING_TRACE_H_
#define SERVICES_DECODING_ROUTING_TRACE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "services/graph/device_executor.h"
#include "services/segments/segment_runner.h"

namespace gshard {

struct ExpertVisit {
  int32_t expert = 0;
  float weight = 0.0f;      // weight of its output; 0 if lost
  bool overflowed = false;  // it had no slot, so the weight is 0
};

struct LayerRouting {
  std::string layer;
  std::vector<std::vector<ExpertVisit>> tokens;  // first choice first
};

struct RoutingTrace {
  std::vector<LayerRouting> source;  // layers in the order of execution
  std::vector<LayerRouting> target;
};

// Traces one model. Thread-safe.
class RoutingTracer {
 public:
  // `encode` and `decode` are from BuildEncodeProgram and BuildDecodeProgram
  // with `routing`, or the router's side of them. They run on `device`, which
  // outlives the tracer, or on the CPU if null.
  RoutingTracer(Program encode, Program decode, Device* device = nullptr);

  // Routing of the tokens `source` and, in the decoder, of `target`, which
  // includes the beginning of the sentence; ids must be in range.
  //
  // Errors: those of DeviceExecutor and of the segments' runner; Cancelled soon
  // after stopped(), if set, returns true.
  absl::StatusOr<RoutingTrace> Trace(
      absl::Span<const int32_t> source, absl::Span<const int32_t> target,
      const TensorMap& parameters, SegmentRunner* segments,
      const std::function<bool()>& stopped = nullptr) const;

 private:
  const DeviceExecutor encode_;
  const DeviceExecutor decode_;
};

}  // namespace gshard

#endif  // SERVICES_DECODING_ROUTING_TRACE_H_
