// TraceScope: the traces that a thread works for. Log lines of the thread carry
// them as "trace_id" and "span_id", and calls that it makes hand them on.

#ifndef SERVICES_RPC_WIRE_TRACE_SCOPE_H_
#define SERVICES_RPC_WIRE_TRACE_SCOPE_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/base/log.h"
#include "services/rpc/wire/trace_context.h"

namespace gshard {

// A batch belongs to several requests; more traces than this are left out,
// sampled ones last.
inline constexpr size_t kMaxScopeTraces = 8;

class TraceScope {
 public:
  // Those without an id do not count.
  explicit TraceScope(std::vector<TraceContext> traces);
  explicit TraceScope(TraceContext trace);
  ~TraceScope();

  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  const std::vector<TraceContext> outer_;
  const LogScope log_;
};

// Those of this thread.
const std::vector<TraceContext>& CurrentTraces();

// The first one's traceparent; empty if there is none.
std::string CurrentTraceparent();

// One of those that are sampled; empty if none is. Valid within its scope.
absl::string_view CurrentSampledId();

}  // namespace gshard

#endif  // SERVICES_RPC_WIRE_TRACE_SCOPE_H_
