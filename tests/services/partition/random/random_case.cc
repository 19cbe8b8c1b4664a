#include "tests/services/partition/random/random_case.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "services/collectives/collectives.h"
#include "services/graph/text.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

// Allows for sums of up to a few hundred products of numbers below 1 in another
// order; a chain may add up several such sums.
constexpr float kTolerance = 2e-5f;

// Whether the program sums over devices, or in a kernel that orders the sums of
// parts differently from those of the whole. Otherwise results must be equal
// bit for bit.
bool AddsUp(const Program& program) {
  static const std::vector<std::string>* const sums =
      new std::vector<std::string>{
          "attention",      "bias_gradient",     "combine",
          "convolution",    "cross_entropy",     "einsum",
          "gating",         "dispatch_gradient", "embedding_gradient",
          "norm",           "ragged_dot",        "reduce_max_gradient",
          "reduce_scatter", "reduce_sum",        "softmax"};
  for (const Node& node : program.nodes) {
    const std::string& op = node.op->name;
    if (std::any_of(sums->begin(), sums->end(), [&](const std::string& sum) {
          return absl::StrContains(op, sum);
        })) {
      return true;
    }
    if (op == "all_reduce" && IntAttribute(node.attributes, "reduction") ==
                                  static_cast<int64_t>(Reduction::kSum)) {
      return true;
    }
  }
  return false;
}

std::string Compare(const Tensor& got, const Tensor& wanted, bool exact) {
  ::testing::AssertionResult same = TensorEqual(got, wanted);
  if (!same && !exact && wanted.type() == ElementType::kFloat32) {
    same = TensorNear(got, wanted, kTolerance);
  }
  return same ? "" : same.message();
}

}  // namespace

std::string RandomCase::ToString() const {
  std::string text =
      absl::StrCat(family, " seed ", seed, " on ",
                   absl::StrJoin(mesh.AxesOfRole(0), " x ",
                                 [&](std::string* out, int a) {
                                   absl::StrAppend(out, mesh.axis(a).name, "=",
                                                   mesh.axis(a).size);
                                 }),
                   " devices, windowed_einsum_bytes ",
                   options.windowed_einsum_bytes, "\n", ProgramToText(program));
  return text;
}

std::string Check(const RandomCase& c) {
  const auto report = [&](absl::string_view what,
                          const Partitioned* partitioned = nullptr) {
    std::string text = absl::StrCat(what, "\n", c.ToString());
    if (partitioned != nullptr) {
      absl::StrAppend(&text,
                      "partitioned: ", ProgramToText(partitioned->program));
    }
    return text;
  };
  const auto whole = Executor(c.alone).Run(c.inputs, c.parameters);
  if (!whole.ok()) {
    return report(absl::StrCat("unpartitioned: ", whole.status().ToString()));
  }
  const auto partitioned = Partition(c.program, c.mesh, c.options);
  if (!partitioned.ok()) return report(partitioned.status().ToString());
  const auto joined = RunPartitioned(*partitioned, c.mesh, c.inputs,
                                     c.parameters, *whole, c.row_sizes);
  if (!joined.ok()) return report(joined.status().ToString(), &*partitioned);
  const bool exact =
      !(AddsUp(partitioned->program) || AddsUp(Pruned(c.program)));
  for (size_t i = 0; i < whole->size(); ++i) {
    const std::string difference = Compare((*joined)[i], (*whole)[i], exact);
    if (difference.empty()) continue;
    return report(absl::StrCat(c.program.outputs[i].first, " differs: ",
                               difference, exact ? " (exact)" : ""),
                  &*partitioned);
  }
  return "";
}

std::vector<Family> AllFamilies() {
  std::vector<Family> all;
  for (const auto& families :
       {ElementwiseFamilies(), ContractionFamilies(), ShapeFamilies(),
        WindowFamilies(), LookupFamilies(), NormFamilies(), AttentionFamilies(),
        RaggedFamilies(), GatingFamilies(), ChainFamilies()}) {
    all.insert(all.end(), families.begin(), families.end());
  }
  return all;
}

}  // namespace gshard
