// The MoE layer: gating, dispatch to experts, combine.

#include "services/moe/graph_ops.h"
#include "services/moe/missing_experts.h"
#include "tests/services/partition/random/random_case.h"

namespace gshard {
namespace {

GatingOptions RandomOptions(CaseWriter& c, int64_t group_size) {
  GatingOptions options;
  options.second_expert = c.Pick<SecondExpertPolicy>(
      {SecondExpertPolicy::kRandom, SecondExpertPolicy::kAll,
       SecondExpertPolicy::kSampling});
  options.normalize =
      c.Pick<Normalize>({Normalize::kBeforeCapacity, Normalize::kAfterCapacity,
                         Normalize::kNever});
  options.order =
      c.Pick<SlotOrder>({SlotOrder::kToken, SlotOrder::kToken,
                         SlotOrder::kBatchPriority, SlotOrder::kPosition});
  options.drop = c.Chance(0.7);
  options.capacity_factor = c.Pick<double>({0.5, 1.0, 2.0});
  options.group_size = group_size;
  options.balance_both_choices = c.Chance(0.3);
  return options;
}

struct Gated {
  Dim tokens = 0;
  int64_t experts = 0;
  GatingOptions options;
  GateValues gate;
};

Gated Gate(CaseWriter& c) {
  RegisterMoeOps();
  Gated gated;
  const int64_t group = c.Chance(0.2) ? 0 : c.Between(1, 4);
  const int64_t devices = c.mesh().NumDevices();
  gated.tokens =
      c.Chance(0.3) ? c.NewSymbol("T", std::max<int64_t>(group, 1))
      : c.Chance(0.5)
          ? Dim(devices * std::max<int64_t>(group, 1) * c.Between(1, 2))
          : Dim(c.Between(1, 20));
  gated.experts = c.Between(2, 9);
  gated.options = RandomOptions(c, group);
  const ValueId logits = c.Float({gated.tokens, gated.experts}, 2.0f);
  const ValueId valid = c.Ints({gated.tokens}, 0, 3);
  const ValueId key = c.Key();
  gated.gate = GateTokens(c.b, logits, valid, key, gated.options, c.Below(5));
  return gated;
}

void Gating(CaseWriter& c) {
  const Gated gated = Gate(c);
  c.Result(gated.gate.weight);
  c.Result(gated.gate.expert);
  c.Result(gated.gate.slot);
  c.Result(gated.gate.kept_count);
  c.Result(gated.gate.overflow_count);
  if (c.Chance(0.7)) c.Result(gated.gate.balance_loss);
  if (c.Chance(0.7)) c.Result(gated.gate.z_loss);
}

void MoeLayer(CaseWriter& c) {
  const Gated gated = Gate(c);
  const Dim width = c.Between(1, 6), hidden = c.Between(1, 6);
  const ValueId x = c.Float({gated.tokens, width});
  const DispatchValues sent =
      DispatchTokens(c.b, x, gated.gate, gated.experts, gated.options);
  ValueId rows = c.Annotated(sent.rows);
  const ValueId wi = c.Float({gated.experts, width, hidden});
  rows = c.b.Relu(c.b.RaggedDot(rows, wi, sent.group_sizes));
  const ValueId wo = c.Float({gated.experts, hidden, width});
  rows = c.b.RaggedDot(rows, wo, sent.group_sizes);
  if (c.Chance(0.3)) rows = c.Annotated(rows);
  ValueId weight = gated.gate.weight;
  if (c.Chance(0.3)) {
    const RenormalizedValues renormalized =
        RenormalizeWeights(c.b, rows, sent.row_source, weight);
    weight = renormalized.weight;
    c.Result(renormalized.lost);
  }
  c.Result(CombineRows(c.b, rows, sent.row_source, weight));
  if (c.Chance(0.5)) c.Result(gated.gate.balance_loss);
}

}  // namespace

std::vector<Family> GatingFamilies() {
  return {{"gating", 300, Gating}, {"moe_layer", 500, MoeLayer}};
}

}  // namespace gshard
