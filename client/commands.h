// The commands of `gshard`, each in its own file in client/commands/.

#ifndef CLIENT_COMMANDS_H_
#define CLIENT_COMMANDS_H_

#include "absl/status/status.h"
#include "client/command.h"

namespace gshard {

// A system.
absl::Status UpCommand(Arguments arguments, Console& console);
absl::Status WaitCommand(Arguments arguments, Console& console);
absl::Status DescribeCommand(Arguments arguments, Console& console);

// Models.
absl::Status TranslateCommand(Arguments arguments, Console& console);
absl::Status ModelsCommand(Arguments arguments, Console& console);
absl::Status ExplainCommand(Arguments arguments, Console& console);
absl::Status EvaluateCommand(Arguments arguments, Console& console);
absl::Status LoadCommand(Arguments arguments, Console& console);
absl::Status UnloadCommand(Arguments arguments, Console& console);

// Training.
absl::Status DataDebianCommand(Arguments arguments, Console& console);
absl::Status TrainCommand(Arguments arguments, Console& console);
absl::Status WatchCommand(Arguments arguments, Console& console);
absl::Status JobsCommand(Arguments arguments, Console& console);
absl::Status CancelCommand(Arguments arguments, Console& console);

// Checkpoints, without a system.
absl::Status CheckpointInspectCommand(Arguments arguments, Console& console);
absl::Status CheckpointVerifyCommand(Arguments arguments, Console& console);
absl::Status CheckpointDiffCommand(Arguments arguments, Console& console);
absl::Status CheckpointExportCommand(Arguments arguments, Console& console);

// Without a system.
absl::Status PlanCommand(Arguments arguments, Console& console);
absl::Status PartitionCommand(Arguments arguments, Console& console);

}  // namespace gshard

#endif  // CLIENT_COMMANDS_H_
