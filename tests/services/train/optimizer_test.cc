#include "services/train/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "services/train/job_options.h"
#include "tests/reference/optimizer.h"
#include "tests/services/train/initial_state.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;

std::vector<absl::Span<float>> Spans(std::vector<Tensor>& tensors) {
  std::vector<absl::Span<float>> spans;
  for (Tensor& tensor : tensors) spans.push_back(tensor.span<float>());
  return spans;
}

// One tensor with its state, stepped by hand-written gradients.
class Stepper {
 public:
  Stepper(const OptimizerConfig& config, Tensor weight)
      : optimizer_(MakeOptimizer(config)),
        weight_(std::move(weight)),
        state_(InitialState(*optimizer_, weight_.dims())) {}

  void Step(const Tensor& gradient, double learning_rate,
            double gradient_scale = 1.0) {
    optimizer_->Update(weight_.dims(), weight_.span<float>(),
                       gradient.span<float>(), gradient_scale, Spans(state_),
                       ++step_, learning_rate);
  }

  const Tensor& weight() const { return weight_; }
  const std::vector<Tensor>& state() const { return state_; }

 private:
  std::shared_ptr<const Optimizer> optimizer_;
  Tensor weight_;
  std::vector<Tensor> state_;
  int64_t step_ = 0;
};

// By hand: the first step has b = 0, so V = g^2 and U = sign(g), whose RMS is
// 1: no clipping. RMS(W) = sqrt((9 + 16) / 2) = 3.5355339.
TEST(AdafactorTest, FirstStepOfAVectorByHand) {
  Stepper stepper(AdafactorConfig{}, Tensor::Floats({2}, {3.0f, -4.0f}));
  stepper.Step(Tensor::Floats({2}, {0.5f, -2.0f}), 0.1);
  EXPECT_THAT(stepper.weight().span<float>(),
              ElementsAre(FloatNear(3.0f - 0.35355339f, 1e-6f),
                          FloatNear(-4.0f + 0.35355339f, 1e-6f)));
  EXPECT_THAT(stepper.state()[0].span<float>(),
              ElementsAre(FloatNear(0.25f, 1e-7f), FloatNear(4.0f, 1e-6f)));
}

// By hand, one element, no parameter scale. g = 1, then 3, then 0:
//   t = 2: b = 1 - 2^-0.8 = 0.4256508; V = b + (1 - b) 9 = 5.5947936
//          U = 3 / sqrt(V) = 1.2683211, clipped to 1
//   t = 3: b = 1 - 3^-0.8 = 0.5847563; V = b 5.5947936 = 3.2715909; U = 0
TEST(AdafactorTest, ThreeStepsOfOneElementByHand) {
  Stepper stepper(AdafactorConfig{.multiply_by_parameter_scale = false},
                  Tensor::Scalar(10.0f));
  stepper.Step(Tensor::Scalar(1.0f), 0.5);
  EXPECT_NEAR(stepper.weight().f32()[0], 9.5f, 1e-6);
  stepper.Step(Tensor::Scalar(3.0f), 0.5);
  EXPECT_NEAR(stepper.state()[0].f32()[0], 5.5947936f, 1e-5);
  EXPECT_NEAR(stepper.weight().f32()[0], 9.0f, 1e-6);
  stepper.Step(Tensor::Scalar(0.0f), 0.5);
  EXPECT_NEAR(stepper.state()[0].f32()[0], 3.2715909f, 1e-5);
  EXPECT_EQ(stepper.weight().f32()[0], 9.0f);

  Stepper unclipped(AdafactorConfig{.clipping_threshold = 0,
                                    .multiply_by_parameter_scale = false},
                    Tensor::Scalar(10.0f));
  unclipped.Step(Tensor::Scalar(1.0f), 0.5);
  unclipped.Step(Tensor::Scalar(3.0f), 0.5);
  EXPECT_NEAR(unclipped.weight().f32()[0], 9.5f - 0.5f * 1.2683211f, 1e-5);
}

// By hand: g = [[1, 2], [3, 4]]. R = (2.5, 12.5), C = (5, 10), mean(R) = 7.5.
//   U = g / sqrt(R C^T / 7.5)
//     = [[0.7745967, 1.0954451], [1.0392305, 0.9797959]], RMS 0.9797959
// so nothing is clipped; RMS(W) = 0 takes epsilon2.
TEST(AdafactorTest, FirstStepOfAMatrixByHand) {
  Stepper stepper(AdafactorConfig{.epsilon2 = 0.5, .min_dim_size_to_factor = 2},
                  Tensor::Zeros(ElementType::kFloat32, {2, 2}));
  stepper.Step(Tensor::Floats({2, 2}, {1, 2, 3, 4}), 2.0);
  EXPECT_THAT(stepper.state()[0].span<float>(),
              ElementsAre(FloatNear(2.5f, 1e-6f), FloatNear(12.5f, 1e-5f)));
  EXPECT_THAT(stepper.state()[1].span<float>(),
              ElementsAre(FloatNear(5.0f, 1e-6f), FloatNear(10.0f, 1e-5f)));
  EXPECT_THAT(
      stepper.weight().span<float>(),
      ElementsAre(FloatNear(-0.7745967f, 1e-6f), FloatNear(-1.0954451f, 1e-6f),
                  FloatNear(-1.0392305f, 1e-6f),
                  FloatNear(-0.9797959f, 1e-6f)));
}

TEST(AdafactorTest, FactorsMatricesThatAreLargeEnough) {
  const auto optimizer = MakeOptimizer(AdafactorConfig());
  const auto names = [&](std::vector<int64_t> dims) {
    std::string text;
    for (const NamedShape& shape : optimizer->StateShapes(dims)) {
      text += shape.name + DimsToString(shape.dims);
    }
    return text;
  };
  EXPECT_EQ(names({128, 200}), "row[128]column[200]");
  EXPECT_EQ(names({127, 200}), "second[127, 200]");
  EXPECT_EQ(names({200, 127}), "second[200, 127]");
  EXPECT_EQ(names({500}), "second[500]");
  EXPECT_EQ(names({}), "second[]");
  EXPECT_EQ(names({128, 128, 128}), "second[128, 128, 128]");
}

// Agrees with the reference over several steps, for scaled gradients of a wide
// range, at sizes around the width of the vector units.
TEST(AdafactorTest, AgreesWithTheReference) {
  for (const Dims& dims : std::vector<Dims>{{},
                                            {0},
                                            {1},
                                            {7},
                                            {100},
                                            {0, 5},
                                            {5, 0},
                                            {1, 1},
                                            {2, 9},
                                            {9, 2},
                                            {17, 33},
                                            {3, 4, 5}}) {
    for (const bool scale_by_parameter : {false, true}) {
      SCOPED_TRACE(DimsToString(dims));
      const AdafactorConfig options = {
          .multiply_by_parameter_scale = scale_by_parameter,
          .min_dim_size_to_factor = 2};
      Stepper stepper(options, RandomTensor(dims, 1));
      Tensor weight = RandomTensor(dims, 1);
      std::vector<Tensor> state = InitialState(*MakeOptimizer(options), dims);
      for (int64_t step = 1; step <= 5; ++step) {
        Tensor gradient = RandomTensor(dims, 10 + step);
        for (float& g : gradient.span<float>()) g = g * g * g * 1e-3f;
        stepper.Step(gradient, 0.05, 0.25);
        reference::AdafactorUpdate(options, dims, weight.span<float>(),
                                   gradient.span<float>(), 0.25, Spans(state),
                                   step, 0.05);
        ASSERT_TRUE(TensorNear(stepper.weight(), weight, 2e-6f));
        for (size_t s = 0; s < state.size(); ++s) {
          for (int64_t i = 0; i < state[s].size(); ++i) {
            EXPECT_NEAR(stepper.state()[s].f32()[i] / state[s].f32()[i], 1.0,
                        1e-5);
          }
        }
      }
    }
  }
}

TEST(AdafactorTest, GradientsOfZeroMoveNothing) {
  for (const Dims& dims : std::vector<Dims>{{130}, {130, 130}}) {
    Stepper stepper(AdafactorConfig{}, RandomTensor(dims, 1));
    for (int i = 0; i < 3; ++i) {
      stepper.Step(Tensor::Zeros(ElementType::kFloat32, dims), 0.1);
    }
    EXPECT_TRUE(TensorEqual(stepper.weight(), RandomTensor(dims, 1)));
  }
}

// Updates stay finite for gradients from 1e-38 to 1e18.
TEST(AdafactorTest, ExtremeGradientsStayFinite) {
  for (const Dims& dims : std::vector<Dims>{{9}, {3, 5}}) {
    for (const float size : {1e-38f, 1e-20f, 1e15f, 1e18f}) {
      Stepper stepper(AdafactorConfig{.min_dim_size_to_factor = 2},
                      RandomTensor(dims, 1));
      for (int i = 0; i < 3; ++i)
        stepper.Step(RandomTensor(dims, i, size), 0.1);
      for (const float w : stepper.weight().span<float>()) {
        EXPECT_TRUE(std::isfinite(w)) << size;
        EXPECT_LT(std::fabs(w), 2.0f) << size;
      }
    }
  }
}

// Three steps by hand, with beta1 = beta2 = 0.5, epsilon tiny, g = 1, 1, -1:
//   t = 1: m 0.5 v 0.5          m^ 1      v^ 1  -> -lr
//   t = 2: m 0.75 v 0.75        m^ 1      v^ 1  -> -lr
//   t = 3: m -0.125 v 0.875     m^ -1/7   v^ 1  -> +lr/7
TEST(AdamTest, ThreeStepsByHand) {
  Stepper stepper(AdamConfig{.beta1 = 0.5, .beta2 = 0.5, .epsilon = 1e-12},
                  Tensor::Scalar(1.0f));
  stepper.Step(Tensor::Scalar(1.0f), 0.7);
  EXPECT_NEAR(stepper.weight().f32()[0], 0.3, 1e-6);
  stepper.Step(Tensor::Scalar(1.0f), 0.7);
  EXPECT_NEAR(stepper.weight().f32()[0], -0.4, 1e-6);
  stepper.Step(Tensor::Scalar(-1.0f), 0.7);
  EXPECT_NEAR(stepper.weight().f32()[0], -0.3, 1e-6);
}

TEST(AdamTest, AgreesWithTheReference) {
  const AdamConfig options = {.weight_decay = 0.1};
  for (const Dims& dims :
       std::vector<Dims>{{}, {0}, {1}, {7}, {100}, {17, 33}}) {
    SCOPED_TRACE(DimsToString(dims));
    Stepper stepper(options, RandomTensor(dims, 1));
    Tensor weight = RandomTensor(dims, 1);
    std::vector<Tensor> state = {Tensor::Zeros(ElementType::kFloat32, dims),
                                 Tensor::Zeros(ElementType::kFloat32, dims)};
    for (int64_t step = 1; step <= 5; ++step) {
      const Tensor gradient = RandomTensor(dims, 10 + step, 1e-2f);
      stepper.Step(gradient, 0.05, 3.0);
      reference::AdamUpdate(options, weight.span<float>(),
                            gradient.span<float>(), 3.0, Spans(state), step,
                            0.05);
      ASSERT_TRUE(TensorNear(stepper.weight(), weight, 2e-6f));
      ASSERT_TRUE(TensorNear(stepper.state()[0], state[0], 1e-6f));
      ASSERT_TRUE(TensorNear(stepper.state()[1], state[1], 1e-6f));
    }
  }
}

// An expert's update gives the same bits wherever its weights lie in memory:
// alone, or within a stack.
TEST(OptimizerTest, ResultsDependOnNoAlignmentOrNeighbour) {
  for (const OptimizerConfig& config :
       {OptimizerConfig(AdafactorConfig()), OptimizerConfig(AdamConfig())}) {
    const Dims dims = {130, 131};
    const auto optimizer = MakeOptimizer(config);
    Tensor alone = RandomTensor(dims, 1);
    std::vector<Tensor> alone_state = InitialState(*optimizer, dims);
    Tensor stack = Tensor::Zeros(ElementType::kFloat32, {3, 130, 131});
    std::copy_n(alone.f32(), alone.size(), stack.f32() + alone.size());
    std::vector<Tensor> other_state = InitialState(*optimizer, dims);
    for (int64_t step = 1; step <= 3; ++step) {
      const Tensor gradient = RandomTensor(dims, 5 + step);
      Tensor gradients = RandomTensor({3, 130, 131}, 99);
      std::copy_n(gradient.f32(), gradient.size(),
                  gradients.f32() + gradient.size());
      optimizer->Update(dims, alone.span<float>(), gradient.span<float>(), 0.5,
                        Spans(alone_state), step, 0.01);
      optimizer->Update(
          dims, stack.span<float>().subspan(alone.size(), alone.size()),
          gradients.span<float>().subspan(alone.size(), alone.size()), 0.5,
          Spans(other_state), step, 0.01);
    }
    EXPECT_TRUE(TensorEqual(stack.Rows(1, 2).Reshaped(dims), alone));
    EXPECT_EQ(stack.f32()[alone.size() - 1], 0.0f);
    EXPECT_EQ(stack.f32()[2 * alone.size()], 0.0f);
  }
}

}  // namespace
}  // namespace gshard
