// SpanQueue: spans that wait for the collector, and when which of them go.
// Time is passed in; not thread-safe.

#ifndef SERVICES_TRACE_SPAN_QUEUE_H_
#define SERVICES_TRACE_SPAN_QUEUE_H_

#include <chrono>
#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "services/trace/span.h"

namespace gshard {

struct SpanQueueLimits {
  size_t max_spans = 2048;
  size_t batch = 512;
  std::chrono::milliseconds max_wait{2'000};  // for a batch to be full
};

class SpanQueue {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit SpanQueue(const SpanQueueLimits& limits) : limits_(limits) {}

  // False if there is no room: what came before stays.
  bool Add(Span span, Time now);

  // When the next batch is to go: max() if there is none, the past if it is
  // full.
  Time NextBatch() const;

  // The oldest spans, a batch at most.
  std::vector<Span> Take();

  size_t size() const { return waiting_.size(); }

 private:
  struct Waiting {
    Span span;
    Time since;
  };

  const SpanQueueLimits limits_;
  std::deque<Waiting> waiting_;
};

}  // namespace gshard

#endif  // SERVICES_TRACE_SPAN_QUEUE_H_
