// Runs a program whole and on the devices of a mesh, and compares the results.

#ifndef TESTS_SERVICES_PARTITION_LOWERING_PARTITIONED_CASE_H_
#define TESTS_SERVICES_PARTITION_LOWERING_PARTITIONED_CASE_H_

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "services/graph/gradient.h"
#include "services/graph/text.h"
#include "services/partition/ops/collective_ops.h"
#include "services/sharding/annotation.h"
#include "tests/testing/partitioned_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {

// A mesh with one axis, "d".
inline DeviceMesh Line(int64_t devices) {
  return *DeviceMesh::Create({{"d", devices, ""}});
}

// A 2 x 2 mesh with axes "x" and "y".
inline DeviceMesh Square() {
  return *DeviceMesh::Create({{"x", 2, ""}, {"y", 2, ""}});
}

inline Tensor IntTensor(Dims dims, const std::vector<int32_t>& values) {
  Tensor tensor(ElementType::kInt32, std::move(dims));
  std::copy(values.begin(), values.end(), tensor.i32());
  return tensor;
}

inline std::vector<std::string> Operators(const Program& program,
                                          bool collectives_only) {
  std::vector<std::string> names;
  for (const Node& node : program.nodes) {
    if (!collectives_only || IsCollective(node.op->name)) {
      names.push_back(node.op->name);
    }
  }
  return names;
}

// Outputs the gradients of the sum of y times an input "weights".
inline void AddWeightedGradients(Builder& b, ValueId y,
                                 const std::vector<ValueId>& values) {
  const ValueId weights = b.Input("weights", b.type(y));
  std::vector<int64_t> dims;
  for (size_t d = 0; d < b.type(y).shape.size(); ++d) dims.push_back(d);
  const ValueId loss = b.ReduceSum(b.Multiply(y, weights), dims);
  const auto gradients = AddGradients(b, loss, values);
  ASSERT_OK(gradients.status());
  for (size_t i = 0; i < values.size(); ++i) {
    b.Output(absl::StrCat("gradient", i), (*gradients)[i]);
  }
}

// Runs a program whole and partitioned, and compares. `given` holds inputs;
// other inputs and all parameters are random. Tolerance 0 demands equal bits.
// Returns the collectives.
inline std::vector<std::string> CheckCase(Builder b, const DeviceMesh& mesh,
                                          TensorMap given, float tolerance,
                                          const PartitionOptions& options = {},
                                          Program* program_out = nullptr) {
  auto finished = std::move(b).Finish();
  EXPECT_OK(finished.status());
  if (!finished.ok()) return {"no program"};
  const Program& program = *finished;
  TensorMap parameters;
  uint64_t seed = 1;
  for (const Node& node : program.nodes) {
    const bool input = node.op->name == "input";
    if (!input && node.op->name != "parameter") continue;
    const std::string& name = StringAttribute(node.attributes, "name");
    Dims dims;
    for (const Dim& dim : program.type(node.outputs[0]).shape) {
      dims.push_back(dim.is_static() ? dim.size() : 0);
    }
    TensorMap& to = input ? given : parameters;
    if (!to.contains(name)) to[name] = RandomTensor(dims, ++seed);
  }
  const auto whole = Executor(program).Run(given, parameters);
  EXPECT_OK(whole.status());
  const auto partitioned = Partition(program, mesh, options);
  EXPECT_OK(partitioned.status());
  if (!whole.ok() || !partitioned.ok()) return {"failed"};
  const auto joined =
      RunPartitioned(*partitioned, mesh, given, parameters, *whole);
  EXPECT_OK(joined.status());
  for (size_t i = 0; joined.ok() && i < joined->size(); ++i) {
    EXPECT_TRUE(tolerance == 0
                    ? TensorEqual((*joined)[i], (*whole)[i])
                    : TensorNear((*joined)[i], (*whole)[i], tolerance))
        << "output " << program.outputs[i].first << " on " << mesh.NumDevices()
        << " devices\n"
        << ProgramToText(partitioned->program);
  }
  if (program_out != nullptr) *program_out = partitioned->program;
  return Operators(partitioned->program, /*collectives_only=*/true);
}

}  // namespace gshard

#endif  // TESTS_SERVICES_PARTITION_LOWERING_PARTITIONED_CASE_H_
