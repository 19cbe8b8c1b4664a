#include "services/exchange/exchange_plan.h"

#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Rows of experts: 0: {0, 1}, 1: none, 2: {2}, 3: {3, 4, 5}, 4: none.
ExpertRows Rows() {
  auto rows = ExpertRows::Create(Tensor::Ints({5}, {2, 0, 1, 3, 0}));
  EXPECT_OK(rows);
  return *std::move(rows);
}
constexpr int32_t kWithRows[] = {0, 2, 3};

// Rows [R, 2]: row r is (r, -r).
Tensor NumberedRows(int64_t R) {
  Tensor rows(ElementType::kFloat32, {R, 2});
  for (int64_t r = 0; r < R; ++r) {
    rows.f32()[2 * r] = static_cast<float>(r);
    rows.f32()[2 * r + 1] = static_cast<float>(-r);
  }
  return rows;
}

// The experts of each holder's piece.
std::vector<std::vector<int32_t>> ExpertsOf(const RowPlan& plan,
                                            size_t holders) {
  std::vector<std::vector<int32_t>> experts(holders);
  for (const RowPiece& piece : plan.pieces)
    experts[piece.holder] = piece.experts;
  return experts;
}

TEST(ExchangePlanTest, PiecesAreTheRowsOfTheExperts) {
  const std::vector<int32_t> held[] = {{0, 3}, {1, 4}, {2}};
  const std::vector<ReplicaHolder> holders = {{held[0]}, {held[1]}, {held[2]}};
  const ExpertRows rows = Rows();
  const RowPlan plan =
      PlanExchange(rows, kWithRows, holders, /*idle_too=*/false);
  EXPECT_THAT(plan.no_holder, IsEmpty());
  ASSERT_EQ(plan.pieces.size(), 2u);
  const RowPiece& piece = plan.pieces[0];
  EXPECT_EQ(piece.holder, 0);
  EXPECT_EQ(piece.rows, 5);
  EXPECT_THAT(piece.ranges, ElementsAre(RowRange{0, 2}, RowRange{3, 6}));
  ASSERT_OK_AND_ASSIGN(
      const Tensor part,
      PieceOf(NumberedRows(6), Division::kRows, rows, piece, held[0]));
  EXPECT_THAT(part.span<float>(),
              ElementsAre(0, 0, 1, -1, 3, -3, 4, -4, 5, -5));
  EXPECT_EQ(plan.pieces[1].holder, 2);
  EXPECT_EQ(plan.pieces[1].rows, 1);
}

TEST(ExchangePlanTest, NeighboursAndWholesAreViews) {
  const std::vector<int32_t> held[] = {{0, 2}, {1, 3, 4}};
  const ExpertRows rows = Rows();
  const RowPlan plan = PlanExchange(
      rows, kWithRows, std::vector<ReplicaHolder>{{held[0]}, {held[1]}},
      /*idle_too=*/false);
  ASSERT_EQ(plan.pieces.size(), 2u);
  const Tensor whole = NumberedRows(6);
  const auto part = [&](int p, Division division) {
    return *PieceOf(whole, division, rows, plan.pieces[p], held[p]);
  };
  EXPECT_EQ(part(0, Division::kRows).raw(), whole.raw());
  EXPECT_EQ(part(1, Division::kRows).raw(),
            whole.raw() + 3 * 2 * sizeof(float));
  EXPECT_EQ(part(1, Division::kWhole).raw(), whole.raw());
  EXPECT_EQ(part(1, Division::kWhole).dims(), whole.dims());
}

// If asked, as in training, the plan has empty pieces for holders without rows.
TEST(ExchangePlanTest, IdleHoldersGetAnEmptyPieceIfAsked) {
  const std::vector<int32_t> held[] = {{1, 4}, {0, 2, 3}, {}};
  const ExpertRows rows = Rows();
  const std::vector<ReplicaHolder> holders = {{held[0]}, {held[1]}, {held[2]}};
  const RowPlan plan =
      PlanExchange(rows, kWithRows, holders, /*idle_too=*/true);
  ASSERT_EQ(plan.pieces.size(), 3u);
  EXPECT_EQ(plan.pieces[0].rows, 0);
  ASSERT_OK_AND_ASSIGN(
      const Tensor part,
      PieceOf(NumberedRows(6), Division::kRows, rows, plan.pieces[0], held[0]));
  EXPECT_EQ(part.dims(), (Dims{0, 2}));
  ASSERT_OK_AND_ASSIGN(const Tensor sizes,
                       PieceOf(rows.group_sizes(), Division::kGroupSizes, rows,
                               plan.pieces[0], held[0]));
  EXPECT_THAT(sizes.span<int32_t>(), ElementsAre(0, 0));
  EXPECT_EQ(
      PlanExchange(rows, kWithRows, holders, /*idle_too=*/false).pieces.size(),
      1u);
}

// Group sizes are 0 for a holder's experts that are not in its piece.
TEST(ExchangePlanTest, AReplicaGetsTheSizesOfItsPieceOnly) {
  const std::vector<int32_t> held[] = {{0, 2, 3}, {2, 3}};
  const ExpertRows rows = Rows();
  const RowPlan plan = PlanExchange(
      rows, kWithRows, std::vector<ReplicaHolder>{{held[0]}, {held[1]}},
      /*idle_too=*/false);
  EXPECT_THAT(ExpertsOf(plan, 2), ElementsAre(ElementsAre(0, 2, 3), IsEmpty()));
  const RowPlan busy =
      PlanExchange(rows, kWithRows,
                   std::vector<ReplicaHolder>{
                       {held[0], /*outstanding_rows=*/100}, {held[1]}},
                   /*idle_too=*/false);
  EXPECT_THAT(ExpertsOf(busy, 2),
              ElementsAre(ElementsAre(0), ElementsAre(2, 3)));
  ASSERT_OK_AND_ASSIGN(const Tensor sizes,
                       PieceOf(rows.group_sizes(), Division::kGroupSizes, rows,
                               busy.pieces[0], held[0]));
  EXPECT_THAT(sizes.span<int32_t>(), ElementsAre(2, 0, 0));
}

TEST(ExchangePlanTest, SaysWhatNobodyCanBeAskedFor) {
  const std::vector<int32_t> held[] = {{0, 2, 3}, {2}};
  const RowPlan plan =
      PlanExchange(Rows(), kWithRows,
                   std::vector<ReplicaHolder>{
                       {held[0], 0, WorkerHealth::State::kFailed}, {held[1]}},
                   /*idle_too=*/false);
  EXPECT_THAT(ExpertsOf(plan, 2), ElementsAre(IsEmpty(), ElementsAre(2)));
  EXPECT_THAT(plan.no_holder, ElementsAre(0, 3));
}

TEST(ExchangePlanTest, RefusesOperandsWithOtherRows) {
  const std::vector<int32_t> held = {0, 1, 2, 3, 4};
  const ExpertRows rows = Rows();
  const RowPlan plan = PlanExchange(
      rows, kWithRows, std::vector<ReplicaHolder>{{held}}, /*idle_too=*/false);
  for (const Tensor& operand : {NumberedRows(5), Tensor::Scalar(1.0f)}) {
    EXPECT_THAT(PieceOf(operand, Division::kRows, rows, plan.pieces[0], held),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("expected 6 rows, got ")));
  }
}

}  // namespace
}  // namespace gshard
