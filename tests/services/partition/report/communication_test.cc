#include "services/partition/report/communication.h"

#include <gtest/gtest.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "services/graph/builder.h"
#include "services/partition/ops/collective_ops.h"

namespace gshard {
namespace {

// One collective on x, f32[12, 8] or ragged rows of width 8, over four devices.
class OneCollective {
 public:
  OneCollective() : mesh_(*DeviceMesh::Create({{"d", 4, ""}})), sizes_(mesh_) {
    RegisterCollectiveOps();
    sizes_.Set("R", 100);
  }

  std::vector<Communication> List(const char* op, Attributes more,
                                  Shape shape = {12, 8},
                                  std::vector<Shape> counts = {}) const {
    Builder b("one");
    std::vector<ValueId> operands = {
        b.Input("x", {ElementType::kFloat32, std::move(shape)})};
    for (const Shape& count : counts) {
      operands.push_back(b.Input(absl::StrCat("counts", operands.size()),
                                 {ElementType::kInt32, count}));
    }
    more["axes"] = std::string("d");
    more["parts"] = int64_t{4};
    b.Output("y", b.AddNode(op, operands, std::move(more))[0]);
    Partitioned partitioned;
    partitioned.program = *std::move(b).Finish();
    partitioned.roles.assign(partitioned.program.values.size(), 0);
    return *ListCommunication(partitioned, mesh_, sizes_);
  }

  int64_t Bytes(const char* op, Attributes more, Shape shape = {12, 8},
                std::vector<Shape> counts = {}) const {
    const auto all = List(op, std::move(more), std::move(shape), counts);
    EXPECT_EQ(all.size(), 1u);
    return all.empty() ? -1 : all[0].bytes;
  }

 private:
  DeviceMesh mesh_;
  SymbolSizes sizes_;
};

constexpr int64_t kX = 12 * 8 * 4;

TEST(CommunicationTest, BytesOfDenseCollectives) {
  const OneCollective one;
  const Attribute dim = int64_t{0};
  EXPECT_EQ(one.Bytes("all_reduce", {{"reduction", int64_t{0}}}),
            2 * kX * 3 / 4);
  EXPECT_EQ(one.Bytes("reduce_scatter", {{"dim", dim}, {"shape", Shape{3, 8}}}),
            kX * 3 / 4);
  EXPECT_EQ(one.Bytes("all_gather", {{"dim", dim}, {"shape", Shape{48, 8}}}),
            kX * 3);
  EXPECT_EQ(one.Bytes("all_to_all", {{"split_dim", dim},
                                     {"concat_dim", int64_t{1}},
                                     {"shape", Shape{3, 32}}}),
            kX * 3 / 4);
}

TEST(CommunicationTest, BytesOfPermutesCountTheTakers) {
  const OneCollective one;
  const Shape shape = {12, 8};
  using Sources = std::vector<int64_t>;
  const auto bytes = [&](Sources source) {
    return one.Bytes("permute", {{"source", source}, {"shape", shape}});
  };
  EXPECT_EQ(bytes({1, 2, 3, 0}), kX);
  EXPECT_EQ(bytes({0, 1, 2, 3}), 0);
  EXPECT_EQ(bytes({0, 0, 0, -1}), 2 * kX);
  EXPECT_EQ(one.Bytes("shift", {{"by", int64_t{-1}}}), kX);
  EXPECT_EQ(one.Bytes("shift", {{"by", int64_t{4}}}), 0);
}

TEST(CommunicationTest, BytesOfRaggedCollectivesAreThoseOfTheRows) {
  const OneCollective one;
  const Shape rows = {Dim::Symbol("R_of_d"), 8};
  const int64_t bytes = 25 * 8 * 4;
  const Attributes to = {{"rows", Shape{Dim::Symbol("S")}}};
  EXPECT_EQ(one.Bytes("ragged_all_to_all", to, rows, {{6}}), bytes * 3 / 4);
  EXPECT_EQ(one.Bytes("ragged_all_to_all_back", to, rows, {{4, 2}, {6}}),
            bytes * 3 / 4);
  EXPECT_EQ(one.Bytes("ragged_all_gather", to, rows, {{6}}), bytes * 3);
  EXPECT_EQ(one.Bytes("rows_all_gather", to, rows), bytes * 3);
}

TEST(CommunicationTest, LocalOperatorsSendNothing) {
  const OneCollective one;
  EXPECT_TRUE(
      one.List("part", {{"dim", int64_t{0}}, {"shape", Shape{3, 8}}}).empty());
}

TEST(CommunicationTest, TotalsAreByRoleDirectionAndKind) {
  const auto sent = [](const char* kind, int role, bool backward,
                       int64_t bytes) {
    Communication one;
    one.kind = kind;
    one.role = role;
    one.place.backward = backward;
    one.bytes = bytes;
    return one;
  };
  const std::vector<CommunicationTotal> totals = SumByKind(
      {sent("permute", 0, true, 1), sent("permute", 0, false, 2),
       sent("all_reduce", 1, false, 4), sent("permute", 0, false, 8)});
  ASSERT_EQ(totals.size(), 3u);
  EXPECT_EQ(totals[0].count, 2);
  EXPECT_EQ(totals[0].bytes, 10);
  EXPECT_TRUE(totals[1].backward);
  EXPECT_EQ(totals[2].kind, "all_reduce");
}

}  // namespace
}  // namespace gshard
