// Runs a command as a user would, with text input and captured outputs.

#ifndef TESTS_CLIENT_COMMAND_RUN_H_
#define TESTS_CLIENT_COMMAND_RUN_H_

#include <sstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/command.h"
#include "tests/client/text_input.h"

namespace gshard {

struct CommandRun {
  CommandRun(absl::Status (*command)(Arguments, Console&),
             const std::vector<std::string>& arguments,
             const std::string& input = "") {
    const TextInput in(input);
    std::ostringstream out_stream, error_stream;
    Console console{in.file(), &out_stream, &error_stream,
                    [](const char*) -> const char* { return nullptr; }};
    status = command(arguments, console);
    out = out_stream.str();
    error = error_stream.str();
  }

  absl::Status status;
  std::string out;
  std::string error;
};

}  // namespace gshard

#endif  // TESTS_CLIENT_COMMAND_RUN_H_
