// `gshard COMMAND ...`: finds the command and turns its outcome into an exit
// code.

#ifndef CLIENT_DISPATCH_H_
#define CLIENT_DISPATCH_H_

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "client/command.h"

namespace gshard {

// Runs one of `commands`. `arguments` exclude the program's name.
//
// Returns 0 on success, 2 on a usage error, else 1; errors are printed as
// "gshard: not_found: no such model".
int Dispatch(absl::Span<const Command> commands, Arguments arguments,
             Console& console);

}  // namespace gshard

#endif  // CLIENT_DISPATCH_H_
