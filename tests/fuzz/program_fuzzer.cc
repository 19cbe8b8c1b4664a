// Programs in text form, as workers receive them: parsed, printed, parsed
// again, and run if they need little.

#include "services/graph/text.h"
#include "services/moe/graph_ops.h"
#include "services/segments/call_segment.h"
#include "tests/fuzz/fuzzer.h"
#include "tests/services/graph/run_on_something.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  [[maybe_unused]] static const bool registered = [] {
    gshard::RegisterMoeOps();
    gshard::RegisterShardingOps();
    return true;
  }();
  const auto program = gshard::ParseProgram(gshard::Bytes(data, size));
  if (!gshard::Accepted(program.status())) return 0;
  const std::string text = gshard::ProgramToText(*program);
  const auto again = gshard::ParseProgram(text);
  CHECK(again.ok());
  CHECK(gshard::ProgramToText(*again) == text);
  gshard::RunOnSomething(*program, size);
  return 0;
}
