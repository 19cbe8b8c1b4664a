// Operators of partitioned programs come to workers as text: no attribute or
// operand of theirs crashes.

#include <limits>
#include <string>
#include <vector>

#include "services/collectives/device_groups.h"
#include "services/graph/builder.h"
#include "services/graph/executor.h"
#include "services/partition/ops/collective_ops.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;
using Ints = std::vector<int64_t>;

constexpr auto kF32 = ElementType::kFloat32;
constexpr auto kI32 = ElementType::kInt32;
constexpr auto kI64 = ElementType::kInt64;

struct HostilePartOp {
  std::string op;
  std::vector<ValueType> operands;
  Attributes attributes;
  std::string message;
};

const std::vector<HostilePartOp>& HostilePartOps() {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const ValueType x = {kF32, {4, 6}}, sizes = {kI32, {4}}, index = {kI64, {}};
  const int64_t zero = 0, one = 1, most = std::numeric_limits<int64_t>::max();
  const std::string bad_parts = "'parts' must lie in [1, 2^20], got ";
  static const auto& ops = *new std::vector<HostilePartOp>{
      {"part",
       {x},
       {{"axes", "model"}, {"dim", zero}, {"parts", zero}, {"shape", x.shape}},
       bad_parts + "0"},
      {"ragged_part",
       {x, sizes},
       {{"axes", "model"}, {"parts", int64_t{1} << 32}, {"rows", Shape{4}}},
       bad_parts + "4294967296"},
      {"all_reduce",
       {x},
       {{"axes", "model"}, {"parts", most}, {"reduction", zero}},
       bad_parts},
      {"windowed_einsum",
       {x, x},
       {{"equation", "ab,cb->ac"},
        {"axes", "model"},
        {"letter", "b"},
        {"parts", -one},
        {"whole", Shape{6}}},
       bad_parts + "-1"},
      {"dropout_part",
       {x, index},
       {{"rate", 0.5},
        {"salt", zero},
        {"axes", "model;"},
        {"sizes", Ints{4, -1}},
        {"parts", Ints{2, 1}}},
       "'sizes' must lie in [0, 2^41] and 'parts' in [0, 2^20], got -1 and 1"},
      {"mask_padding",
       {sizes},
       {{"axes", "model"}, {"dim", zero}, {"size", one}, {"value", kInfinity}},
       "'value' must be a number that i32 holds, got inf"},
      {"mask_padding",
       {x},
       {{"axes", "model"}, {"dim", zero}, {"size", -most}, {"value", 0.0}},
       "'size' must not be negative"},
      {"mask_outside",
       {sizes, index, index},
       {{"dim", zero}, {"value", 0.5}},
       "'value' must be a number that i32 holds, got 0.5"},
      {"reduce_max_ties",
       {x, {kF32, {4}}},
       {{"dims", Ints{2}}},
       "'dims' must ascend within [0, 2), got 2"},
      {"reduce_max_ties",
       {x, {kF32, {6}}},
       {{"dims", Ints{1}}},
       "operand 1 must have shape [4]"},
      {"reduce_max_share",
       {x, {kF32, {4}}, {kF32, {4}}, {kF32, {5}}},
       {{"dims", Ints{1}}},
       "operand 3 must have shape [4]"},
  };
  return ops;
}

TEST(HostilePartOpsTest, WhatCannotRunIsRefused) {
  RegisterCollectiveOps();
  for (const HostilePartOp& hostile : HostilePartOps()) {
    Builder b("hostile");
    std::vector<ValueId> operands;
    for (const ValueType& type : hostile.operands) {
      operands.push_back(b.Input(absl::StrCat("x", operands.size()), type));
    }
    b.AddNode(hostile.op, operands, hostile.attributes);
    EXPECT_THAT(b.status(), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr(hostile.message)))
        << hostile.op;
  }
}

// As many experts as a text can say do not overflow.
TEST(HostilePartOpsTest, ExpertsAreDividedWithoutOverflow) {
  RegisterCollectiveOps();
  const Dim big(int64_t{1} << 40);
  Builder b("hostile");
  const ValueId rows = b.Input("rows", {kF32, {4, 6}});
  const ValueId sizes = b.Input("sizes", {kI32, {big * big}});
  const std::vector<ValueId> results =
      b.AddNode("ragged_all_to_all", {rows, sizes},
                {{"axes", "model"}, {"parts", int64_t{2}}, {"rows", Shape{4}}});
  ASSERT_OK(b.status());
  EXPECT_EQ(b.type(results[1]).shape[0].size(), int64_t{1} << 62);
}

// A device outside the program's.
class FarDevice : public DeviceGroups {
 public:
  absl::StatusOr<int64_t> Index(absl::string_view) override { return 3; }
  absl::StatusOr<Communicator*> Along(absl::string_view) override {
    return absl::UnimplementedError("alone");
  }
};

TEST(HostilePartOpsTest, ADeviceBeyondThePartsIsAnError) {
  RegisterCollectiveOps();
  Builder b("far");
  const ValueId x = b.Input("x", {kF32, {4, 6}});
  b.Output("part", b.AddOne("part", {x},
                            {{"axes", "model"},
                             {"dim", int64_t{0}},
                             {"parts", int64_t{2}},
                             {"shape", Shape{2, 6}}}));
  ASSERT_OK_AND_ASSIGN(Program program, std::move(b).Finish());
  FarDevice device;
  EXPECT_THAT(
      Executor(std::move(program))
          .Run({{"x", RandomTensor({4, 6}, 1)}}, {},
               {.context = RunContext().With<DeviceGroups>(&device)}),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("for 2 devices along 'model', the index of this one "
                         "is 3")));
}

}  // namespace
}  // namespace gshard
