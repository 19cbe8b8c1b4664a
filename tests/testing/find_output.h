// FindOutput: the value of a program that an output names.

#ifndef TESTS_TESTING_FIND_OUTPUT_H_
#define TESTS_TESTING_FIND_OUTPUT_H_

#include "absl/strings/string_view.h"
#include "services/graph/program.h"

namespace gshard {

// kNoValue if there is none.
inline ValueId FindOutput(const Program& program, absl::string_view name) {
  for (const auto& [output, value] : program.outputs) {
    if (output == name) return value;
  }
  return kNoValue;
}

}  // namespace gshard

#endif  // TESTS_TESTING_FIND_OUTPUT_H_
