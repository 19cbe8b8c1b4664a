// Runs partitioned programs on the threads of this process.

#ifndef TESTS_TESTING_PARTITIONED_RUN_H_
#define TESTS_TESTING_PARTITIONED_RUN_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/executor.h"
#include "services/partition/partitioner.h"
#include "tests/services/collectives/local_world.h"
#include "tests/testing/mesh_devices.h"
#include "tests/testing/tiles.h"

namespace gshard {

// For ragged rows that are inputs or outputs, the input that has their group
// sizes, by the symbol of their dimension: {"R", "sizes"}.
using RowSizes = std::map<std::string, std::string>;

namespace partitioned_run {

inline Tensor SizesOf(const Placed& placed, const TensorMap& inputs,
                      const RowSizes& row_sizes) {
  if (placed.type.shape.empty()) return Tensor();
  const auto found = row_sizes.find(placed.type.shape[0].ToString());
  return found == row_sizes.end() ? Tensor() : inputs.at(found->second);
}

}  // namespace partitioned_run

// A device's tiles of the whole inputs and parameters.
struct DeviceTensors {
  TensorMap inputs;
  TensorMap parameters;
};
inline absl::StatusOr<DeviceTensors> TilesOfDevice(
    const Partitioned& partitioned, const DeviceMesh& mesh, int64_t device,
    const TensorMap& inputs, const TensorMap& parameters,
    const RowSizes& row_sizes = {}) {
  DeviceTensors local;
  for (const auto& [name, placed] : partitioned.inputs) {
    ASSIGN_OR_RETURN(
        local.inputs[name],
        TileOf(inputs.at(name), placed, mesh, device,
               partitioned_run::SizesOf(placed, inputs, row_sizes)));
  }
  for (const auto& [name, placed] : partitioned.parameters) {
    ASSIGN_OR_RETURN(local.parameters[name],
                     TileOf(parameters.at(name), placed, mesh, device));
  }
  return local;
}

// Joins the devices' tiles in `outputs`, by device and then by output, into the
// outputs of `partitioned`. `whole` has the outputs' sizes.
inline absl::StatusOr<std::vector<Tensor>> JoinOutputs(
    const Partitioned& partitioned, const DeviceMesh& mesh,
    absl::Span<const std::vector<Tensor>> outputs, const TensorMap& inputs,
    absl::Span<const Tensor> whole, const RowSizes& row_sizes = {}) {
  std::vector<Tensor> joined;
  for (size_t i = 0; i < partitioned.outputs.size(); ++i) {
    const auto& [name, placed] = partitioned.outputs[i];
    std::vector<Tensor> tiles;
    for (const std::vector<Tensor>& of_device : outputs) {
      tiles.push_back(of_device[i]);
    }
    absl::StatusOr<Tensor> tensor =
        JoinTiles(tiles, whole[i].dims(), placed, mesh,
                  partitioned_run::SizesOf(placed, inputs, row_sizes));
    if (!tensor.ok()) {
      return Annotate(tensor.status(), absl::StrCat("output '", name, "'"));
    }
    joined.push_back(*std::move(tensor));
  }
  return joined;
}

// Runs `partitioned` on whole inputs and parameters; returns whole outputs.
// `whole` has the outputs' sizes.
inline absl::StatusOr<std::vector<Tensor>> RunPartitioned(
    const Partitioned& partitioned, const DeviceMesh& mesh,
    const TensorMap& inputs, const TensorMap& parameters,
    absl::Span<const Tensor> whole, const RowSizes& row_sizes = {}) {
  const int devices = static_cast<int>(mesh.NumDevices());
  const Executor executor(partitioned.program);
  std::vector<std::vector<Tensor>> outputs(devices);
  RETURN_IF_ERROR(RunOnDevices(devices, [&](World& world) -> absl::Status {
    ASSIGN_OR_RETURN(DeviceTensors local,
                     TilesOfDevice(partitioned, mesh, world.rank(), inputs,
                                   parameters, row_sizes));
    MeshDevices groups(mesh, world);
    ASSIGN_OR_RETURN(
        outputs[world.rank()],
        executor.Run(std::move(local.inputs), local.parameters,
                     {.context = RunContext().With<DeviceGroups>(&groups)}));
    return absl::OkStatus();
  }));
  return JoinOutputs(partitioned, mesh, outputs, inputs, whole, row_sizes);
}

}  // namespace gshard

#endif  // TESTS_TESTING_PARTITIONED_RUN_H_
