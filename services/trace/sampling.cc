#include "services/trace/sampling.h"

#include <cstdint>

#include "absl/strings/numbers.h"

namespace gshard {

bool IsSampled(absl::string_view trace_id, double ratio) {
  // W3C Trace Context requires these 56 bits to be random.
  constexpr size_t kRandomDigits = 14;
  uint64_t random = 0;
  return trace_id.size() >= kRandomDigits &&
         absl::SimpleHexAtoi(trace_id.substr(trace_id.size() - kRandomDigits),
                             &random) &&
         random < static_cast<uint64_t>(ratio *
                                        static_cast<double>(uint64_t{1} << 56));
}

}  // namespace gshard
