#include "services/model/layers.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "services/model/parameters.h"
#include "services/moe/settle_choices.h"
#include "services/sharding/annotation.h"

namespace gshard {

GatingOptions GateOptions(const ModelConfig& config, bool training) {
  const GateConfig& gate = config.gate;
  const SecondExpertPolicy policy =
      training ? gate.training_policy : gate.evaluation_policy;
  const double factor = training ? gate.training_capacity_factor
                                 : gate.evaluation_capacity_factor;
  GatingOptions options;
  switch (policy) {
    case SecondExpertPolicy::kRandom:
      options.second_expert = SecondExpert::kRandom;
      break;
    case SecondExpertPolicy::kAll:
      options.second_expert = SecondExpert::kAll;
      break;
    case SecondExpertPolicy::kSampling:
      options.second_expert = SecondExpert::kSampling;
      break;
  }
  options.normalize = gate.normalize == GateNormalize::kBeforeDropping
                          ? Normalize::kBeforeCapacity
                          : Normalize::kAfterCapacity;
  options.order = gate.batch_prioritized ? SlotOrder::kBatchPriority
                                         : SlotOrder::kToken;
  options.literal = gate.literal && policy == SecondExpertPolicy::kRandom;
  options.drop = factor > 0.0;
  options.capacity_factor = factor > 0.0 ? factor : 1.0;
  options.min_capacity = std::max<int64_t>(gate.min_capacity, 1);
  options.group_size = gate.group_size;
  options.losses = training;
  return options;
}

Layers::Layers(Builder& builder, const ModelConfig& config, bool training,
               ValueId key)
    : b_(builder), config_(config), training_(training), key_(key) {}

ValueId Layers::Norm(const std::string& name, ValueId x) {
  return b_.RmsNorm(x, b_.Parameter(name, {config_.model_width}),
                    kNormEpsilon);
}

ValueId Layers::Dropout(ValueId x, double rate) {
  return training_ ? b_.Dropout(x, key_, rate, next_salt_++) : x;
}

ValueId Layers::Embed(ValueId table, ValueId ids) {
  return b_.Scale(b_.Embedding(table, ids),
                  std::sqrt(static_cast<double>(config_.model_width)));
}

ValueId Layers::AddPositions(ValueId x, ValueId positions,
                             absl::string_view side) {
  const int64_t M = config_.model_width;
  if (config_.positions == Positions::kSinusoidal) {
    return b_.Add(x, b_.SinusoidalPositions(positions, M));
  }
  const ValueId table = b_.Parameter(absl::StrCat(side, "_positions"),
                                     {config_.max_positions, M});
  return b_.Add(x, Embed(table, positions));
}

ValueId Layers::Query(const std::string& name, ValueId x) {
  const Shape shape = {config_.model_width, config_.heads,
                       config_.head_width};
  return b_.Einsum("blm,mnd->blnd", x, b_.Parameter(name + ".query", shape));
}

Layers::KeyValue Layers::KeysValues(const std::string& name, ValueId x) {
  const Shape shape = {config_.model_width, config_.heads,
                       config_.head_width};
  return {
      b_.Einsum("blm,mnd->blnd", x, b_.Parameter(name + ".key", shape)),
      b_.Einsum("blm,mnd->blnd", x, b_.Parameter(name + ".value", shape))};
}

ValueId Layers::Attend(ValueId query, const KeyValue& memory, ValueId lengths,
                       bool causal) {
  AttentionAttributes attributes;
  attributes.causal = causal;
  attributes.scale = 1.0 / std::sqrt(static_cast<double>(config_.head_width));
  if (training_) {
    attributes.dropout_rate = config_.dropout.attention;
    attributes.salt = next_salt_++;
    attributes.keep_weights = true;
  }
  return b_.Attention(query, memory.key, memory.value, lengths, key_,
                      attributes);
}

ValueId Layers::AddHeads(const std::string& name, ValueId residual,
                         ValueId heads) {
  const ValueId output = b_.Parameter(
      name + ".output",
      {config_.heads, config_.head_width, config_.model_width});
  const ValueId y = b_.Einsum("blnd,ndm->blm", heads, output);
  return b_.Add(residual, Dropout(y, config_.dropout.residual));
}

ValueId Layers::FeedForward(absl::string_view stack, int64_t layer, ValueId x,
                            ValueId valid) {
  const bool moe = config_.IsMoeLayer(layer);
  const std::string name = LayerName(stack, layer, moe ? "moe" : "ffn");
  const ValueId normed = Norm(name + ".norm", x);
  const ValueId y = moe ? MoeFeedForward(name, normed, valid)
                        : DenseFeedForward(name, normed);
  return b_.Add(x, Dropout(y, config_.dropout.residual));
}

ValueId Layers::DenseFeedForward(const std::string& name, ValueId x) {
  const Dim M = config_.model_width, H = config_.ffn_width;
  const ValueId h = b_.Relu(
      b_.Einsum("blm,mh->blh", x, b_.Parameter(name + ".wi", {M, H})));
  return b_.Einsum("blh,hm->blm", Dropout(h, config_.dropout.ffn),
                   b_.Parameter(name + ".wo", {H, M}));
}

ValueId Layers::ExpertParameter(const std::string& name, Shape shape) {
  return Split(b_, b_.Parameter(name, std::move(shape)), 0, "expert");
}

// Algorithm 2 of the paper, with indices in place of one-hot matrices.
ValueId Layers::MoeFeedForward(const std::string& name, ValueId x,
                               ValueId valid) {
  const Dim M = config_.model_width, H = config_.expert_width;
  const int64_t E = config_.experts;
  const Shape shape = b_.type(x).shape;
  if (shape.size() != 3) return kNoValue;  // the builder holds the error
  const Dim T = shape[0] * shape[1];
  const ValueId tokens = b_.Reshape(x, {T, M});
  const GatingOptions options = GateOptions(config_, training_);
  const ValueId logits =
      b_.Einsum("tm,me->te", tokens,
                Replicate(b_, b_.Parameter(name + ".gate", {M, E})));
  const GateValues gate = GateTokens(b_, logits, b_.Reshape(valid, {T}), key_,
                                     options, next_salt_++);
  moe_reports_.push_back({name, gate});

  const DispatchValues dispatched =
      DispatchTokens(b_, tokens, gate, E, options);
  const ValueId sizes = dispatched.group_sizes;
  const ValueId rows = Split(b_, dispatched.rows, 0, "expert");
  ValueId h = b_.RaggedDot(rows, ExpertParameter(name + ".wi", {E, M, H}),
                           sizes);
  if (config_.expert_bias) {
    h = b_.RaggedBiasAdd(h, ExpertParameter(name + ".bi", {E, H}), sizes);
  }
  h = b_.Relu(h);
  if (training_ && config_.dropout.moe > 0.0) {
    h = b_.AddOne("dropout_rows", {h, dispatched.row_source, key_},
                  {{"rate", config_.dropout.moe}, {"salt", next_salt_++}});
  }
  ValueId y =
      b_.RaggedDot(h, ExpertParameter(name + ".wo", {E, H, M}), sizes);
  if (config_.expert_bias) {
    y = b_.RaggedBiasAdd(y, ExpertParameter(name + ".bo", {E, M}), sizes);
  }
  ValueId weight = gate.weight;
  if (!training_) {
    // Serving goes on without experts that are lost.
    const SettledValues settled =
        SettleRows(b_, y, dispatched.row_source, weight);
    weight = settled.weight;
    moe_reports_.back().lost = settled.lost;
  }
  return b_.Reshape(CombineRows(b_, y, dispatched.row_source, weight), shape);
}

void Layers::OutputMoeReports() {
  for (const MoeReport& report : moe_reports_) {
    b_.Output("kept/" + report.layer, report.gate.kept_count);
    b_.Output("overflow/" + report.layer, report.gate.overflow_count);
    if (training_) {
      b_.Output("balance_loss/" + report.layer, report.gate.balance_loss);
    } else {
      b_.Output("lost/" + report.layer, report.lost);
    }
  }
}

}  // namespace gshard
