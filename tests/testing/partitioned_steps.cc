#include "tests/testing/partitioned_steps.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "services/base/status_macros.h"
#include "services/graph/text.h"
#include "services/partition/partitioner.h"
#include "tests/services/collectives/local_world.h"
#include "tests/testing/gloo_members.h"
#include "tests/testing/mesh_devices.h"
#include "tests/testing/tensor_file.h"

namespace gshard {
namespace {

constexpr char kNext[] = "next/";

// Runs all steps on one device; `parameters` and `inputs` are its own.
absl::StatusOr<StepOutputs> RunSteps(const Program& program, int steps,
                                     const TensorMap& inputs,
                                     TensorMap parameters,
                                     const RunOptions& options) {
  const Executor executor(program);
  StepOutputs outputs;
  for (int step = 0; step < steps; ++step) {
    ASSIGN_OR_RETURN(std::vector<Tensor> of_step,
                     executor.Run(inputs, parameters, options));
    for (size_t i = 0; i < of_step.size(); ++i) {
      absl::string_view name = program.outputs[i].first;
      if (absl::ConsumePrefix(&name, kNext)) parameters[name] = of_step[i];
    }
    outputs.push_back(std::move(of_step));
  }
  return outputs;
}

absl::Status CheckNextLiesAsItsParameter(const Partitioned& partitioned) {
  for (const auto& [name, placed] : partitioned.outputs) {
    absl::string_view parameter = name;
    if (!absl::ConsumePrefix(&parameter, kNext)) continue;
    const auto found = partitioned.parameters.find(std::string(parameter));
    if (found == partitioned.parameters.end() ||
        found->second.sharding != placed.sharding ||
        found->second.device_order != placed.device_order) {
      return absl::FailedPreconditionError(
          absl::StrCat("output '", name, "' does not lie as its parameter"));
    }
  }
  return absl::OkStatus();
}

// Joins the outputs of devices; `outputs` is by device.
absl::StatusOr<StepOutputs> Join(const StepsRun& run,
                                 const std::vector<StepOutputs>& outputs,
                                 const StepOutputs& whole) {
  ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create(run.axes));
  ASSIGN_OR_RETURN(const Partitioned partitioned, Partition(run.program, mesh));
  StepOutputs joined;
  for (int step = 0; step < run.steps; ++step) {
    std::vector<std::vector<Tensor>> of_step;
    for (const StepOutputs& of_device : outputs) {
      of_step.push_back(of_device[step]);
    }
    ASSIGN_OR_RETURN(std::vector<Tensor> tensors,
                     JoinOutputs(partitioned, mesh, of_step, run.inputs,
                                 whole[step], run.row_sizes));
    joined.push_back(std::move(tensors));
  }
  return joined;
}

std::string RunPath(const std::string& folder) { return folder + "/run"; }

std::string OutputsPath(const std::string& folder, int rank) {
  return absl::StrCat(folder, "/outputs_", rank);
}

std::string OutputName(int step, size_t output) {
  return absl::StrCat(step, "/", output);
}

}  // namespace

absl::StatusOr<StepOutputs> RunWhole(const StepsRun& run) {
  return RunSteps(run.program, run.steps, run.inputs, run.parameters, {});
}

absl::StatusOr<StepOutputs> RunStepsOfDevice(
    const StepsRun& run, World& world, const std::function<bool()>& cancelled) {
  ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create(run.axes));
  ASSIGN_OR_RETURN(const Partitioned partitioned, Partition(run.program, mesh));
  RETURN_IF_ERROR(CheckNextLiesAsItsParameter(partitioned));
  ASSIGN_OR_RETURN(DeviceTensors local,
                   TilesOfDevice(partitioned, mesh, world.rank(), run.inputs,
                                 run.parameters, run.row_sizes));
  MeshDevices groups(mesh, world);
  RunOptions options;
  options.context = RunContext().With<DeviceGroups>(&groups);
  options.cancelled = cancelled;
  return RunSteps(partitioned.program, run.steps, local.inputs,
                  std::move(local.parameters), options);
}

absl::StatusOr<StepOutputs> RunOnThreads(const StepsRun& run,
                                         const StepOutputs& whole) {
  ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create(run.axes));
  const int devices = static_cast<int>(mesh.NumDevices());
  std::vector<StepOutputs> outputs(devices);
  RETURN_IF_ERROR(RunOnDevices(devices, [&](World& world) -> absl::Status {
    ASSIGN_OR_RETURN(outputs[world.rank()], RunStepsOfDevice(run, world));
    return absl::OkStatus();
  }));
  return Join(run, outputs, whole);
}

absl::StatusOr<StepOutputs> RunOnProcesses(const StepsRun& run,
                                           const StepOutputs& whole) {
  ASSIGN_OR_RETURN(const DeviceMesh mesh, DeviceMesh::Create(run.axes));
  const int devices = static_cast<int>(mesh.NumDevices());
  const RendezvousFolder folder;
  RETURN_IF_ERROR(WriteRun(run, folder.path()));
  for (const absl::Status& status :
       RunProcesses(std::vector<std::string>(devices, kPartitionedSteps),
                    folder.path())) {
    RETURN_IF_ERROR(status);
  }
  std::vector<StepOutputs> outputs(devices);
  for (int rank = 0; rank < devices; ++rank) {
    ASSIGN_OR_RETURN(TensorFile file,
                     ReadTensorFile(OutputsPath(folder.path(), rank)));
    outputs[rank].resize(run.steps);
    for (int step = 0; step < run.steps; ++step) {
      for (size_t i = 0; i < run.program.outputs.size(); ++i) {
        outputs[rank][step].push_back(file.tensors.at(OutputName(step, i)));
      }
    }
  }
  return Join(run, outputs, whole);
}

absl::Status RunPartitionedSteps(World& world, const std::string& folder) {
  ASSIGN_OR_RETURN(const StepsRun run, ReadRun(folder));
  ASSIGN_OR_RETURN(const StepOutputs outputs, RunStepsOfDevice(run, world));
  TensorFile file;
  for (size_t step = 0; step < outputs.size(); ++step) {
    for (size_t i = 0; i < outputs[step].size(); ++i) {
      file.tensors[OutputName(step, i)] = outputs[step][i];
    }
  }
  return WriteTensorFile(OutputsPath(folder, world.rank()), file);
}

absl::Status WriteRun(const StepsRun& run, const std::string& folder) {
  TensorFile file;
  for (const auto& [name, tensor] : run.inputs) {
    file.tensors["input/" + name] = tensor;
  }
  for (const auto& [name, tensor] : run.parameters) {
    file.tensors["parameter/" + name] = tensor;
  }
  std::vector<std::string> axes;
  for (const MeshAxis& axis : run.axes) {
    axes.push_back(absl::StrCat(axis.name, " ", axis.size, " ", axis.role));
  }
  file.texts = {
      {"program", ProgramToText(run.program)},
      {"axes", absl::StrJoin(axes, ",")},
      {"steps", absl::StrCat(run.steps)},
      {"rows", absl::StrJoin(run.row_sizes, ",", absl::PairFormatter(" "))}};
  return WriteTensorFile(RunPath(folder), file);
}

absl::StatusOr<StepsRun> ReadRun(const std::string& folder) {
  using Words = std::vector<std::string>;
  ASSIGN_OR_RETURN(const TensorFile file, ReadTensorFile(RunPath(folder)));
  StepsRun run;
  for (const auto& [name, tensor] : file.tensors) {
    absl::string_view rest = name;
    const bool is_input = absl::ConsumePrefix(&rest, "input/");
    absl::ConsumePrefix(&rest, "parameter/");
    (is_input ? run.inputs : run.parameters)[rest] = tensor;
  }
  ASSIGN_OR_RETURN(run.program, ParseProgram(file.texts.at("program")));
  for (const absl::string_view axis :
       absl::StrSplit(file.texts.at("axes"), ',')) {
    const Words words = absl::StrSplit(axis, ' ');
    run.axes.push_back({words[0], std::atoi(words[1].c_str()), words[2]});
  }
  run.steps = std::atoi(file.texts.at("steps").c_str());
  for (const absl::string_view rows :
       absl::StrSplit(file.texts.at("rows"), ',', absl::SkipEmpty())) {
    const Words words = absl::StrSplit(rows, ' ');
    run.row_sizes[words[0]] = words[1];
  }
  return run;
}

}  // namespace gshard
