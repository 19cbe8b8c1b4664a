// TraceScope: the traces on whose behalf a thread is working. The thread's log
// lines carry them as "trace_id" and "span_id", and its outgoing calls
// propagate the first one.

#ifndef SERVICES_RPC_WIRE_TRACE_SCOPE_H_
#define SERVICES_RPC_WIRE_TRACE_SCOPE_H_

#include <vector>

#include "absl/strings/string_view.h"
#include "services/base/log.h"
#include "services/rpc/wire/trace_context.h"

namespace gshard {

// A batch belongs to several requests. Traces beyond this number are dropped,
// unsampled ones first.
inline constexpr size_t kMaxScopeTraces = 8;

class TraceScope {
 public:
  // Traces without an id are ignored.
  explicit TraceScope(std::vector<TraceContext> traces);
  explicit TraceScope(TraceContext trace);
  ~TraceScope();

  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

 private:
  const std::vector<TraceContext> outer_;
  const LogScope log_;
};

// The traces of this thread.
const std::vector<TraceContext>& CurrentTraces();

// The id of the first trace if it is sampled, else empty; sampled traces come
// first. Valid as long as the scope.
absl::string_view CurrentSampledId();

}  // namespace gshard

#endif  // SERVICES_RPC_WIRE_TRACE_SCOPE_H_
