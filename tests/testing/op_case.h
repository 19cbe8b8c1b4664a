// One operator under test: a small program around it, and the checks that apply
// to every operator. Rooms that add operators list cases for each.

#ifndef TESTS_TESTING_OP_CASE_H_
#define TESTS_TESTING_OP_CASE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/builder.h"
#include "services/graph/device.h"
#include "services/graph/executor.h"
#include "services/graph/gradient.h"
#include "services/graph/text.h"
#include "tests/reference/kernels.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {

struct OpCase {
  std::string op;    // the operator that it covers
  std::string name;  // tells the cases of an operator apart
  std::vector<Tensor> inputs;
  // Builds the results to check from the values of the inputs.
  std::function<std::vector<ValueId>(Builder&, const std::vector<ValueId>&)>
      build;
  // Inputs whose gradients are compared with finite differences.
  std::vector<int> differentiated = {};
  float step = 1e-2f;
  float tolerance = 3e-3f;
  // Inputs whose outermost dimension is a symbol.
  std::vector<int> symbolic = {};
};

inline void PrintTo(const OpCase& c, std::ostream* out) {
  *out << c.op << " " << c.name;
}

// A case of an operator with one result.
inline OpCase SimpleCase(std::string op, std::string name,
                         std::vector<Tensor> inputs, Attributes attributes,
                         std::vector<int> differentiated) {
  const auto build = [op, attributes](Builder& b,
                                      const std::vector<ValueId>& values) {
    return std::vector<ValueId>{b.AddOne(op, values, attributes)};
  };
  return {.op = std::move(op),
          .name = std::move(name),
          .inputs = std::move(inputs),
          .build = build,
          .differentiated = std::move(differentiated)};
}

// Random numbers in [-1.1, -0.1) and [0.1, 1.1), for operators with a kink.
inline Tensor AwayFromZero(Dims dims, uint64_t seed) {
  Tensor tensor = RandomTensor(std::move(dims), seed);
  for (float& x : tensor.span<float>()) x += x < 0 ? -0.1f : 0.1f;
  return tensor;
}

// Runs a program on `backend`, and on `device` unless that is null.
inline absl::StatusOr<std::vector<Tensor>> RunOn(Program program,
                                                 Backend backend,
                                                 Device* device,
                                                 const TensorMap& feeds) {
  const Executor executor(std::move(program), backend);
  if (device == nullptr) return executor.Run(feeds, feeds);
  ASSIGN_OR_RETURN(const auto run, device->BeginRun());
  ASSIGN_OR_RETURN(
      std::vector<Tensor> results,
      executor.Run(feeds, feeds,
                   {.context = RunContext().With<DeviceRun>(run.get())}));
  for (Tensor& result : results) {
    ASSIGN_OR_RETURN(result, run->ToHost(result));
  }
  RETURN_IF_ERROR(run->Finish());
  return results;
}

// The programs of a case: for its results, and for the gradients of the sum of
// its float results times `weights`.
class OpProgram {
 public:
  explicit OpProgram(const OpCase& c) : case_(c) {
    Builder forward("case");
    const std::vector<ValueId> results = c.build(forward, Inputs(forward));
    for (size_t i = 0; i < results.size(); ++i) {
      forward.Output(absl::StrCat("result", i), results[i]);
    }
    auto program = std::move(forward).Finish();
    CHECK(program.ok());
    program_ = *std::move(program);
  }

  const Program& program() const { return program_; }

  TensorMap Feeds() const {
    TensorMap feeds;
    for (size_t i = 0; i < case_.inputs.size(); ++i) {
      feeds[absl::StrCat("x", i)] = case_.inputs[i];
    }
    return feeds;
  }

  absl::StatusOr<std::vector<Tensor>> Run(Backend backend,
                                          Device* device = nullptr) const {
    return RunOn(program_, backend, device, Feeds());
  }

  // The gradients of the differentiated inputs.
  absl::StatusOr<std::vector<Tensor>> RunGradients(
      const std::vector<Tensor>& weights, Backend backend,
      Device* device = nullptr) const {
    Builder b("gradients");
    const std::vector<ValueId> inputs = Inputs(b);
    const std::vector<ValueId> results = case_.build(b, inputs);
    TensorMap feeds = Feeds();
    ValueId loss = b.Constant(0.0);
    for (size_t i = 0; i < results.size(); ++i) {
      if (weights[i].empty()) continue;
      const std::string name = absl::StrCat("w", i);
      feeds[name] = weights[i];
      const ValueId product =
          b.Multiply(results[i], b.Input(name, b.type(results[i])));
      std::vector<int64_t> dims;
      for (int d = 0; d < weights[i].rank(); ++d) dims.push_back(d);
      loss = b.Add(loss, dims.empty() ? product : b.ReduceSum(product, dims));
    }
    std::vector<ValueId> wanted;
    for (const int i : case_.differentiated) wanted.push_back(inputs[i]);
    auto gradients = AddGradients(b, loss, wanted);
    if (!gradients.ok()) return gradients.status();
    for (size_t i = 0; i < gradients->size(); ++i) {
      b.Output(absl::StrCat("gradient", i), (*gradients)[i]);
    }
    auto program = std::move(b).Finish();
    if (!program.ok()) return program.status();
    return RunOn(*std::move(program), backend, device, feeds);
  }

 private:
  std::vector<ValueId> Inputs(Builder& b) const {
    std::vector<ValueId> values;
    for (size_t i = 0; i < case_.inputs.size(); ++i) {
      const Tensor& tensor = case_.inputs[i];
      Shape shape(tensor.dims().begin(), tensor.dims().end());
      if (std::count(case_.symbolic.begin(), case_.symbolic.end(), i) > 0) {
        shape[0] = Dim::Symbol("N");
      }
      values.push_back(
          b.Input(absl::StrCat("x", i), {tensor.type(), std::move(shape)}));
    }
    return values;
  }

  const OpCase& case_;
  Program program_;
};

// Expects the operator in the program, and that parsing inverts printing.
inline void CheckText(const OpCase& c) {
  const OpProgram program(c);
  EXPECT_FALSE(program.program().NodesOf(c.op).empty());
  const std::string text = ProgramToText(program.program());
  ASSERT_OK_AND_ASSIGN(const Program parsed, ParseProgram(text));
  EXPECT_EQ(ProgramToText(parsed), text);
}

// Expects the kernel of `backend`, on `device`, to agree with the reference.
inline void CheckAgainstReference(const OpCase& c,
                                  Backend backend = Backend::kCpu,
                                  Device* device = nullptr) {
  RegisterReferenceKernels();
  const OpProgram program(c);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> fast,
                       program.Run(backend, device));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> slow,
                       program.Run(Backend::kReference));
  ASSERT_EQ(fast.size(), slow.size());
  for (size_t i = 0; i < fast.size(); ++i) {
    EXPECT_TRUE(fast[i].type() == ElementType::kFloat32
                    ? TensorNear(fast[i], slow[i], 1e-5f)
                    : TensorEqual(fast[i], slow[i]))
        << "result " << i;
  }
}

// The weights of results in the differentiated sum: empty for integers.
inline std::vector<Tensor> WeightsOf(const std::vector<Tensor>& results) {
  std::vector<Tensor> weights;
  for (size_t i = 0; i < results.size(); ++i) {
    weights.push_back(results[i].type() == ElementType::kFloat32
                          ? RandomTensor(results[i].dims(), 77 + i)
                          : Tensor());
  }
  return weights;
}

// Expects gradients to agree with the reference's.
inline void CheckGradientsAgainstReference(const OpCase& c, Backend backend,
                                           Device* device) {
  RegisterReferenceKernels();
  const OpProgram program(c);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> results,
                       program.Run(Backend::kReference));
  const std::vector<Tensor> weights = WeightsOf(results);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> fast,
                       program.RunGradients(weights, backend, device));
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> slow,
                       program.RunGradients(weights, Backend::kReference));
  for (size_t g = 0; g < c.differentiated.size(); ++g) {
    EXPECT_TRUE(TensorNear(fast[g], slow[g], 1e-5f)) << "gradient " << g;
  }
}

// Expects the CPU's and the reference's gradients to agree with finite
// differences of the reference.
inline void CheckGradients(const OpCase& c) {
  CheckGradientsAgainstReference(c, Backend::kCpu, nullptr);
  const OpProgram program(c);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> results,
                       program.Run(Backend::kReference));
  const std::vector<Tensor> weights = WeightsOf(results);
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> slow,
                       program.RunGradients(weights, Backend::kReference));
  for (size_t g = 0; g < c.differentiated.size(); ++g) {
    const int input = c.differentiated[g];
    Tensor numeric(ElementType::kFloat32, c.inputs[input].dims());
    for (int64_t i = 0; i < numeric.size(); ++i) {
      double loss[2];
      float at[2];
      for (const int side : {0, 1}) {
        OpCase moved = c;
        Tensor& x = moved.inputs[input];
        x = x.Clone();
        x.f32()[i] += side == 0 ? -c.step : c.step;
        at[side] = x.f32()[i];
        ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                             OpProgram(moved).Run(Backend::kReference));
        loss[side] = 0.0;
        for (size_t r = 0; r < y.size(); ++r) {
          if (weights[r].empty()) continue;
          for (int64_t j = 0; j < y[r].size(); ++j) {
            loss[side] +=
                static_cast<double>(y[r].f32()[j]) * weights[r].f32()[j];
          }
        }
      }
      numeric.f32()[i] = static_cast<float>(
          (loss[1] - loss[0]) / (static_cast<double>(at[1]) - at[0]));
    }
    EXPECT_TRUE(TensorNear(slow[g], numeric, c.tolerance)) << "input " << input;
  }
}

// Expects a case for each of `ops`, with gradients if it is differentiable.
inline void CheckEveryOpHasACase(const std::vector<std::string>& ops,
                                 const std::vector<OpCase>& cases) {
  std::set<std::string> covered, differentiated;
  for (const OpCase& c : cases) {
    covered.insert(c.op);
    if (!c.differentiated.empty()) differentiated.insert(c.op);
  }
  for (const std::string& op : ops) {
    EXPECT_TRUE(covered.count(op)) << "operator '" << op << "' has no case";
    EXPECT_TRUE(FindOp(op)->gradient == nullptr || differentiated.count(op))
        << "the gradient of '" << op << "' has no case";
  }
}

}  // namespace gshard

#endif  // TESTS_TESTING_OP_CASE_H_
