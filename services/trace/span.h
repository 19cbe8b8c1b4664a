// Span: a piece of work that is over, as one trace has it.
//
// What is said of it goes to a collector that others read: names of methods and
// workers, numbers, codes; never text of users, tokens, paths or messages of
// errors.

#ifndef SERVICES_TRACE_SPAN_H_
#define SERVICES_TRACE_SPAN_H_

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gshard {

// OTLP's numbers.
enum class SpanKind { kInternal = 1, kServer = 2, kClient = 3 };

struct Span {
  using Value = std::variant<int64_t, std::string>;

  std::string trace_id = {};   // 32 lower-case hexadecimal digits
  std::string span_id = {};    // 16
  std::string parent_id = {};  // 16, or empty: the first of its trace
  std::string name = {};
  SpanKind kind = SpanKind::kInternal;
  int64_t start_nanos = 0;  // since 1970
  int64_t end_nanos = 0;
  std::vector<std::pair<std::string, Value>> attributes = {};
  std::string error = {};  // a code, "UNAVAILABLE"; empty: none
};

// Whose spans they are.
struct SpanResource {
  std::string service;   // "gshard-router"
  std::string instance;  // the process's name
  std::string version;
};

}  // namespace gshard

#endif  // SERVICES_TRACE_SPAN_H_
