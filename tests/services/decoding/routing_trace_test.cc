// Tests a sentence's routing trace against the reference gate, with logits of a
// program that computes all positions at once.

#include "services/decoding/routing_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "services/model/layers.h"
#include "services/segments/role_split.h"
#include "tests/reference/gating.h"
#include "tests/services/exchange/local_exchange.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_model.h"

namespace gshard {
namespace {

const Sentence& Source() {
  static const auto& source = *new Sentence{4, 9, 2, 7, 10, 3, 3, 5, 1};
  return source;
}
// Longer than a page of the cache.
Sentence Target() {
  Sentence target = {3};
  for (int i = 1; i < 20; ++i) target.push_back((5 * i) % 13);
  return target;
}

// Both stacks have two MoE layers.
ModelConfig Config() {
  ModelConfig config = TinyConfig();
  config.encoder_layers = config.decoder_layers = 4;
  return config;
}

RoutingTracer Tracer(const ModelConfig& config) {
  return RoutingTracer(*BuildEncodeProgram(config, true),
                       *BuildDecodeProgram(config, true));
}

// The gate's logits f32[T, E] in each MoE layer, encoder first, from the
// evaluation program, which has no cache.
std::vector<Tensor> GateLogits(const ModelConfig& config,
                               const TensorMap& parameters) {
  Program program = *BuildEvaluateProgram(config);
  program.outputs.clear();
  for (const Node* gate : program.NodesOf("top2_gating")) {
    program.outputs.emplace_back(absl::StrCat("logits/", gate->outputs[0]),
                                 gate->inputs[0]);
  }
  TensorMap inputs = TrainInputs(config, {{Source(), Target()}});
  const Executor executor(Pruned(program));
  auto logits = executor.Run(std::move(inputs), parameters);
  EXPECT_OK(logits);
  return *std::move(logits);
}

// Expects the reference gate's result for `logits`.
void ExpectGated(const LayerRouting& layer, const Tensor& logits,
                 const GatingOptions& options) {
  SCOPED_TRACE(layer.layer);
  const Routing gated =
      reference::Top2Gating(logits, Tensor(), options, GatingNoise{});
  ASSERT_EQ(static_cast<int64_t>(layer.tokens.size()), logits.dim(0));
  for (size_t t = 0; t < layer.tokens.size(); ++t) {
    SCOPED_TRACE(absl::StrCat("token ", t));
    ASSERT_EQ(layer.tokens[t].size(), 2u);
    for (size_t k = 0; k < 2; ++k) {
      const ExpertVisit& visit = layer.tokens[t][k];
      EXPECT_EQ(visit.expert, gated.expert.i32()[2 * t + k]);
      EXPECT_EQ(visit.overflowed, gated.slot.i32()[2 * t + k] < 0);
      EXPECT_NEAR(visit.weight, gated.weight.f32()[2 * t + k], 1e-5);
    }
  }
}

TEST(RoutingTraceTest, IsWhatTheReferenceOfTheGateSays) {
  const ModelConfig config = Config();
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const TensorMap parameters = TinyParameters(config, seed);
    ASSERT_OK_AND_ASSIGN(
        const RoutingTrace trace,
        Tracer(config).Trace(Source(), Target(), parameters, nullptr));
    ASSERT_EQ(trace.source.size(), 2u);
    ASSERT_EQ(trace.target.size(), 2u);
    EXPECT_EQ(trace.source[1].layer, "encoder.2.moe");
    EXPECT_EQ(trace.target[0].layer, "decoder.0.moe");
    const std::vector<Tensor> logits = GateLogits(config, parameters);
    ASSERT_EQ(logits.size(), 4u);
    const GatingOptions options = GateOptions(config, /*training=*/false);
    for (size_t i = 0; i < 2; ++i) {
      ExpectGated(trace.source[i], logits[i], options);
      ExpectGated(trace.target[i], logits[2 + i], options);
    }
  }
}

TEST(RoutingTraceTest, SaysWhoOverflowed) {
  ModelConfig config = Config();
  config.gate.evaluation_capacity_factor = 0.5;
  const TensorMap parameters = TinyParameters(config, 3);
  ASSERT_OK_AND_ASSIGN(const RoutingTrace trace,
                       Tracer(config).Trace(Source(), {}, parameters, nullptr));
  EXPECT_TRUE(trace.target.empty());
  ExpectGated(trace.source[0], GateLogits(config, parameters)[0],
              GateOptions(config, /*training=*/false));
  int overflowed = 0;
  for (const std::vector<ExpertVisit>& visits : trace.source[0].tokens) {
    for (const ExpertVisit& visit : visits) {
      if (!visit.overflowed) continue;
      ++overflowed;
      EXPECT_EQ(visit.weight, 0.0f);
    }
  }
  EXPECT_GT(overflowed, 0);
}

// Reports all rows of each call as lost.
class Forgetful final : public SegmentRunner {
 public:
  explicit Forgetful(SegmentRunner* segments) : segments_(segments) {}

  absl::StatusOr<std::vector<Tensor>> Call(
      const Node& node, absl::Span<const Tensor> operands) override {
    auto results = segments_->Call(node, operands);
    if (results.ok()) lost_ = {{0, (*results)[0].dim(0)}};
    return results;
  }
  absl::Span<const RowRange> lost_rows() const override { return lost_; }

 private:
  SegmentRunner* const segments_;
  std::vector<RowRange> lost_;
};

TEST(RoutingTraceTest, IsTheSameWithTheExpertsElsewhere) {
  const ModelConfig config = Config();
  const TensorMap parameters = TinyParameters(config, 2);
  ASSERT_OK_AND_ASSIGN(const RoutingTrace whole,
                       Tracer(config).Trace(Source(), {}, parameters, nullptr));
  ASSERT_OK_AND_ASSIGN(const RolePrograms encode,
                       SplitRoles(*BuildEncodeProgram(config, true)));
  ASSERT_OK_AND_ASSIGN(const RolePrograms decode,
                       SplitRoles(*BuildDecodeProgram(config, true)));
  const RoutingTracer tracer(encode.router, decode.router);
  const ExpertsOfWorkers all = {{0, 1, 2, 3}};
  LocalSegments segments(encode.segments, all, {parameters});
  ASSERT_OK_AND_ASSIGN(const RoutingTrace split,
                       tracer.Trace(Source(), {}, parameters, &segments));
  Forgetful lossy(&segments);
  ASSERT_OK_AND_ASSIGN(const RoutingTrace lost,
                       tracer.Trace(Source(), {}, parameters, &lossy));
  for (size_t t = 0; t < Source().size(); ++t) {
    for (size_t k = 0; k < 2; ++k) {
      const ExpertVisit& visit = whole.source[0].tokens[t][k];
      EXPECT_EQ(split.source[0].tokens[t][k].expert, visit.expert);
      EXPECT_EQ(split.source[0].tokens[t][k].weight, visit.weight);
      // Lost choices keep their expert and have weight 0.
      EXPECT_EQ(lost.source[0].tokens[t][k].expert, visit.expert);
      EXPECT_EQ(lost.source[0].tokens[t][k].weight, 0.0f);
    }
  }
}

// No segment's runner stops a model without experts.
TEST(RoutingTraceTest, EndsSoonAfterItIsStopped) {
  ModelConfig config = Config();
  config.experts = 0;
  const TensorMap parameters = TinyParameters(config, 2);
  const RoutingTracer tracer = Tracer(config);
  int64_t asked = 0;
  const auto trace = [&](int64_t most) {
    asked = 0;
    return tracer
        .Trace(Source(), Target(), parameters, nullptr,
               [&] { return ++asked == most; })
        .status();
  };
  ASSERT_OK(trace(0));
  const int64_t all = asked;
  for (const int64_t most : {int64_t{1}, all / 100, all / 2, all}) {
    EXPECT_THAT(trace(most), StatusIs(absl::StatusCode::kCancelled,
                                      ::testing::HasSubstr("was cancelled")));
    EXPECT_EQ(asked, most);
  }
}

}  // namespace
}  // namespace gshard
