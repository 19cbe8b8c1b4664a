// Sublayers of the Transformer, as functions that add nodes to a program.
//
// Each takes the residual stream x [..., M] and returns it with the sublayer
// added: x + Dropout(Sublayer(RmsNorm(x))).

#ifndef SERVICES_MODEL_LAYERS_H_
#define SERVICES_MODEL_LAYERS_H_

#include <map>
#include <string>
#include <vector>

#include "services/config/model_config.h"
#include "services/graph/builder.h"
#include "services/moe/graph_ops.h"

namespace gshard {

inline constexpr double kNormEpsilon = 1e-6;

// Values that an MoE layer reports.
struct MoeReport {
  std::string layer;
  GateValues gate;
  ValueId weight = kNoValue;  // f32[T, 2], the combine weights
  ValueId lost = kNoValue;    // i32[T]; only when serving
};

// Builds the sublayers of one program.
class Layers {
 public:
  // With `training`, dropout and the gate's training policy are enabled, and
  // `key`, i64[], seeds their random numbers. The references are not owned.
  Layers(Builder& builder, const ModelConfig& config, bool training,
         ValueId key);

  struct KeyValue {
    ValueId key = kNoValue;    // [B, L, N, D]
    ValueId value = kNoValue;  // [B, L, N, D]
  };

  // Casts an operand of a matrix product, or its weight, to the config's
  // compute_type. The same value always gives the same cast. Product is the
  // linear layer of an einsum.
  ValueId CastToComputeType(ValueId x);
  ValueId Weight(const std::string& name, Shape shape);
  ValueId Linear(absl::string_view equation, ValueId x, ValueId weight);

  ValueId Norm(const std::string& name, ValueId x);
  // Dropout at one of the config's rates; identity when serving.
  ValueId Dropout(ValueId x, double rate);
  // Table rows times sqrt(M).
  ValueId Embed(ValueId table, ValueId ids);
  // x plus position encodings for positions i32[L] or i32[B, L].
  ValueId AddPositions(ValueId x, ValueId positions, absl::string_view side);

  ValueId Query(const std::string& name, ValueId x);  // [B, L, N, D]
  KeyValue KeysValues(const std::string& name, ValueId x);
  // Heads [B, L, N, D] back to [B, L, M], added to the residual.
  ValueId AddHeads(const std::string& name, ValueId residual, ValueId heads);
  ValueId Attend(ValueId query, const KeyValue& memory, ValueId lengths,
                 bool causal);
  // One query per row, on pages of a cache [S, P, N, D]; see paged_attention.h.
  ValueId AttendPages(ValueId query, const KeyValue& cache, ValueId pages,
                      ValueId lengths);

  // Dense or MoE, as configured. `valid` is i32 with x's leading dims.
  ValueId FeedForward(absl::string_view stack, int64_t layer, ValueId x,
                      ValueId valid);

  const std::vector<MoeReport>& moe_reports() const { return moe_reports_; }

  // Adds "kept/<layer>", "overflow/<layer>" and, in training,
  // "balance_loss/<layer>" and "gate_log_sum_square/<layer>", in serving
  // "lost/<layer>".
  void OutputMoeReports();
  // Adds "expert/<layer>", "slot/<layer>" i32[T, 2] and "weight/<layer>" f32[T,
  // 2], as in Routing; in serving the weights are those after losing experts.
  void OutputRouting();

 private:
  ValueId DenseFeedForward(const std::string& name, ValueId x);
  ValueId MoeFeedForward(const std::string& name, ValueId x, ValueId valid);
  ValueId Activate(ValueId h);
  ValueId ExpertParameter(const std::string& name, Shape shape,
                          ElementType type);

  Builder& b_;
  const ModelConfig& config_;
  const bool training_;
  const ValueId key_;
  // Type of a product's operands.
  const ElementType factor_type_;
  const ElementType weight_type_;
  const ElementType wire_type_;
  std::map<ValueId, ValueId> factors_;  // values to their casts
  int64_t next_salt_ = 0;
  std::vector<MoeReport> moe_reports_;
};

// Type of the weights in products of this compute type.
ElementType WeightTypeFor(ComputeType type);

// The gate's options in training or serving.
GatingOptions GateOptions(const ModelConfig& config, bool training);

}  // namespace gshard

#endif  // SERVICES_MODEL_LAYERS_H_
