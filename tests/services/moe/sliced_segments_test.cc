// Tests the MoE layer with routers and expert workers, where several workers
// share an expert's inner width, against the unpartitioned layer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/ops/concat.h"
#include "services/segments/role_split.h"
#include "tests/services/exchange/local_exchange.h"
#include "tests/services/moe/partition_layer.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

MoeLayer SlicedLayer() {
  MoeLayer layer;
  layer.T = 60;
  layer.H = 10;
  layer.tokens = "router";
  layer.experts = "expert";
  layer.width = "model";
  return layer;
}

// The dimension of each expert parameter that is sliced.
const std::map<std::string, int>& SlicedDims() {
  static const auto* const dims =
      new std::map<std::string, int>{{"wi", 2}, {"bi", 1}, {"wo", 1}};
  return *dims;
}

// A worker's share: the slice of its experts' rows.
Tensor ShareOf(const Tensor& whole, const std::vector<int32_t>& experts,
               int dim, int slice, int slices) {
  std::vector<Tensor> rows = {whole.Rows(0, 0)};
  for (const int32_t e : experts) rows.push_back(whole.Rows(e, e + 1));
  const int64_t width = whole.dim(dim) / slices;
  return Slice(Concat(rows, 0), dim, slice * width, (slice + 1) * width);
}

// Copies a worker's gradient into that of the whole parameter.
void CopyShare(const Tensor& share, const std::vector<int32_t>& experts,
               int dim, int slice, Tensor& whole) {
  int64_t outer = 1, inner = 1;
  for (int d = 1; d < dim; ++d) outer *= whole.dim(d);
  for (int d = dim + 1; d < whole.rank(); ++d) inner *= whole.dim(d);
  const int64_t run = share.dim(dim) * inner;
  for (size_t i = 0; i < experts.size(); ++i) {
    for (int64_t o = 0; o < outer; ++o) {
      const float* from = share.f32() + (i * outer + o) * run;
      float* to = whole.f32() +
                  (experts[i] * outer + o) * whole.dim(dim) * inner +
                  slice * run;
      std::copy_n(from, run, to);
    }
  }
}

void CheckSlices(const MoeLayer& layer, int slices,
                 const ExpertsOfWorkers& workers) {
  ASSERT_OK_AND_ASSIGN(const Program program, MoeLayerProgram(layer));
  ASSERT_OK_AND_ASSIGN(const RolePrograms roles, SplitRoles(program, slices));
  EXPECT_EQ(roles.segments.size(), 2);
  const TensorMap inputs = MoeLayerInputs(layer);
  const TensorMap parameters = MoeLayerParameters(layer);
  std::vector<TensorMap> shares;
  for (const std::vector<int32_t>& experts : workers) {
    for (int slice = 0; slice < slices; ++slice) {
      TensorMap& share = shares.emplace_back();
      for (const char* name : {"wi", "wo"}) {
        share[name] = ShareOf(parameters.at(name), experts,
                              SlicedDims().at(name), slice, slices);
      }
    }
  }
  TensorMap outputs;
  LocalSegments segments(
      roles.segments, workers, shares,
      [&](int w, const std::string& name, Tensor gradient) {
        Tensor& whole = outputs["gradient/" + name];
        if (whole.empty()) {
          whole =
              Tensor::Zeros(ElementType::kFloat32, parameters.at(name).dims());
        }
        CopyShare(gradient, workers[w / slices], SlicedDims().at(name),
                  w % slices, whole);
      },
      slices);
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> results,
      Executor(roles.router)
          .Run(inputs, parameters,
               {.context = RunContext().With<SegmentRunner>(&segments)}));
  for (size_t i = 0; i < results.size(); ++i) {
    outputs[roles.router.outputs[i].first] = results[i];
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> whole,
                       Executor(program).Run(inputs, parameters));
  ASSERT_EQ(outputs.size(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) {
    const std::string& name = program.outputs[i].first;
    ASSERT_TRUE(outputs.contains(name)) << name;
    if (whole[i].type() == ElementType::kInt32) {
      EXPECT_TRUE(TensorEqual(outputs[name], whole[i])) << name;
    } else if (slices == 1) {
      EXPECT_TRUE(TensorEqual(outputs[name], whole[i])) << name;
    } else {
      EXPECT_TRUE(TensorNear(outputs[name], whole[i], 1e-5f)) << name;
    }
  }
}

TEST(SlicedSegmentsTest, ForwardAndBackwardEqualTheLayerInOnePiece) {
  for (const int slices : {1, 2, 5}) {
    for (const double dropout : {0.0, 0.2}) {
      for (const ExpertsOfWorkers& workers :
           {ExpertsOfWorkers{{0, 1, 2, 3, 4, 5, 6, 7}},
            ExpertsOfWorkers{{0, 1, 2}, {3, 4, 5, 6, 7}},
            ExpertsOfWorkers{{1, 3, 7}, {}, {0, 2, 4, 5, 6}}}) {
        SCOPED_TRACE(absl::StrCat(slices, " slices, ", workers.size(),
                                  " workers, dropout ", dropout));
        MoeLayer layer = SlicedLayer();
        layer.dropout = dropout;
        CheckSlices(layer, slices, workers);
      }
    }
  }
}

TEST(SlicedSegmentsTest, SegmentsHoldSlices) {
  ASSERT_OK_AND_ASSIGN(const Program program, MoeLayerProgram(SlicedLayer()));
  ASSERT_OK_AND_ASSIGN(const RolePrograms roles, SplitRoles(program, 5));
  const std::map<std::string, Shape> shapes =
      SegmentHost(roles.segments).ParameterShapes();
  const Dim E = Dim::Symbol("E");
  EXPECT_EQ(shapes.at("wi"), (Shape{E, 6, 2}));
  EXPECT_EQ(shapes.at("wo"), (Shape{E, 2, 6}));
  // Forward and backward calls return sums over the width.
  for (const Node* call : roles.router.NodesOf("call_segment")) {
    EXPECT_THAT(GetSegmentCall(*call).summed, ::testing::ElementsAre(true));
  }
}

TEST(SlicedSegmentsTest, RefusesWhatWorkersCannotDoAlone) {
  MoeLayer layer = SlicedLayer();
  ASSERT_OK_AND_ASSIGN(const Program program, MoeLayerProgram(layer));
  EXPECT_THAT(SplitRoles(program, 3),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("in equal parts along model")));
  // A bias is added to the full sum, which no worker has.
  layer.bias = true;
  ASSERT_OK_AND_ASSIGN(const Program biased, MoeLayerProgram(layer));
  EXPECT_OK(SplitRoles(biased, 1).status());
  EXPECT_THAT(SplitRoles(biased, 2),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("'all_reduce' between expert workers")));
}

}  // namespace
}  // namespace gshard
