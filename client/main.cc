// `gshard`: trains and serves translation models, and runs whole systems.

#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "client/command.h"
#include "client/commands.h"
#include "client/dispatch.h"
#include "services/base/standard_streams.h"

namespace {

// To process 1, as which a container runs the program, the kernel sends no
// signal that has no handler, Ctrl-C included.
void EndBySignalsInAContainer() {
  if (getpid() != 1) return;
  for (const int number : {SIGHUP, SIGINT, SIGTERM}) {
    signal(number, [](int signalled) { _exit(128 + signalled); });
  }
}

}  // namespace

int main(int argc, char** argv) {
  using namespace gshard;
  TakeClosedStreams();
  EndBySignalsInAContainer();
  // In the order of a first session.
  const std::vector<Command> commands = {
      {"up", "runs a coordinator, routers and expert workers", UpCommand},
      {"wait", "waits until members have joined or a model is ready",
       WaitCommand},
      {"data debian", "makes parallel text from what apt serves",
       DataDebianCommand},
      {"train", "submits a training job", TrainCommand},
      {"watch", "follows a training job", WatchCommand},
      {"jobs", "lists training jobs and what became of them", JobsCommand},
      {"cancel", "ends a training job", CancelCommand},
      {"translate", "translates arguments, standard input or a file",
       TranslateCommand},
      {"models", "lists the models that can be asked for", ModelsCommand},
      {"explain", "shows which experts the tokens of a sentence visit",
       ExplainCommand},
      {"evaluate", "translates held-out text and scores it with sacreBLEU",
       EvaluateCommand},
      {"describe", "says who is a member, who holds what, and what runs",
       DescribeCommand},
      {"load", "serves a checkpoint", LoadCommand},
      {"unload", "stops serving a model", UnloadCommand},
      {"checkpoint inspect", "says what a checkpoint holds",
       CheckpointInspectCommand},
      {"checkpoint verify", "reads all of a checkpoint and checks every byte",
       CheckpointVerifyCommand},
      {"checkpoint diff", "compares two checkpoints, tensor by tensor",
       CheckpointDiffCommand},
      {"checkpoint export", "writes a checkpoint as one safetensors file",
       CheckpointExportCommand},
      {"plan", "says what a model costs, without allocating it", PlanCommand},
      {"partition", "says what devices compute and send for a model",
       PartitionCommand},
  };
  Console console{STDIN_FILENO, &std::cout, &std::cerr,
                  [](const char* name) -> const char* { return getenv(name); }};
  console.out_is_terminal = isatty(STDOUT_FILENO) != 0;
  return Dispatch(commands, std::vector<std::string>(argv + 1, argv + argc),
                  console);
}
