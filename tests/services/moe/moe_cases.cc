#include "tests/services/moe/moe_cases.h"

#include "services/moe/graph_ops.h"

namespace gshard {
namespace {

constexpr int64_t kTokens = 9;
constexpr int64_t kExperts = 4;

Tensor Valid() { return Tensor::Ints({kTokens}, {1, 1, 0, 1, 1, 1, 1, 0, 1}); }

// Logits whose best two are well apart from each other and from the rest, so
// that a small step changes no choice.
Tensor DistinctLogits() {
  Tensor logits = RandomTensor({kTokens, kExperts}, 3, 0.1f);
  for (int64_t t = 0; t < kTokens; ++t) {
    float* row = logits.f32() + t * kExperts;
    row[RandomBelow(4, t, kExperts)] += 1.2f;
    row[RandomBelow(5, t, kExperts)] += 0.7f;
    for (int64_t e = 0; e < kExperts; ++e) row[e] += 0.25f * (e % 3);
  }
  return logits;
}

// The results are weights and, if there are losses, balance loss and z-loss.
OpCase GatingCase(std::string name, const GatingOptions& options) {
  return {.op = "top2_gating",
          .name = std::move(name),
          .inputs = {DistinctLogits(), Valid(), KeyTensor(17)},
          .build =
              [options](Builder& b, const std::vector<ValueId>& x) {
                const GateValues gate =
                    GateTokens(b, x[0], x[1], x[2], options, 3);
                std::vector<ValueId> results = {gate.weight};
                if (options.losses) {
                  results.push_back(gate.balance_loss);
                  results.push_back(gate.z_loss);
                }
                return results;
              },
          .differentiated =
              options.losses ? std::vector<int>{0} : std::vector<int>(),
          .step = 2e-3f};
}

std::vector<OpCase> GatingCases() {
  std::vector<OpCase> cases;
  for (const Normalize normalize :
       {Normalize::kBeforeCapacity, Normalize::kAfterCapacity,
        Normalize::kNever}) {
    for (const int64_t group_size : {0, 4}) {
      GatingOptions options;
      options.second_expert = SecondExpertPolicy::kAll;
      options.normalize = normalize;
      options.group_size = group_size;
      const std::string name =
          absl::StrCat("normalize ", static_cast<int>(normalize),
                       ", group size ", group_size);
      cases.push_back(GatingCase(name, options));
      options.drop = false;
      options.balance_both_choices = true;
      cases.push_back(GatingCase(name + ", dropless", options));
    }
  }
  GatingOptions serving;
  serving.second_expert = SecondExpertPolicy::kAll;
  serving.drop = false;
  serving.losses = false;
  cases.push_back(GatingCase("without losses", serving));
  // No gradient reaches the weights.
  OpCase losses = GatingCase("losses only", GatingOptions());
  losses.build = [](Builder& b, const std::vector<ValueId>& x) {
    const GateValues gate = GateTokens(b, x[0], x[1], x[2], GatingOptions(), 3);
    return std::vector<ValueId>{gate.balance_loss, gate.z_loss};
  };
  cases.push_back(losses);
  OpCase counts = GatingCase("indices and counts", GatingOptions());
  counts.build = [](Builder& b, const std::vector<ValueId>& x) {
    const GateValues gate = GateTokens(b, x[0], x[1], x[2], GatingOptions(), 3);
    return std::vector<ValueId>{gate.expert, gate.slot, gate.kept_count,
                                gate.overflow_count};
  };
  counts.differentiated = {};
  cases.push_back(counts);
  OpCase empty = GatingCase("no tokens", GatingOptions());
  empty.inputs[0] = RandomTensor({0, kExperts}, 1);
  empty.inputs[1] = Tensor::Ints({0}, {});
  cases.push_back(empty);
  OpCase gradient = GatingCase("by its operator", GatingOptions());
  gradient.op = "top2_gating_gradient";
  gradient.build = [](Builder& b, const std::vector<ValueId>& x) {
    const GateValues gate = GateTokens(b, x[0], x[1], x[2], GatingOptions(), 3);
    auto d_logits = AddGradients(
        b, b.Add(gate.balance_loss, b.ReduceSum(gate.weight, {0, 1})), {x[0]});
    return *d_logits;
  };
  gradient.differentiated = {};
  cases.push_back(gradient);
  return cases;
}

std::vector<OpCase> MovingCases() {
  // Tokens 0 and 3 have two rows, 1 and 4 one, 2 none.
  const Tensor row_source = Tensor::Ints({6}, {6, 0, 9, 1, 2, 7});
  const Tensor none = Tensor::Ints({0}, {});
  const Tensor expert = Tensor::Ints({5, 2}, {1, 2, 2, 0, -1, -1, 0, 2, 0, 1});
  const Tensor slot = Tensor::Ints({5, 2}, {0, 0, 1, -1, -1, -1, 0, 2, -1, 1});
  const auto both = [](std::string op, std::vector<Tensor> inputs,
                       Attributes attributes) {
    return OpCase{
        .op = op,
        .name = "both results",
        .inputs = std::move(inputs),
        .build = [op, attributes](Builder& b, const std::vector<ValueId>& x) {
          return b.AddNode(op, x, attributes);
        }};
  };
  return {
      both("plan_dispatch", {expert, slot},
           {{"experts", int64_t{3}},
            {"group_size", int64_t{0}},
            {"rows", Shape{Dim::Symbol("R")}}}),
      SimpleCase("dispatch", "some", {RandomTensor({5, 3}, 1), row_source}, {},
                 {0}),
      SimpleCase("dispatch", "no rows", {RandomTensor({5, 3}, 1), none}, {},
                 {0}),
      SimpleCase("dispatch_gradient", "some",
                 {RandomTensor({6, 3}, 1), row_source},
                 {{"shape", Shape{5, 3}}}, {}),
      SimpleCase("combine", "some",
                 {RandomTensor({6, 3}, 1), row_source, RandomTensor({5, 2}, 2)},
                 {}, {0, 2}),
      SimpleCase("combine", "no rows",
                 {RandomTensor({0, 3}, 1), none, RandomTensor({5, 2}, 2)}, {},
                 {0, 2}),
      both("combine_gradient",
           {RandomTensor({5, 3}, 3), RandomTensor({6, 3}, 1), row_source,
            RandomTensor({5, 2}, 2)},
           {}),
  };
}

// The whole layer: y, balance loss and z-loss as functions of x, gate weights
// and expert weights.
std::vector<OpCase> LayerCases() {
  const int64_t M = 5, H = 6;
  std::vector<OpCase> cases;
  for (const bool drop : {false, true}) {
    GatingOptions options;
    options.second_expert = SecondExpertPolicy::kAll;
    options.drop = drop;
    // The gate's weights are near the identity, so x has DistinctLogits().
    Tensor x = RandomTensor({kTokens, M}, 1);
    Tensor gate = RandomTensor({M, kExperts}, 2, 0.1f);
    const Tensor logits = DistinctLogits();
    for (int64_t i = 0; i < kExperts; ++i) {
      gate.f32()[i * kExperts + i] += 1.0f;
      for (int64_t t = 0; t < kTokens; ++t) {
        x.f32()[t * M + i] = logits.f32()[t * kExperts + i];
      }
    }
    cases.push_back(
        {.op = "combine",
         .name = drop ? "whole layer" : "whole layer, dropless",
         .inputs = {x, gate, RandomTensor({kExperts, M, H}, 3),
                    RandomTensor({kExperts, H, M}, 4), Valid(), KeyTensor(1)},
         .build =
             [options](Builder& b, const std::vector<ValueId>& v) {
               const GateValues gate =
                   GateTokens(b, b.Einsum("tm,me->te", v[0], v[1]), v[4], v[5],
                              options, 0);
               const DispatchValues rows =
                   DispatchTokens(b, v[0], gate, kExperts, options);
               // Squared rather than cut at 0, so that differences exist.
               const ValueId h = b.RaggedDot(rows.rows, v[2], rows.group_sizes);
               const ValueId y =
                   b.RaggedDot(b.Multiply(h, h), v[3], rows.group_sizes);
               return std::vector<ValueId>{
                   CombineRows(b, y, rows.row_source, gate.weight),
                   gate.balance_loss, gate.z_loss};
             },
         .differentiated = {0, 1, 2, 3},
         .step = 2e-3f,
         .tolerance = 1e-2f});
  }
  return cases;
}

}  // namespace

std::vector<OpCase> MoeCases() {
  RegisterMoeOps();
  std::vector<OpCase> all;
  for (const auto& cases : {GatingCases(), MovingCases(), LayerCases()}) {
    all.insert(all.end(), cases.begin(), cases.end());
  }
  return all;
}

}  // namespace gshard
