// The tiny model's training program, whole and split among workers.

#ifndef TESTS_SERVICES_SEGMENTS_SPLIT_MODEL_H_
#define TESTS_SERVICES_SEGMENTS_SPLIT_MODEL_H_

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/segments/role_split.h"
#include "tests/services/exchange/local_exchange.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_model.h"

namespace gshard {

// Rows `experts` of a parameter [E, ...].
inline Tensor GatherExperts(const Tensor& whole,
                            const std::vector<int32_t>& experts) {
  Dims dims = whole.dims();
  dims[0] = experts.size();
  Tensor part(whole.type(), dims);
  for (size_t i = 0; i < experts.size(); ++i) {
    const Tensor row = whole.Rows(experts[i], experts[i] + 1);
    std::memcpy(part.Rows(i, i + 1).raw(), row.raw(), row.bytes());
  }
  return part;
}

// The inverse, for a gradient of `parameter`: copies rows of `part` to the rows
// of "gradient/PARAMETER" in `gradients`.
inline void ScatterGradient(const std::string& parameter, const Tensor& part,
                            const std::vector<int32_t>& experts,
                            const TensorMap& parameters, TensorMap* gradients) {
  Tensor& whole = (*gradients)["gradient/" + parameter];
  if (whole.empty()) {
    whole =
        Tensor::Zeros(ElementType::kFloat32, parameters.at(parameter).dims());
  }
  for (size_t i = 0; i < experts.size(); ++i) {
    const Tensor row = part.Rows(i, i + 1);
    std::memcpy(whole.Rows(experts[i], experts[i] + 1).raw(), row.raw(),
                row.bytes());
  }
}

// Each worker's share of the parameters that the segments name.
inline std::vector<TensorMap> ShareParameters(const RolePrograms& roles,
                                              const ExpertsOfWorkers& workers,
                                              const TensorMap& parameters) {
  std::vector<TensorMap> shares(workers.size());
  for (const Segment& segment : roles.segments) {
    for (const Node* node : segment.program.NodesOf("parameter")) {
      const std::string& name = StringAttribute(node->attributes, "name");
      for (size_t w = 0; w < workers.size(); ++w) {
        shares[w][name] = GatherExperts(parameters.at(name), workers[w]);
      }
    }
  }
  return shares;
}

// Runs the split program on `workers`. Assembles experts' gradients under their
// names in the whole program.
inline absl::StatusOr<TensorMap> RunSplit(const RolePrograms& roles,
                                          const ExpertsOfWorkers& workers,
                                          const TensorMap& parameters,
                                          const TensorMap& inputs) {
  TensorMap outputs;
  LocalSegments segments(
      roles.segments, workers, ShareParameters(roles, workers, parameters),
      [&](int w, const std::string& parameter, Tensor gradient) {
        ScatterGradient(parameter, gradient, workers[w], parameters, &outputs);
      });
  auto results =
      Executor(roles.router)
          .Run(inputs, parameters,
               {.context = RunContext().With<SegmentRunner>(&segments)});
  if (!results.ok()) return results.status();
  for (auto& [name, value] : NamedOutputs(roles.router, *results)) {
    outputs[name] = value;
  }
  return outputs;
}

// Runs the unsplit program.
inline absl::StatusOr<TensorMap> RunWhole(const Program& program,
                                          const TensorMap& parameters,
                                          const TensorMap& inputs) {
  auto results = Executor(program).Run(inputs, parameters);
  if (!results.ok()) return results.status();
  return NamedOutputs(program, *results);
}

// Expects equal outputs, bit for bit.
inline void ExpectSameOutputs(const TensorMap& whole, const TensorMap& split) {
  EXPECT_EQ(whole.size(), split.size());
  for (const auto& [name, value] : whole) {
    ASSERT_TRUE(split.contains(name)) << name;
    EXPECT_TRUE(TensorEqual(split.at(name), value)) << name;
  }
}

}  // namespace gshard

#endif  // TESTS_SERVICES_SEGMENTS_SPLIT_MODEL_H_
