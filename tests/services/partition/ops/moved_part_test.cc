// The operators that assemble moved parts.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/graph/builder.h"
#include "services/partition/halo.h"
#include "services/partition/ops/collective_ops.h"
#include "tests/services/collectives/local_world.h"
#include "tests/testing/mesh_devices.h"
#include "tests/testing/partitioned_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

constexpr int kDevices = 3;

class MovedPartTest : public ::testing::Test {
 protected:
  MovedPartTest() { RegisterCollectiveOps(); }

  // Runs a program on kDevices devices and returns each device's outputs.
  std::vector<std::vector<Tensor>> Run(Builder b, const TensorMap& inputs) {
    const DeviceMesh mesh = *DeviceMesh::Create({{"d", kDevices, ""}});
    std::vector<std::vector<Tensor>> outputs(kDevices);
    const Executor executor(*std::move(b).Finish());
    EXPECT_OK(RunOnDevices(kDevices, [&](World& world) -> absl::Status {
      MeshDevices groups(mesh, world);
      ASSIGN_OR_RETURN(
          outputs[world.rank()],
          executor.Run(inputs, {},
                       {.context = RunContext().With<DeviceGroups>(&groups)}));
      return absl::OkStatus();
    }));
    return outputs;
  }

  static int64_t Value(const Tensor& scalar) { return *scalar.data<int64_t>(); }
};

TEST_F(MovedPartTest, FormsAreThoseOfHalos) {
  const LinearForm floor = {.multiplier = -5, .offset = 3, .divisor = 2};
  const RemainderForm remainder = {.multiplier = -5, .offset = 3, .divisor = 4};
  Builder b("forms");
  const auto attributes = [](const auto& form) {
    return Attributes{{"axes", "d"},
                      {"multiplier", form.multiplier},
                      {"offset", form.offset},
                      {"divisor", form.divisor}};
  };
  b.Output("floor", b.AddOne("part_floor", {}, attributes(floor)));
  Attributes turned = attributes(remainder);
  turned["factor"] = int64_t{-2};
  turned["add"] = int64_t{7};
  b.Output("remainder", b.AddOne("part_remainder", {}, turned));
  const auto outputs = Run(std::move(b), {});
  for (int i = 0; i < kDevices; ++i) {
    EXPECT_EQ(Value(outputs[i][0]), floor.At(i));
    EXPECT_EQ(Value(outputs[i][1]), 7 - 2 * remainder.At(i));
  }
}

TEST_F(MovedPartTest, ALimitIsCountedFromThePart) {
  Builder b("limit");
  const ValueId x = b.Input("x", {ElementType::kFloat32, {2, 5}});
  const ValueId limit = b.Input("limit", {ElementType::kInt64, {}});
  b.Output("limit", b.AddOne("part_limit", {limit, x},
                             {{"axes", "d"}, {"dim", int64_t{1}}}));
  const auto outputs = Run(
      std::move(b), {{"x", RandomTensor({2, 5}, 1)}, {"limit", KeyTensor(7)}});
  EXPECT_EQ(Value(outputs[0][0]), 7);
  EXPECT_EQ(Value(outputs[1][0]), 2);
  EXPECT_EQ(Value(outputs[2][0]), -3);
}

// mask_outside and overlay accept ranges that exceed the tensor or are empty.
TEST_F(MovedPartTest, MasksAndLaysOver) {
  const Tensor x = RandomTensor({2, 4, 3}, 1), y = RandomTensor({2, 4, 3}, 2);
  for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 3}, {-5, 2}, {2, 9}, {-1, 9}, {3, 1}, {7, 9}}) {
    Builder b("ranges");
    const auto input = [&](const char* name, const Tensor& tensor) {
      Shape shape(tensor.dims().begin(), tensor.dims().end());
      return b.Input(name, {tensor.type(), shape});
    };
    const ValueId xs = input("x", x), ys = input("y", y);
    const ValueId from = input("begin", KeyTensor(begin));
    const ValueId to = input("end", KeyTensor(end));
    b.Output("masked", b.AddOne("mask_outside", {xs, from, to},
                                {{"dim", int64_t{1}}, {"value", -2.0}}));
    b.Output("laid over",
             b.AddOne("overlay", {xs, ys, from, to}, {{"dim", int64_t{1}}}));
    const auto outputs = Run(std::move(b), {{"x", x},
                                            {"y", y},
                                            {"begin", KeyTensor(begin)},
                                            {"end", KeyTensor(end)}});
    for (int64_t i = 0; i < x.size(); ++i) {
      const int64_t at = i / 3 % 4;
      const bool inside = begin <= at && at < end;
      EXPECT_EQ(outputs[0][0].f32()[i], inside ? x.f32()[i] : -2.0f);
      EXPECT_EQ(outputs[0][1].f32()[i], inside ? y.f32()[i] : x.f32()[i]);
    }
  }
}

TEST_F(MovedPartTest, WrongUseSaysWhatWasExpected) {
  const auto status = [](const char* op, int operands, Attributes attributes) {
    Builder b("wrong");
    const ValueId x = b.Input("x", {ElementType::kFloat32, {4}});
    b.AddNode(op, std::vector<ValueId>(operands, x), std::move(attributes));
    return b.status();
  };
  const auto invalid = [](const char* text) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text));
  };
  EXPECT_THAT(status("part_floor", 0,
                     {{"axes", "d"},
                      {"multiplier", int64_t{1}},
                      {"offset", int64_t{0}},
                      {"divisor", int64_t{0}}}),
              invalid("'divisor' must be at least 1, got 0"));
  EXPECT_THAT(status("mask_outside", 3, {}),
              invalid("operand 1 must be i64[], got f32[4]"));
  EXPECT_THAT(status("overlay", 4, {}),
              invalid("operand 2 must be i64[], got f32[4]"));
  EXPECT_THAT(status("part_limit", 2, {}),
              invalid("operand 0 must be i64[], got f32[4]"));
}

}  // namespace
}  // namespace gshard
