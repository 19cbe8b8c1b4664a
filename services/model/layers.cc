#include "services/model/layers.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "services/model/parameters.h"
#include "services/moe/missing_experts.h"
#include "services/sharding/annotation.h"

namespace gshard {

GatingOptions GateOptions(const ModelConfig& config, bool training) {
  const GateConfig& gate = config.gate;
  const double factor = training ? gate.training_capacity_factor
                                 : gate.evaluation_capacity_factor;
  GatingOptions options;
  options.second_expert =
      training ? gate.training_policy : gate.evaluation_policy;
  options.normalize = gate.normalize == GateNormalize::kBeforeDropping
                          ? Normalize::kBeforeCapacity
                          : Normalize::kAfterCapacity;
  options.order =
      gate.batch_prioritized ? SlotOrder::kBatchPriority : SlotOrder::kToken;
  options.literal =
      gate.literal && options.second_expert == SecondExpertPolicy::kRandom;
  options.drop = factor > 0.0;
  options.capacity_factor = factor > 0.0 ? factor : 1.0;
  options.min_capacity = std::max<int64_t>(gate.min_capacity, 1);
  options.group_size = gate.group_size;
  options.losses = training;
  return options;
}

ElementType WeightTypeFor(ComputeType type) {
  return type == ComputeType::kBFloat16 ? ElementType::kBFloat16
         : type == ComputeType::kInt8   ? ElementType::kInt8
                                        : ElementType::kFloat32;
}

namespace {

// Products with int8 weights quantize the other operand themselves.
ElementType FactorTypeFor(ComputeType type) {
  return type == ComputeType::kInt8 ? ElementType::kFloat32
                                    : WeightTypeFor(type);
}

}  // namespace

Layers::Layers(Builder& builder, const ModelConfig& config, bool training,
               ValueId key)
    : b_(builder),
      config_(config),
      training_(training),
      key_(key),
      factor_type_(FactorTypeFor(config.compute_type)),
      weight_type_(WeightTypeFor(config.compute_type)),
      wire_type_(FactorTypeFor(config.wire_type)) {}

ValueId Layers::CastToComputeType(ValueId x) {
  const auto [found, added] = factors_.emplace(x, kNoValue);
  if (added) found->second = b_.Cast(x, factor_type_);
  return found->second;
}

ValueId Layers::Weight(const std::string& name, Shape shape) {
  return b_.Parameter(name, std::move(shape), weight_type_);
}

ValueId Layers::Linear(absl::string_view equation, ValueId x, ValueId weight) {
  return b_.Einsum(equation, CastToComputeType(x), weight);
}

// The hidden activation of a layer, rounded before it is kept for the gradient.
ValueId Layers::Activate(ValueId h) { return b_.Relu(CastToComputeType(h)); }

ValueId Layers::Norm(const std::string& name, ValueId x) {
  return b_.RmsNorm(x, b_.Parameter(name, {config_.model_width}), kNormEpsilon);
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
  const Shape shape = {config_.model_width, config_.heads, config_.head_width};
  return Linear("blm,mnd->blnd", x, Weight(name + ".query", shape));
}

Layers::KeyValue Layers::KeysValues(const std::string& name, ValueId x) {
  const Shape shape = {config_.model_width, config_.heads, config_.head_width};
  return {Linear("blm,mnd->blnd", x, Weight(name + ".key", shape)),
          Linear("blm,mnd->blnd", x, Weight(name + ".value", shape))};
}

ValueId Layers::Attend(ValueId query, const KeyValue& memory, ValueId lengths,
                       bool causal) {
  AttentionAttributes attributes;
  attributes.causal = causal;
  attributes.scale = 1.0 / std::sqrt(static_cast<double>(config_.head_width));
  if (training_) {
    attributes.dropout_rate = config_.dropout.attention;
    attributes.salt = next_salt_++;
    attributes.keep_statistics = true;
  }
  return b_.Attention(query, memory.key, memory.value, lengths, key_,
                      attributes);
}

ValueId Layers::AttendPages(ValueId query, const KeyValue& cache, ValueId pages,
                            ValueId lengths) {
  const double scale = 1.0 / std::sqrt(static_cast<double>(config_.head_width));
  return b_.AddOne("paged_attention",
                   {query, cache.key, cache.value, pages, lengths},
                   {{"scale", scale}});
}

ValueId Layers::AddHeads(const std::string& name, ValueId residual,
                         ValueId heads) {
  const ValueId output =
      Weight(name + ".output",
             {config_.heads, config_.head_width, config_.model_width});
  const ValueId y = Linear("blnd,ndm->blm", heads, output);
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
  ValueId h = Activate(Linear("blm,mh->blh", x, Weight(name + ".wi", {M, H})));
  if (training_ && config_.dropout.ffn > 0.0) {
    h = b_.Cast(h, ElementType::kFloat32);
  }
  return Linear("blh,hm->blm", Dropout(h, config_.dropout.ffn),
                Weight(name + ".wo", {H, M}));
}

ValueId Layers::ExpertParameter(const std::string& name, Shape shape,
                                ElementType type) {
  return Split(b_, b_.Parameter(name, std::move(shape), type), 0, "expert");
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
  const ValueId logits = b_.Einsum(
      "tm,me->te", tokens, Replicate(b_, b_.Parameter(name + ".gate", {M, E})));
  const GateValues gate = GateTokens(b_, logits, b_.Reshape(valid, {T}), key_,
                                     options, next_salt_++);
  moe_reports_.push_back({name, gate});

  const DispatchValues dispatched =
      DispatchTokens(b_, tokens, gate, E, options, wire_type_);
  const ValueId sizes = dispatched.group_sizes;
  ValueId rows = Split(b_, dispatched.rows, 0, "expert");
  if (wire_type_ != ElementType::kFloat32) {
    // Even if they have that type: on the way back the gradients are rounded
    // here.
    rows = b_.AddOne("cast", {rows},
                     {{"type", std::string(ElementTypeName(factor_type_))}});
  }
  const auto product = [&](ValueId x, const std::string& weight, Shape dims) {
    return b_.RaggedDot(CastToComputeType(x),
                        ExpertParameter(weight, std::move(dims), weight_type_),
                        sizes);
  };
  const auto bias = [&](ValueId x, const std::string& vector, const Dim& dim) {
    if (!config_.expert_bias) return x;
    return b_.RaggedBiasAdd(
        x, ExpertParameter(vector, {E, dim}, ElementType::kFloat32), sizes);
  };
  ValueId h =
      Activate(bias(product(rows, name + ".wi", {E, M, H}), name + ".bi", H));
  if (training_ && config_.dropout.moe > 0.0) {
    h = b_.AddOne(
        "dropout_rows",
        {b_.Cast(h, ElementType::kFloat32), dispatched.row_source, key_},
        {{"rate", config_.dropout.moe}, {"salt", next_salt_++}});
  }
  ValueId y = bias(product(h, name + ".wo", {E, H, M}), name + ".bo", M);
  if (wire_type_ != ElementType::kFloat32) {
    y = Split(b_, b_.Cast(y, wire_type_), 0, "expert");
  }
  ValueId weight = gate.weight;
  if (!training_) {
    // Serving continues without lost experts.
    const RenormalizedValues renormalized =
        RenormalizeWeights(b_, y, dispatched.row_source, weight);
    weight = renormalized.weight;
    moe_reports_.back().lost = renormalized.lost;
  }
  moe_reports_.back().weight = weight;
  return b_.Reshape(CombineRows(b_, y, dispatched.row_source, weight), shape);
}

void Layers::OutputMoeReports() {
  for (const MoeReport& report : moe_reports_) {
    b_.Output("kept/" + report.layer, report.gate.kept_count);
    b_.Output("overflow/" + report.layer, report.gate.overflow_count);
    if (training_) {
      b_.Output("balance_loss/" + report.layer, report.gate.balance_loss);
      const ValueId log_sum = report.gate.log_sum;
      b_.Output("gate_log_sum_square/" + report.layer,
                b_.ReduceMax(b_.Multiply(log_sum, log_sum), {0}));
    } else {
      b_.Output("lost/" + report.layer, report.lost);
    }
  }
}

void Layers::OutputRouting() {
  for (const MoeReport& report : moe_reports_) {
    b_.Output("expert/" + report.layer, report.gate.expert);
    b_.Output("slot/" + report.layer, report.gate.slot);
    b_.Output("weight/" + report.layer, report.weight);
  }
}

}  // namespace gshard
