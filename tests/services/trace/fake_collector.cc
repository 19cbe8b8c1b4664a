#include "tests/services/trace/fake_collector.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "services/base/check.h"

namespace gshard {
namespace {

using nlohmann::json;

int64_t Nanos(const json& text) {
  int64_t nanos = 0;
  CHECK(absl::SimpleAtoi(text.get<std::string>(), &nanos));
  return nanos;
}

CollectedSpan SpanOf(const json& object, const std::string& service) {
  CollectedSpan span;
  span.service = service;
  span.trace_id = object.at("traceId");
  span.span_id = object.at("spanId");
  span.parent_id = object.value("parentSpanId", "");
  span.name = object.at("name");
  span.kind = static_cast<SpanKind>(object.at("kind").get<int>());
  span.start_nanos = Nanos(object.at("startTimeUnixNano"));
  span.end_nanos = Nanos(object.at("endTimeUnixNano"));
  for (const json& attribute : object.at("attributes")) {
    for (const auto& [type, value] : attribute.at("value").items()) {
      span.attributes.emplace_back(attribute.at("key"),
                                   value.get<std::string>());
    }
  }
  if (object.contains("status")) {
    span.error = object.at("status").at("message");
  }
  return span;
}

}  // namespace

std::string CollectedSpan::attribute(const std::string& key) const {
  for (const auto& [name, value] : attributes) {
    if (name == key) return std::get<std::string>(value);
  }
  return "";
}

FakeCollector::FakeCollector()
    : answer_([] {
        return FakeHttpAnswer{200, "{}"};
      }),
      server_(
          [this](const FakeHttpRequest& request) { return Serve(request); }) {}

void FakeCollector::SetAnswer(std::function<FakeHttpAnswer()> answer) {
  MutexLock lock(mutex_);
  answer_ = std::move(answer);
}

std::vector<CollectedSpan> FakeCollector::Spans() const {
  MutexLock lock(mutex_);
  return spans_;
}

std::vector<FakeHttpRequest> FakeCollector::Requests() const {
  MutexLock lock(mutex_);
  return requests_;
}

std::vector<CollectedSpan> FakeCollector::AwaitSpans(size_t count) {
  MutexLock lock(mutex_);
  changed_.WaitFor(lock, std::chrono::minutes(1),
                   [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                     return spans_.size() >= count;
                   });
  return spans_;
}

void FakeCollector::AwaitRequests(size_t count) {
  MutexLock lock(mutex_);
  changed_.WaitFor(lock, std::chrono::minutes(1),
                   [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                     return requests_.size() >= count;
                   });
}

FakeHttpAnswer FakeCollector::Serve(const FakeHttpRequest& request) {
  std::function<FakeHttpAnswer()> decide;
  {
    MutexLock lock(mutex_);
    requests_.push_back(request);
    decide = answer_;
    changed_.NotifyAll();
  }
  const FakeHttpAnswer answer = decide();
  if (answer.code != 200 ||
      answer.delivery != FakeHttpAnswer::Delivery::kWhole) {
    return answer;
  }
  MutexLock lock(mutex_);
  const json body = json::parse(request.body);
  for (const json& resource : body.at("resourceSpans")) {
    const std::string service = resource.at("resource")
                                    .at("attributes")
                                    .at(0)
                                    .at("value")
                                    .at("stringValue");
    for (const json& scope : resource.at("scopeSpans")) {
      for (const json& span : scope.at("spans")) {
        spans_.push_back(SpanOf(span, service));
      }
    }
  }
  changed_.NotifyAll();
  return answer;
}

}  // namespace gshard
