// The fields of ModelConfig with their ranges; see services/config/fields.h.

#ifndef SERVICES_CONFIG_MODEL_CONFIG_FIELDS_H_
#define SERVICES_CONFIG_MODEL_CONFIG_FIELDS_H_

#include <concepts>
#include <type_traits>

#include "proto/gshard/v1/model_config.pb.h"
#include "services/config/fields.h"
#include "services/config/model_config.h"

namespace gshard {

// T, const or not.
template <typename Struct, typename T>
concept Is = std::same_as<std::remove_const_t<Struct>, T>;

template <typename Visitor, Is<DropoutConfig> Struct>
void VisitFields(Visitor& visitor, Struct& dropout) {
  visitor.Real("input", dropout.input, Interval::Rate());
  visitor.Real("residual", dropout.residual, Interval::Rate());
  visitor.Real("attention", dropout.attention, Interval::Rate());
  visitor.Real("ffn", dropout.ffn, Interval::Rate());
  visitor.Real("moe", dropout.moe, Interval::Rate());
}

template <typename Visitor, Is<GateConfig> Struct>
void VisitFields(Visitor& visitor, Struct& gate) {
  const auto* policies = v1::GateConfig::SecondExpertPolicy_descriptor();
  visitor.Enum("training_policy", gate.training_policy, policies);
  visitor.Enum("evaluation_policy", gate.evaluation_policy, policies);
  visitor.Enum("normalize", gate.normalize,
               v1::GateConfig::Normalize_descriptor());
  visitor.Real("training_capacity_factor", gate.training_capacity_factor,
               Interval::Closed(0, 1000));
  visitor.Real("evaluation_capacity_factor", gate.evaluation_capacity_factor,
               Interval::Closed(0, 1000));
  visitor.Integer("min_capacity", gate.min_capacity, 0, 65536);
  visitor.Integer("group_size", gate.group_size, 0, 1 << 20);
  visitor.Bool("batch_prioritized", gate.batch_prioritized);
  visitor.Bool("literal", gate.literal);
  visitor.Real("balance_loss_coefficient", gate.balance_loss_coefficient,
               Interval::Closed(0, 100));
  visitor.Real("z_loss_coefficient", gate.z_loss_coefficient,
               Interval::Closed(0, 100));
}

template <typename Visitor, Is<ModelConfig> Struct>
void VisitFields(Visitor& visitor, Struct& model) {
  visitor.Text("name", model.name, TextKind::kName, Presence::kRequired);
  visitor.Integer("encoder_layers", model.encoder_layers, 1, kMaxLayers);
  visitor.Integer("decoder_layers", model.decoder_layers, 1, kMaxLayers);
  visitor.Integer("model_width", model.model_width, 1, kMaxWidth);
  visitor.Integer("ffn_width", model.ffn_width, 1, kMaxWidth);
  visitor.Integer("expert_width", model.expert_width, 1, kMaxWidth);
  visitor.Integer("heads", model.heads, 1, 1024);
  visitor.Integer("head_width", model.head_width, 1, 1024);
  visitor.Integer("experts", model.experts, 0, kMaxExperts);
  visitor.Integer("moe_period", model.moe_period, 1, 1000);
  visitor.Integer("moe_offset", model.moe_offset, 0, 999);
  visitor.Integer("source_vocabulary_size", model.source_vocabulary_size, 4,
                  1 << 24);
  visitor.Integer("target_vocabulary_size", model.target_vocabulary_size, 4,
                  1 << 24);
  visitor.Bool("shared_vocabulary", model.shared_vocabulary);
  visitor.Bool("tie_output", model.tie_output);
  visitor.Bool("scale_tied_logits", model.scale_tied_logits);
  visitor.Enum("positions", model.positions,
               v1::ModelConfig::Positions_descriptor());
  visitor.Integer("max_positions", model.max_positions, 1, 65536);
  visitor.Bool("expert_bias", model.expert_bias);
  const auto* types = v1::ModelConfig::ComputeType_descriptor();
  visitor.Enum("compute_type", model.compute_type, types);
  visitor.Enum("wire_type", model.wire_type, types);
  visitor.Group("dropout", model.dropout);
  visitor.Group("gate", model.gate);
}

}  // namespace gshard

#endif  // SERVICES_CONFIG_MODEL_CONFIG_FIELDS_H_
