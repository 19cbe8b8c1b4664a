// Span: a completed operation in one trace.
//
// Spans go to a collector that others can read: they have names of methods and
// workers, numbers and codes; never users' text, tokens, paths or error
// messages.

#ifndef SERVICES_TRACE_SPAN_H_
#define SERVICES_TRACE_SPAN_H_

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gshard {

// OTLP's values.
enum class SpanKind { kInternal = 1, kServer = 2, kClient = 3 };

struct Span {
  using Value = std::variant<int64_t, std::string>;

  std::string trace_id = {};   // 32 lower-case hexadecimal digits
  std::string span_id = {};    // 16
  std::string parent_id = {};  // 16, or empty for a root span
  std::string name = {};
  SpanKind kind = SpanKind::kInternal;
  int64_t start_nanos = 0;  // since 1970
  int64_t end_nanos = 0;
  std::vector<std::pair<std::string, Value>> attributes = {};
  std::string error = {};  // a code such as "UNAVAILABLE"; empty: none
};

// The process that the spans belong to.
struct SpanResource {
  std::string service;   // "gshard-router"
  std::string instance;  // the process's name
  std::string version;
};

}  // namespace gshard

#endif  // SERVICES_TRACE_SPAN_H_
