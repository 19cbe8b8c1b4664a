// Tests optimizer steps, and the operations before them, on a GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <variant>
#include <vector>

#include "services/ops/cast.h"
#include "services/train/gradient_norm.h"
#include "services/train/job_options.h"
#include "tests/reference/optimizer.h"
#include "tests/services/cuda/gpu_test.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

constexpr int64_t kParts = 3;

std::vector<absl::Span<float>> PartOf(std::vector<Tensor>& tensors,
                                      int64_t part) {
  std::vector<absl::Span<float>> spans;
  for (Tensor& tensor : tensors) {
    spans.push_back(tensor.Rows(part, part + 1).span<float>());
  }
  return spans;
}

class OptimizerStepsTest : public GpuTest {
 protected:
  Tensor There(const Tensor& tensor) {
    return CopyToDevice(*device_, tensor).value();
  }
  Tensor Back(const Tensor& tensor) {
    return CopyToHost(*device_, tensor).value();
  }

  // Steps kParts tensors of shape `dims` on the device, on the CPU and by the
  // reference. Device and CPU must agree to the bit.
  void Compare(const OptimizerConfig& config, const Dims& dims) {
    const auto optimizer = MakeOptimizer(config);
    Dims all = dims;
    all.insert(all.begin(), kParts);
    Tensor weight = RandomTensor(all, 1), expected = weight.Clone();
    std::vector<Tensor> state, there, reference_state;
    for (const NamedShape& shape : optimizer->StateShapes(dims)) {
      Dims of_all = shape.dims;
      of_all.insert(of_all.begin(), kParts);
      state.push_back(Tensor::Zeros(ElementType::kFloat32, of_all));
      reference_state.push_back(state.back().Clone());
      there.push_back(There(state.back()));
    }
    Tensor weight_there = There(weight);
    for (int64_t step = 1; step <= 3; ++step) {
      const Tensor gradient = RandomTensor(all, 10 + step);
      const double scale = 0.7, rate = 0.05;
      ASSERT_OK_AND_ASSIGN(const auto run, device_->BeginRun());
      ASSERT_OK(optimizer->Update(*run, kParts, dims, weight_there,
                                  There(gradient), scale, absl::MakeSpan(there),
                                  step, rate));
      ASSERT_OK(run->Finish());
      for (int64_t p = 0; p < kParts; ++p) {
        const auto g = gradient.Rows(p, p + 1).span<float>();
        optimizer->Update(dims, weight.Rows(p, p + 1).span<float>(), g, scale,
                          PartOf(state, p), step, rate);
        const auto w = expected.Rows(p, p + 1).span<float>();
        if (const auto* adam = std::get_if<AdamConfig>(&config)) {
          reference::AdamUpdate(*adam, w, g, scale, PartOf(reference_state, p),
                                step, rate);
        } else {
          reference::AdafactorUpdate(std::get<AdafactorConfig>(config), dims, w,
                                     g, scale, PartOf(reference_state, p), step,
                                     rate);
        }
      }
    }
    EXPECT_TRUE(TensorEqual(Back(weight_there), weight));
    EXPECT_TRUE(TensorNear(Back(weight_there), expected, 1e-5f));
    for (size_t i = 0; i < state.size(); ++i) {
      EXPECT_TRUE(TensorEqual(Back(there[i]), state[i]));
    }
  }
};

TEST_F(OptimizerStepsTest, AdamIsTheCpus) {
  Compare(AdamConfig{.weight_decay = 0.01}, {7, 50});
  Compare(AdamConfig(), {1});
}

TEST_F(OptimizerStepsTest, AdafactorIsTheCpus) {
  const AdafactorConfig factored = {.min_dim_size_to_factor = 4};
  for (const Dims& dims : {Dims{4, 5}, Dims{17, 33}, Dims{40, 9}, Dims{4, 1100},
                           Dims{3, 50}, Dims{1}, Dims{300}}) {
    Compare(factored, dims);
  }
  AdafactorConfig plain = factored;
  plain.clipping_threshold = 0;
  plain.multiply_by_parameter_scale = false;
  Compare(plain, {6, 20});
  Compare(plain, {20});
}

TEST_F(OptimizerStepsTest, SumsOfSquaresAreOfEachPart) {
  const Tensor x = RandomTensor({kParts, 1500}, 1);
  ASSERT_OK_AND_ASSIGN(const auto run, device_->BeginRun());
  ASSERT_OK_AND_ASSIGN(const std::vector<double> sums,
                       run->SumsOfSquares(There(x), kParts));
  for (int64_t p = 0; p < kParts; ++p) {
    EXPECT_EQ(sums[p], SumOfSquares(x.Rows(p, p + 1).span<float>()));
  }
  // A tensor that is cut into rows is summed in another order.
  const Tensor large = RandomTensor({9001}, 2);
  ASSERT_OK_AND_ASSIGN(const std::vector<double> whole,
                       run->SumsOfSquares(There(large), 1));
  EXPECT_NEAR(whole[0], SumOfSquares(large.span<float>()), 1e-9);
  const auto none =
      run->SumsOfSquares(There(Tensor(ElementType::kFloat32, {0})), 0);
  ASSERT_OK(none.status());
  EXPECT_TRUE(none->empty());
}

TEST_F(OptimizerStepsTest, CopiesRoundsAndAdds) {
  const Tensor x = RandomTensor({5, 60}, 1), y = RandomTensor({5, 60}, 2);
  ASSERT_OK_AND_ASSIGN(const auto run, device_->BeginRun());
  const Tensor there = There(x);
  ASSERT_OK_AND_ASSIGN(Tensor sum, run->Copy(there));
  ASSERT_OK(run->Add(There(y), sum));
  ASSERT_OK_AND_ASSIGN(const Tensor rounded, run->RoundToBf16(there));
  ASSERT_OK(run->Finish());
  EXPECT_TRUE(TensorEqual(Back(there), x));
  EXPECT_TRUE(TensorEqual(Back(rounded), Cast(x, ElementType::kBFloat16)));
  Tensor expected = x.Clone();
  for (int64_t i = 0; i < x.size(); ++i) expected.f32()[i] += y.f32()[i];
  EXPECT_TRUE(TensorEqual(Back(sum), expected));
}

}  // namespace
}  // namespace gshard
