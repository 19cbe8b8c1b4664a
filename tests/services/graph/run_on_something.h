// RunOnSomething: runs programs of unknown origin.

#ifndef TESTS_SERVICES_GRAPH_RUN_ON_SOMETHING_H_
#define TESTS_SERVICES_GRAPH_RUN_ON_SOMETHING_H_

#include <cstdint>

#include "services/base/random.h"
#include "services/graph/executor.h"
#include "services/graph/op.h"
#include "services/graph/program.h"

namespace gshard {

// Runs a program on small random inputs, unless a value could be large.
inline void RunOnSomething(const Program& program, uint64_t seed) {
  TensorMap feeds;
  for (const Node& node : program.nodes) {
    for (const ValueId output : node.outputs) {
      int64_t elements = 1;
      for (const Dim& dim : program.type(output).shape) {
        if (dim.coefficient() > 64 || dim.symbols().size() > 3) return;
        elements *= dim.coefficient() << dim.symbols().size();
        if (elements > 4096) return;
      }
    }
    if (node.op->kernel != nullptr) continue;
    const ValueType& type = program.type(node.outputs[0]);
    Dims dims;
    for (const Dim& dim : type.shape) {
      dims.push_back(dim.coefficient() << dim.symbols().size());
    }
    Tensor tensor = Tensor::Zeros(type.type, dims);
    for (int64_t i = 0; i < tensor.size(); ++i) {
      const int64_t small = RandomBelow(seed, i, 5);
      if (type.type == ElementType::kFloat32) {
        tensor.f32()[i] = static_cast<float>(small - 2);
      } else if (type.type == ElementType::kInt32) {
        tensor.i32()[i] = static_cast<int32_t>(small - 1);
      }
    }
    feeds[StringAttribute(node.attributes, "name")] = tensor;
  }
  // Any status is fine, as long as nothing crashes.
  Executor(program).Run(feeds, feeds).status().IgnoreError();
}

}  // namespace gshard

#endif  // TESTS_SERVICES_GRAPH_RUN_ON_SOMETHING_H_
