// FakeCollector: accepts spans as OpenTelemetry's collector does, in this
// process, and answers as told.

#ifndef TESTS_SERVICES_TRACE_FAKE_COLLECTOR_H_
#define TESTS_SERVICES_TRACE_FAKE_COLLECTOR_H_

#include <functional>
#include <string>
#include <vector>

#include "services/base/mutex.h"
#include "services/trace/span.h"
#include "tests/services/http/fake_http_server.h"

namespace gshard {

struct CollectedSpan : Span {
  std::string service;

  // As text; empty if absent.
  std::string attribute(const std::string& key) const;
};

class FakeCollector {
 public:
  FakeCollector();

  std::string endpoint() const { return server_.url(); }

  // Sets the answer to later requests. Spans are collected only from requests
  // answered with 200. The function may block.
  void SetAnswer(std::function<FakeHttpAnswer()> answer);

  // Everything received so far.
  std::vector<CollectedSpan> Spans() const;
  std::vector<FakeHttpRequest> Requests() const;
  // Waits until `count` have arrived, for at most a minute.
  std::vector<CollectedSpan> AwaitSpans(size_t count);
  void AwaitRequests(size_t count);

 private:
  FakeHttpAnswer Serve(const FakeHttpRequest& request);

  mutable Mutex mutex_;
  CondVar changed_;
  std::function<FakeHttpAnswer()> answer_ ABSL_GUARDED_BY(mutex_);
  std::vector<CollectedSpan> spans_ ABSL_GUARDED_BY(mutex_);
  std::vector<FakeHttpRequest> requests_ ABSL_GUARDED_BY(mutex_);
  FakeHttpServer server_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_TRACE_FAKE_COLLECTOR_H_
