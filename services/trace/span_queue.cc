#include "services/trace/span_queue.h"

namespace gshard {

bool SpanQueue::Add(Span span, Time now) {
  if (waiting_.size() >= limits_.max_spans) return false;
  waiting_.push_back({std::move(span), now});
  return true;
}

SpanQueue::Time SpanQueue::NextBatch() const {
  if (waiting_.empty()) return Time::max();
  if (waiting_.size() >= limits_.batch) return Time::min();
  return waiting_.front().since + limits_.max_wait;
}

std::vector<Span> SpanQueue::Take() {
  std::vector<Span> batch;
  while (!waiting_.empty() && batch.size() < limits_.batch) {
    batch.push_back(std::move(waiting_.front().span));
    waiting_.pop_front();
  }
  return batch;
}

}  // namespace gshard
