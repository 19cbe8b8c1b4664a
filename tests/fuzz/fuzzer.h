// What a fuzzer here is: one function, which libFuzzer (tests/fuzz/run.sh)
// calls with bytes that it makes up, and the tests with those of the corpus
// (replay_main.cc). It returns for whatever bytes; what must hold is CHECKed.
// What is refused must say why.

#ifndef TESTS_FUZZ_FUZZER_H_
#define TESTS_FUZZ_FUZZER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "services/base/check.h"

// Returns 0.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace gshard {

inline absl::string_view Bytes(const uint8_t* data, size_t size) {
  return size == 0
             ? absl::string_view()
             : absl::string_view(reinterpret_cast<const char*>(data), size);
}

// Whether `status` is OK; an error says what it is, and is no bug of ours.
inline bool Accepted(const absl::Status& status) {
  if (status.ok()) return true;
  CHECK(!status.message().empty());
  CHECK(status.code() != absl::StatusCode::kInternal);
  CHECK(status.code() != absl::StatusCode::kUnknown);
  return false;
}

}  // namespace gshard

#endif  // TESTS_FUZZ_FUZZER_H_
