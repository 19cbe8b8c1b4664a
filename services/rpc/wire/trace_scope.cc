#include "services/rpc/wire/trace_scope.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_join.h"

namespace gshard {
namespace {

thread_local std::vector<TraceContext> current;

std::vector<TraceContext> Enter(std::vector<TraceContext> traces) {
  std::erase_if(traces,
                [](const TraceContext& t) { return t.trace_id.empty(); });
  // Sampled traces first: they are the last to be dropped.
  std::stable_partition(
      traces.begin(), traces.end(),
      [](const TraceContext& t) { return (t.flags & 1) != 0; });
  if (traces.size() > kMaxScopeTraces) traces.resize(kMaxScopeTraces);
  return std::exchange(current, std::move(traces));
}

std::string Join(std::string TraceContext::*field) {
  return absl::StrJoin(current, ",",
                       [field](std::string* out, const TraceContext& trace) {
                         out->append(trace.*field);
                       });
}

}  // namespace

TraceScope::TraceScope(std::vector<TraceContext> traces)
    : outer_(Enter(std::move(traces))),
      log_({{"trace_id", Join(&TraceContext::trace_id)},
            {"span_id", Join(&TraceContext::span_id)}}) {}

TraceScope::TraceScope(TraceContext trace)
    : TraceScope(std::vector<TraceContext>{std::move(trace)}) {}

TraceScope::~TraceScope() { current = outer_; }

const std::vector<TraceContext>& CurrentTraces() { return current; }

absl::string_view CurrentSampledId() {
  return current.empty() ? "" : current.front().sampled_id();
}

}  // namespace gshard
