#include "services/graph/device_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/graph/builder.h"
#include "services/ops/cast.h"
#include "tests/testing/fake_device.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

// "kept" = relu(x) + w, "sum" = that + rows of w by id.
Program SmallProgram() {
  Builder b("small");
  const ValueId w = b.Parameter("w", {2, 3});
  const ValueId x = b.Input("x", {ElementType::kFloat32, {2, 3}});
  const ValueId ids = b.Input("ids", {ElementType::kInt32, {2}});
  const ValueId kept = b.Add(b.Relu(x), w);
  b.Output("kept/0", kept);
  b.Output("sum", b.Add(kept, b.Embedding(w, ids)));
  return *std::move(b).Finish();
}

class DeviceExecutorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    program_ = SmallProgram();
    RegisterFakeDeviceKernels({"add", "embedding", "relu"});
  }

  TensorMap Inputs() const {
    return {{"x", RandomTensor({2, 3}, 1)}, {"ids", Tensor::Ints({2}, {1, 0})}};
  }

  Program program_;
  FakeDevice device_;
  const TensorMap parameters_ = {{"w", RandomTensor({2, 3}, 2)}};
};

TEST_F(DeviceExecutorTest, GivesBackWhatDoesNotStay) {
  const DeviceExecutor cpu(program_, nullptr, {"kept/"});
  const DeviceExecutor executor(program_, &device_, {"kept/"});
  ASSERT_OK(executor.status());
  ASSERT_OK_AND_ASSIGN(const auto expected, cpu.Run(Inputs(), parameters_));
  ASSERT_OK_AND_ASSIGN(const auto got, executor.Run(Inputs(), parameters_));
  ASSERT_EQ(got.size(), 2u);
  EXPECT_FALSE(got[0].on_host());
  ASSERT_OK_AND_ASSIGN(const Tensor kept, CopyToHost(device_, got[0]));
  EXPECT_TRUE(TensorEqual(kept, expected[0]));
  EXPECT_TRUE(TensorEqual(got[1], expected[1]));
  EXPECT_TRUE(expected[0].on_host());
}

// Only "x" is copied to the device, once: ids are read on the host, and the
// next run's "x" is a kept output.
TEST_F(DeviceExecutorTest, CopiesWhatIsNotThereOnce) {
  const DeviceExecutor executor(program_, &device_, {"kept/"});
  TensorMap there = parameters_;
  ASSERT_OK_AND_ASSIGN(there["w"], CopyToDevice(device_, there["w"]));
  const int64_t before = device_.copies_to_device();
  ASSERT_OK_AND_ASSIGN(const auto first, executor.Run(Inputs(), there));
  EXPECT_EQ(device_.copies_to_device(), before + 1);
  TensorMap inputs = Inputs();
  inputs["x"] = first[0];
  ASSERT_OK(executor.Run(std::move(inputs), there));
  EXPECT_EQ(device_.copies_to_device(), before + 1);
}

TEST_F(DeviceExecutorTest, ARunOfTheCallersEndsWhenTheCallerEndsIt) {
  const DeviceExecutor cpu(program_, nullptr), executor(program_, &device_);
  ASSERT_OK_AND_ASSIGN(const auto expected,
                       cpu.RunIn(nullptr, Inputs(), parameters_));
  ASSERT_OK_AND_ASSIGN(const auto run, device_.BeginRun());
  const int64_t runs = device_.runs();
  ASSERT_OK_AND_ASSIGN(auto got,
                       executor.RunIn(run.get(), Inputs(), parameters_));
  EXPECT_FALSE(TensorEqual(got[1], expected[1]));
  ASSERT_OK(run->Finish());
  EXPECT_TRUE(TensorEqual(got[1], expected[1]));
  EXPECT_EQ(device_.runs(), runs);
}

TEST_F(DeviceExecutorTest, ParametersAreRoundedWhereTheyAre) {
  WeightForms forms;
  for (const char* name : {"here", "there"}) {
    forms[name].type = ElementType::kBFloat16;
  }
  forms["float"].type = ElementType::kFloat32;
  const Tensor value = RandomTensor({2, 3}, 3);
  const Tensor rounded = Cast(value, ElementType::kBFloat16);
  TensorMap parameters = {{"here", value}, {"there", value}, {"float", value}};
  for (const char* name : {"there", "float"}) {
    ASSERT_OK_AND_ASSIGN(parameters[name], CopyToDevice(device_, value));
  }
  device_.round_error = absl::ResourceExhaustedError("no memory");
  TensorMap copies = parameters;
  EXPECT_THAT(CastToBf16(forms, &device_, copies),
              StatusIs(absl::StatusCode::kResourceExhausted, "no memory"));
  device_.round_error = absl::OkStatus();
  ASSERT_OK(CastToBf16(forms, &device_, parameters));
  EXPECT_TRUE(TensorEqual(parameters["here"], rounded));
  EXPECT_FALSE(parameters["there"].on_host());
  ASSERT_OK_AND_ASSIGN(const Tensor there,
                       CopyToHost(device_, parameters["there"]));
  EXPECT_TRUE(TensorEqual(there, rounded));
  EXPECT_EQ(parameters["float"].type(), ElementType::kFloat32);
}

TEST_F(DeviceExecutorTest, ErrorsOfTheDeviceAreThoseOfTheRun) {
  const DeviceExecutor executor(program_, &device_);
  device_.begin_error = absl::UnavailableError("no run");
  EXPECT_THAT(executor.Run(Inputs(), parameters_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no run")));
  device_.begin_error = absl::OkStatus();
  device_.finish_error = absl::UnavailableError("no end");
  EXPECT_THAT(executor.Run(Inputs(), parameters_),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("no end")));
}

TEST_F(DeviceExecutorTest, NamesAKernelThatTheDeviceLacks) {
  Builder b("other");
  b.Output("y", b.Reverse(b.Input("x", {ElementType::kFloat32, {2, 3}}), {0}));
  const DeviceExecutor executor(*std::move(b).Finish(), &device_);
  EXPECT_THAT(executor.status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("reverse")));
}

}  // namespace
}  // namespace gshard
