// SpanQueue: spans that wait for the collector, and when to send them. Time is
// passed in; not thread-safe.

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
  std::chrono::milliseconds max_wait{2'000};  // for a batch to fill
};

class SpanQueue {
 public:
  using Time = std::chrono::steady_clock::time_point;

  explicit SpanQueue(const SpanQueueLimits& limits) : limits_(limits) {}

  // False, dropping the span, if there is no room.
  bool Add(Span span, Time now);

  // When to send the next batch: max() if there is none, the past if it is
  // full.
  Time NextBatch() const;

  // Removes the oldest spans, at most a batch.
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
