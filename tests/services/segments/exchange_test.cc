#include "services/segments/exchange.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "services/graph/builder.h"
#include "services/graph/executor.h"
#include "services/ops/cast.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Rows [R, 2]: row r is (r, -r).
Tensor NumberedRows(int64_t R) {
  Tensor rows(ElementType::kFloat32, {R, 2});
  for (int64_t r = 0; r < R; ++r) {
    rows.f32()[2 * r] = static_cast<float>(r);
    rows.f32()[2 * r + 1] = static_cast<float>(-r);
  }
  return rows;
}

std::vector<float> FirstColumn(const Tensor& rows) {
  std::vector<float> column;
  for (int64_t r = 0; r < rows.dim(0); ++r) {
    column.push_back(rows.f32()[2 * r]);
  }
  return column;
}

// Rows of experts: 0: {0, 1}, 1: none, 2: {2}, 3: {3, 4, 5}, 4: none.
const std::vector<int32_t> kSizes = {2, 0, 1, 3, 0};
Tensor Sizes() { return Tensor::Ints({5}, kSizes); }

TEST(ExchangeTest, PartsAreTheRowsOfTheExperts) {
  const ExpertsOfWorkers workers = {{0, 3}, {1, 4}, {2}};
  ASSERT_OK_AND_ASSIGN(const Exchange exchange,
                       Exchange::Create(Sizes(), workers));
  const Tensor rows = NumberedRows(6);
  const auto part = [&](int w) {
    return FirstColumn(*exchange.Part(rows, Division::kRows, w));
  };
  EXPECT_THAT(part(0), ElementsAre(0, 1, 3, 4, 5));
  EXPECT_THAT(part(1), ElementsAre());
  EXPECT_THAT(part(2), ElementsAre(2));
  EXPECT_EQ(exchange.num_rows(0), 5);
  EXPECT_EQ(exchange.num_rows(1), 0);
  ASSERT_OK_AND_ASSIGN(const Tensor sizes,
                       exchange.Part(Sizes(), Division::kGroupSizes, 0));
  EXPECT_THAT(sizes.span<int32_t>(), ElementsAre(2, 3));
}

TEST(ExchangeTest, NeighboursAndWholesAreViews) {
  // Expert 1 has no rows, so those of 0 and 2 touch.
  const ExpertsOfWorkers workers = {{0, 2}, {1, 3, 4}};
  ASSERT_OK_AND_ASSIGN(const Exchange exchange,
                       Exchange::Create(Sizes(), workers));
  const Tensor rows = NumberedRows(6);
  ASSERT_OK_AND_ASSIGN(const Tensor first,
                       exchange.Part(rows, Division::kRows, 0));
  ASSERT_OK_AND_ASSIGN(const Tensor second,
                       exchange.Part(rows, Division::kRows, 1));
  EXPECT_EQ(first.raw(), rows.raw());
  EXPECT_EQ(second.raw(), rows.raw() + 3 * 2 * sizeof(float));
  ASSERT_OK_AND_ASSIGN(const Tensor whole,
                       exchange.Part(rows, Division::kWhole, 1));
  EXPECT_EQ(whole.raw(), rows.raw());
  EXPECT_EQ(whole.dims(), rows.dims());
}

TEST(ExchangeTest, MergeIsTheInverse) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const int64_t E = 1 + RandomBelow(seed, 0, 9);
    const int64_t W = 1 + RandomBelow(seed, 1, 5);
    std::vector<int32_t> sizes;
    ExpertsOfWorkers workers(W);
    for (int64_t e = 0; e < E; ++e) {
      sizes.push_back(RandomBelow(seed, 10 + e, 4));
      workers[RandomBelow(seed, 100 + e, W)].push_back(e);
    }
    const int64_t R = std::accumulate(sizes.begin(), sizes.end(), 0);
    ASSERT_OK_AND_ASSIGN(const Exchange exchange,
                         Exchange::Create(Tensor::Ints({E}, sizes), workers));
    const Tensor rows = NumberedRows(R);
    std::vector<Tensor> parts;
    for (int w = 0; w < W; ++w) {
      ASSERT_OK_AND_ASSIGN(Tensor part,
                           exchange.Part(rows, Division::kRows, w));
      // A worker without rows may not have been asked.
      if (part.dim(0) == 0 && w > 0 && seed % 2 == 0) part = Tensor();
      parts.push_back(std::move(part));
    }
    ASSERT_OK_AND_ASSIGN(const Tensor merged, exchange.Merge(std::move(parts)));
    EXPECT_TRUE(TensorEqual(merged, rows)) << "seed " << seed;
  }
}

TEST(ExchangeTest, RefusesWrongGroupSizes) {
  const ExpertsOfWorkers workers = {{0, 1}};
  const auto create = [&](const Tensor& sizes) {
    return Exchange::Create(sizes, workers);
  };
  EXPECT_THAT(create(Tensor::Floats({2}, {1, 1})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("must be i32[E], got f32[2]")));
  EXPECT_THAT(
      create(Tensor::Ints({1, 2}, {1, 1})),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("got i32[1, 2]")));
  EXPECT_THAT(create(Tensor::Ints({2}, {1, -1})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("got -1 for expert 1")));
}

TEST(ExchangeTest, RefusesPlacementsThatAreNone) {
  const auto create = [](const ExpertsOfWorkers& workers) {
    return Exchange::Create(Tensor::Ints({3}, {1, 1, 1}), workers);
  };
  EXPECT_THAT(
      create({{0, 1}, {3}}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("expert 3 of the placement is not in [0, 3)")));
  EXPECT_THAT(create({{0, -1}}), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("expert -1")));
  EXPECT_THAT(create({{0}, {1}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("must hold 3 experts, got 2")));
  EXPECT_THAT(create({{0, 1}, {1}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expert 1 is placed twice")));
}

TEST(ExchangeTest, RefusesOperandsWithOtherRows) {
  const ExpertsOfWorkers workers = {{0, 1, 2, 3, 4}};
  ASSERT_OK_AND_ASSIGN(const Exchange exchange,
                       Exchange::Create(Sizes(), workers));
  for (const Tensor& operand : {NumberedRows(5), Tensor::Scalar(1.0f)}) {
    EXPECT_THAT(exchange.Part(operand, Division::kRows, 0),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("expected 6 rows, got ")));
  }
}

TEST(ExchangeTest, RefusesWrongReplies) {
  const ExpertsOfWorkers workers = {{0}, {1, 2, 3, 4}};
  ASSERT_OK_AND_ASSIGN(const Exchange exchange,
                       Exchange::Create(Sizes(), workers));
  const auto merge = [&](Tensor second) {
    return exchange.Merge({NumberedRows(2), std::move(second)});
  };
  EXPECT_OK(merge(NumberedRows(4)));
  for (const Tensor& wrong :
       {NumberedRows(3), Tensor(), Tensor::Scalar(1.0f),
        RandomTensor({4, 3}, 1), RandomTensor({4, 2, 1}, 1),
        Tensor::Zeros(ElementType::kInt32, {4, 2}),
        Tensor::Zeros(ElementType::kBFloat16, {4, 2})}) {
    EXPECT_THAT(merge(wrong), StatusIs(absl::StatusCode::kInvalidArgument,
                                       HasSubstr("worker 1 must reply with "
                                                 "f32 or bf16 of 4 rows")));
  }
}

TEST(ExchangeTest, MergesRowsOfBFloat16) {
  const ExpertsOfWorkers workers = {{0, 3}, {1, 2, 4}};
  ASSERT_OK_AND_ASSIGN(const Exchange exchange,
                       Exchange::Create(Sizes(), workers));
  const Tensor whole = Cast(NumberedRows(6), ElementType::kBFloat16);
  std::vector<Tensor> parts;
  for (const int w : {0, 1}) {
    ASSERT_OK_AND_ASSIGN(parts.emplace_back(),
                         exchange.Part(whole, Division::kRows, w));
  }
  ASSERT_OK_AND_ASSIGN(const Tensor merged, exchange.Merge(parts));
  EXPECT_TRUE(TensorEqual(merged, whole));
}

// Records the calls and answers with `reply` for each.
class Recorder : public DividingRunner {
 public:
  Recorder(ExpertsOfWorkers workers, bool skip_idle, int replies,
           int slices = 1)
      : DividingRunner(std::move(workers), skip_idle, slices),
        replies_(replies) {}
  std::vector<int> called;

 protected:
  absl::StatusOr<std::vector<std::vector<Tensor>>> CallWorkers(
      std::vector<WorkerCall> calls) override {
    std::vector<std::vector<Tensor>> all;
    for (const WorkerCall& call : calls) {
      called.push_back(call.worker);
      EXPECT_EQ(call.segment, "p/1");
      EXPECT_EQ(call.inputs.size(), 1);
      EXPECT_EQ(call.inputs[0].first, "call/v7");
      all.push_back(std::vector<Tensor>(replies_, call.inputs[0].second));
    }
    return all;
  }

 private:
  const int replies_;
};

// A call whose group sizes are not sent.
absl::StatusOr<Program> CallProgram(bool summed) {
  RegisterShardingOps();
  const Dim R = Dim::Symbol("R");
  Builder b("p");
  const ValueId sizes = b.Input("sizes", {ElementType::kInt32, {5}});
  const ValueId rows = b.Input("rows", {ElementType::kFloat32, {R, 2}});
  b.Output("y", b.AddOne("call_segment", {sizes, rows},
                         {{"segment", "p/1"},
                          {"division", std::vector<int64_t>{0, 1}},
                          {"sent", std::vector<int64_t>{0, 1}},
                          {"operands", "call/v3;call/v7"},
                          {"replies", int64_t{1}},
                          {"summed", std::vector<int64_t>{summed}},
                          {"shape0", Shape{R, 2}}}));
  return std::move(b).Finish();
}

absl::StatusOr<std::vector<Tensor>> RunCall(Recorder& recorder,
                                            bool summed = false) {
  auto program = CallProgram(summed);
  if (!program.ok()) return program.status();
  return Executor(*std::move(program))
      .Run({{"sizes", Sizes()}, {"rows", NumberedRows(6)}}, {},
           {.context = RunContext().With<SegmentRunner>(&recorder)});
}

TEST(CallSegmentTest, RefusesWrongAttributes) {
  RegisterShardingOps();
  const auto build = [](std::vector<int64_t> division, std::string names,
                        std::vector<int64_t> summed = {}) {
    Builder b("p");
    const ValueId sizes = b.Input("sizes", {ElementType::kInt32, {5}});
    b.AddNode("call_segment", {sizes},
              {{"segment", "p/1"},
               {"division", std::move(division)},
               {"sent", std::vector<int64_t>{0}},
               {"operands", std::move(names)},
               {"replies", int64_t{0}},
               {"summed", std::move(summed)}});
    return b.status();
  };
  EXPECT_OK(build({0}, "call/v3"));
  EXPECT_THAT(build({3}, "call/v3"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("must lie in [0, 2], got 3")));
  EXPECT_THAT(build({0, 0}, "call/v3"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'division' must have an entry for each")));
  EXPECT_THAT(build({0}, "call/v3;call/v4"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("each of 1 operands, got 2 names")));
  EXPECT_THAT(build({0}, "call/v3", {1}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'summed' must have an entry for each of 0")));
}

TEST(DividingRunnerTest, AsksThoseWithRows) {
  for (const bool skip_idle : {false, true}) {
    // Worker 0 is asked even without rows; worker 2 has none either.
    Recorder recorder({{1}, {0, 3}, {4}, {2}}, skip_idle, 1);
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y, RunCall(recorder));
    EXPECT_TRUE(TensorEqual(y[0], NumberedRows(6)));
    if (skip_idle) {
      EXPECT_THAT(recorder.called, ElementsAre(0, 1, 3));
    } else {
      EXPECT_THAT(recorder.called, ElementsAre(0, 1, 2, 3));
    }
  }
}

// Slices of an expert are asked the same; what they send is added where each
// has a part of a sum, and taken once where each has the whole.
TEST(DividingRunnerTest, AddsSlices) {
  for (const bool summed : {false, true}) {
    Recorder recorder({{1}, {0, 3}, {4}, {2}}, /*skip_idle=*/true, 1,
                      /*slices=*/3);
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                         RunCall(recorder, summed));
    Tensor expected = NumberedRows(6).Clone();
    for (float& element : expected.span<float>()) element *= summed ? 3 : 1;
    EXPECT_TRUE(TensorEqual(y[0], expected));
    EXPECT_THAT(recorder.called, ElementsAre(0, 1, 2, 3, 4, 5, 9, 10, 11));
  }
}

TEST(DividingRunnerTest, RefusesWrongNumbersOfReplies) {
  for (const int replies : {0, 2}) {
    Recorder recorder({{0, 1}, {2, 3, 4}}, false, replies);
    EXPECT_THAT(
        RunCall(recorder),
        StatusIs(absl::StatusCode::kInternal,
                 HasSubstr(absl::StrCat(
                     "worker 0 must send 1 replies to p/1, got ", replies))));
  }
}

}  // namespace
}  // namespace gshard
