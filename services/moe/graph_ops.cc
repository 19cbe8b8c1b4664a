#include "services/moe/graph_ops.h"

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/moe/dispatch.h"
#include "services/moe/missing_experts.h"
#include "services/moe/sharding_rules.h"

namespace gshard {
namespace {

ValueType Float(Shape shape) {
  return {ElementType::kFloat32, std::move(shape)};
}
ValueType Int(Shape shape) { return {ElementType::kInt32, std::move(shape)}; }

absl::Status ExpectType(absl::Span<const ValueType> operands, int i,
                        const ValueType& expected) {
  if (operands[i] == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("operand ", i, " must be ",
                                                 expected.ToString(), ", got ",
                                                 operands[i].ToString()));
}

Attributes ToAttributes(const GatingOptions& options) {
  return {{"second_expert", static_cast<int64_t>(options.second_expert)},
          {"random_threshold", static_cast<double>(options.random_threshold)},
          {"normalize", static_cast<int64_t>(options.normalize)},
          {"order", static_cast<int64_t>(options.order)},
          {"literal", int64_t{options.literal}},
          {"drop", int64_t{options.drop}},
          {"capacity_factor", options.capacity_factor},
          {"min_capacity", options.min_capacity},
          {"capacity", options.capacity},
          {"group_size", options.group_size},
          {"balance_both_choices", int64_t{options.balance_both_choices}},
          {"losses", int64_t{options.losses}}};
}

// logits [T, E], valid i32[T], key i64[], and on a part of the tokens the
// number of the first i64[].
ResultTypes InferGating(absl::Span<const ValueType> operands,
                        const Attributes& attributes) {
  const ValueType number{ElementType::kInt64, {}};
  RETURN_IF_ERROR(ExpectOperands(operands, operands.size() == 4 ? 4 : 3));
  if (operands.size() == 4) RETURN_IF_ERROR(ExpectType(operands, 3, number));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  RETURN_IF_ERROR(ExpectRank(operands, 0, 2));
  const Dim& T = operands[0].shape[0];
  const Dim& E = operands[0].shape[1];
  RETURN_IF_ERROR(ExpectType(operands, 1, Int({T})));
  RETURN_IF_ERROR(ExpectType(operands, 2, number));
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "salt"));
  ASSIGN_OR_RETURN(const GatingOptions options, GatingOptionsOf(attributes));
  std::vector<ValueType> results = {Int({T, 2}), Int({T, 2}), Float({T, 2}),
                                    Int({E}), Int({2})};
  if (options.losses) {
    RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "groups"));
    const Shape& groups = ShapeAttribute(attributes, "groups");
    if (groups.size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'groups' must be one dimension, got ", ShapeToString(groups)));
    }
    results.push_back(Float({}));
    results.push_back(Float({}));
    results.push_back(Int({groups[0], E}));
    results.push_back(Float({T}));
  }
  return results;
}

// Gradients flow to the logits, through weights and losses.
OperandGradients GatingGradientRule(Builder& b, const Node& node,
                                    absl::Span<const ValueId> dy) {
  if (node.outputs.size() < 9) {
    return absl::UnimplementedError("top2_gating: the gradient needs 'losses'");
  }
  const ValueId zero = b.Constant(0.0);
  const ValueId d_weight =
      dy[2] != kNoValue ? dy[2]
                        : b.Multiply(b.Scale(node.outputs[2], 0.0), zero);
  const ValueId d_logits = b.AddOne(
      "top2_gating_gradient",
      {node.inputs[0], node.outputs[0], node.outputs[1], node.outputs[7],
       node.outputs[8], d_weight, dy[5] != kNoValue ? dy[5] : zero,
       dy[6] != kNoValue ? dy[6] : zero},
      node.attributes);
  std::vector<ValueId> gradients(node.inputs.size(), kNoValue);
  gradients[0] = d_logits;
  return gradients;
}

// logits, expert, slot, choice_count [G, E], log_sum [T], d_weight,
// d_balance_loss [], d_z_loss [] -> d_logits.
ResultTypes InferGatingGradient(absl::Span<const ValueType> operands,
                                const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 8));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  RETURN_IF_ERROR(ExpectRank(operands, 0, 2));
  RETURN_IF_ERROR(GatingOptionsOf(attributes).status());
  const Dim& T = operands[0].shape[0];
  const Dim& E = operands[0].shape[1];
  RETURN_IF_ERROR(ExpectType(operands, 1, Int({T, 2})));
  RETURN_IF_ERROR(ExpectType(operands, 2, Int({T, 2})));
  RETURN_IF_ERROR(ExpectRank(operands, 3, 2));
  RETURN_IF_ERROR(ExpectType(operands, 3, Int({operands[3].shape[0], E})));
  RETURN_IF_ERROR(ExpectType(operands, 4, Float({T})));
  RETURN_IF_ERROR(ExpectType(operands, 5, Float({T, 2})));
  RETURN_IF_ERROR(ExpectType(operands, 6, Float({})));
  RETURN_IF_ERROR(ExpectType(operands, 7, Float({})));
  return std::vector<ValueType>{operands[0]};
}

absl::Status GatingGradientKernel(KernelContext& c) {
  ASSIGN_OR_RETURN(const GatingOptions options,
                   GatingOptionsOf(c.attributes()));
  Routing routing;
  routing.expert = c.operands[1];
  routing.slot = c.operands[2];
  routing.choice_count = c.operands[3];
  routing.log_sum = c.operands[4];
  ASSIGN_OR_RETURN(
      c.results[0],
      GatingGradient(c.operands[0], routing, options, c.operands[5],
                     *c.operands[6].f32(), *c.operands[7].f32()));
  return absl::OkStatus();
}

// expert i32[T, 2], slot i32[T, 2] -> row_source i32[R], group_sizes i32[E].
ResultTypes InferPlan(absl::Span<const ValueType> operands,
                      const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectRank(operands, 0, 2));
  const ValueType choices = Int({operands[0].shape[0], 2});
  RETURN_IF_ERROR(ExpectType(operands, 0, choices));
  RETURN_IF_ERROR(ExpectType(operands, 1, choices));
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "experts"));
  RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, "group_size"));
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "rows"));
  const Shape& rows = ShapeAttribute(attributes, "rows");
  const int64_t experts = IntAttribute(attributes, "experts");
  if (rows.size() != 1 || experts < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'rows' must be one dimension and 'experts' at least 1, got ",
        ShapeToString(rows), " and ", experts));
  }
  return std::vector<ValueType>{Int({rows[0]}), Int({experts})};
}

// x [T, M], row_source i32[R] -> [R, M], of the attribute 'type' if set.
ResultTypes InferDispatch(absl::Span<const ValueType> operands,
                          const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  RETURN_IF_ERROR(ExpectRank(operands, 0, 2));
  RETURN_IF_ERROR(ExpectRank(operands, 1, 1));
  RETURN_IF_ERROR(ExpectInt(operands, 1));
  ASSIGN_OR_RETURN(const ElementType type, FloatTypeAttribute(attributes));
  return std::vector<ValueType>{
      {type, {operands[1].shape[0], operands[0].shape[1]}}};
}

// d_rows [R, M], row_source i32[R] -> f32[T, M]; the attribute 'shape' is [T,
// M].
ResultTypes InferDispatchGradient(absl::Span<const ValueType> operands,
                                  const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectAttribute<Shape>(attributes, "shape"));
  RETURN_IF_ERROR(ExpectOperands(operands, 2));
  RETURN_IF_ERROR(ExpectFloatOrBFloat(operands, 0));
  RETURN_IF_ERROR(ExpectRank(operands, 0, 2));
  RETURN_IF_ERROR(ExpectType(operands, 1, Int({operands[0].shape[0]})));
  const Shape& shape = ShapeAttribute(attributes, "shape");
  if (shape.size() != 2 || !(shape[1] == operands[0].shape[1])) {
    return absl::InvalidArgumentError(
        absl::StrCat("'shape' must be [T, M] for rows ", operands[0].ToString(),
                     ", got ", ShapeToString(shape)));
  }
  return std::vector<ValueType>{Float(shape)};
}

// rows [R, M], row_source i32[R], weight [T, 2] -> f32[T, M].
ResultTypes InferCombine(absl::Span<const ValueType> operands,
                         const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 3));
  RETURN_IF_ERROR(ExpectFloatOrBFloat(operands, 0));
  RETURN_IF_ERROR(ExpectRank(operands, 0, 2));
  RETURN_IF_ERROR(ExpectType(operands, 1, Int({operands[0].shape[0]})));
  RETURN_IF_ERROR(ExpectRank(operands, 2, 2));
  RETURN_IF_ERROR(ExpectType(operands, 2, Float({operands[2].shape[0], 2})));
  return std::vector<ValueType>{
      Float({operands[2].shape[0], operands[0].shape[1]})};
}

// dy [T, M], rows, row_source, weight -> d_rows [R, M], d_weight [T, 2].
ResultTypes InferCombineGradient(absl::Span<const ValueType> operands,
                                 const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOperands(operands, 4));
  ASSIGN_OR_RETURN(const std::vector<ValueType> tokens,
                   InferCombine(operands.subspan(1), attributes));
  RETURN_IF_ERROR(ExpectType(operands, 0, tokens[0]));
  return std::vector<ValueType>{operands[1], operands[3]};
}

std::vector<OpDef> MoeOps() {
  std::vector<OpDef> ops;
  ops.push_back({.name = "top2_gating",
                 .infer = InferGating,
                 .kernel = GatingKernel(Top2Gating),
                 .gradient = GatingGradientRule});
  ops.push_back({.name = "top2_gating_gradient",
                 .infer = InferGatingGradient,
                 .kernel = GatingGradientKernel});
  ops.push_back(
      {.name = "plan_dispatch",
       .infer = InferPlan,
       .kernel = [](KernelContext& c) -> absl::Status {
         ASSIGN_OR_RETURN(
             DispatchPlan plan,
             PlanDispatch(c.operands[0], c.operands[1],
                          IntAttribute(c.attributes(), "experts"),
                          IntAttribute(c.attributes(), "group_size")));
         c.results[0] = std::move(plan.row_source);
         c.results[1] = std::move(plan.group_sizes);
         return absl::OkStatus();
       }});
  ops.push_back(
      {.name = "dispatch",
       .infer = InferDispatch,
       .kernel = [](KernelContext& c) -> absl::Status {
         ASSIGN_OR_RETURN(c.results[0],
                          DispatchRows(c.operands[0], c.operands[1],
                                       c.result_types[0].type));
         return absl::OkStatus();
       },
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         return std::vector<ValueId>{
             b.AddOne("dispatch_gradient", {dy[0], node.inputs[1]},
                      {{"shape", b.type(node.inputs[0]).shape}}),
             kNoValue};
       }});
  ops.push_back({.name = "dispatch_gradient",
                 .infer = InferDispatchGradient,
                 .kernel = [](KernelContext& c) -> absl::Status {
                   ASSIGN_OR_RETURN(const Dims dims, c.ResultDims(0));
                   ASSIGN_OR_RETURN(
                       c.results[0],
                       DispatchGradient(c.operands[0], c.operands[1], dims[0]));
                   return absl::OkStatus();
                 }});
  ops.push_back(
      {.name = "combine",
       .infer = InferCombine,
       .kernel = [](KernelContext& c) -> absl::Status {
         ASSIGN_OR_RETURN(c.results[0],
                          Combine(c.operands[0], c.operands[1], c.operands[2]));
         return absl::OkStatus();
       },
       .gradient = [](Builder& b, const Node& node,
                      absl::Span<const ValueId> dy) -> OperandGradients {
         const std::vector<ValueId> gradients = b.AddNode(
             "combine_gradient",
             {dy[0], node.inputs[0], node.inputs[1], node.inputs[2]}, {});
         return std::vector<ValueId>{gradients[0], kNoValue, gradients[1]};
       }});
  ops.push_back({.name = "combine_gradient",
                 .infer = InferCombineGradient,
                 .kernel = [](KernelContext& c) -> absl::Status {
                   ASSIGN_OR_RETURN(
                       CombineGradients gradients,
                       CombineGradient(c.operands[0], c.operands[1],
                                       c.operands[2], c.operands[3]));
                   c.results[0] = std::move(gradients.d_rows);
                   c.results[1] = std::move(gradients.d_weight);
                   return absl::OkStatus();
                 }});
  return ops;
}

}  // namespace

absl::StatusOr<GatingOptions> GatingOptionsOf(const Attributes& attributes) {
  for (const char* name : {"second_expert", "normalize", "order", "literal",
                           "drop", "min_capacity", "capacity", "group_size",
                           "balance_both_choices", "losses"}) {
    RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, name));
  }
  for (const char* name : {"random_threshold", "capacity_factor"}) {
    RETURN_IF_ERROR(ExpectAttribute<double>(attributes, name));
  }
  const auto choice = [&](absl::string_view name,
                          int64_t count) -> absl::StatusOr<int64_t> {
    const int64_t value = IntAttribute(attributes, name);
    if (value >= 0 && value < count) return value;
    return absl::InvalidArgumentError(
        absl::StrCat("'", name, "' must lie in [0, ", count, "), got ", value));
  };
  GatingOptions options;
  ASSIGN_OR_RETURN(const int64_t second_expert, choice("second_expert", 3));
  ASSIGN_OR_RETURN(const int64_t normalize, choice("normalize", 3));
  ASSIGN_OR_RETURN(const int64_t order, choice("order", 4));
  options.second_expert = static_cast<SecondExpertPolicy>(second_expert);
  options.normalize = static_cast<Normalize>(normalize);
  options.order = static_cast<SlotOrder>(order);
  options.random_threshold =
      static_cast<float>(FloatAttribute(attributes, "random_threshold"));
  options.literal = IntAttribute(attributes, "literal") != 0;
  options.drop = IntAttribute(attributes, "drop") != 0;
  options.capacity_factor = FloatAttribute(attributes, "capacity_factor");
  options.min_capacity = IntAttribute(attributes, "min_capacity");
  options.capacity = IntAttribute(attributes, "capacity");
  options.group_size = IntAttribute(attributes, "group_size");
  options.balance_both_choices =
      IntAttribute(attributes, "balance_both_choices") != 0;
  options.losses = IntAttribute(attributes, "losses") != 0;
  RETURN_IF_ERROR(ValidateGating(options));
  return options;
}

Kernel GatingKernel(GateFunction gate) {
  return [gate = std::move(gate)](KernelContext& c) -> absl::Status {
    ASSIGN_OR_RETURN(const GatingOptions options,
                     GatingOptionsOf(c.attributes()));
    GatingNoise noise;
    noise.key = FoldIn(static_cast<uint64_t>(*c.operands[2].data<int64_t>()),
                       IntAttribute(c.attributes(), "salt"));
    if (c.operands.size() > 3) {
      noise.first_token = *c.operands[3].data<int64_t>();
    }
    ASSIGN_OR_RETURN(Routing routing,
                     gate(c.operands[0], c.operands[1], options, noise));
    c.results[0] = std::move(routing.expert);
    c.results[1] = std::move(routing.slot);
    c.results[2] = std::move(routing.weight);
    c.results[3] = std::move(routing.kept_count);
    c.results[4] = std::move(routing.overflow_count);
    if (options.losses) {
      c.results[5] = std::move(routing.balance_loss);
      c.results[6] = std::move(routing.z_loss);
      c.results[7] = std::move(routing.choice_count);
      c.results[8] = std::move(routing.log_sum);
    }
    return absl::OkStatus();
  };
}

void RegisterMoeOps() {
  RegisterOps(MoeOps());
  RegisterOps(RenormalizeOps());
  RegisterMoeSharding();
}

GateValues GateTokens(Builder& builder, ValueId logits, ValueId valid,
                      ValueId key, const GatingOptions& options, int64_t salt) {
  Attributes attributes = ToAttributes(options);
  attributes["salt"] = salt;
  if (options.losses) {
    attributes["groups"] = Shape{builder.FreshSymbol("G")};
  }
  const std::vector<ValueId> results = builder.AddNode(
      "top2_gating", {logits, valid, key}, std::move(attributes));
  GateValues gate{.expert = results[0],
                  .slot = results[1],
                  .weight = results[2],
                  .kept_count = results[3],
                  .overflow_count = results[4]};
  if (options.losses) {
    gate.balance_loss = results[5];
    gate.z_loss = results[6];
    gate.log_sum = results[8];
  }
  return gate;
}

DispatchValues DispatchTokens(Builder& builder, ValueId x,
                              const GateValues& gate, int64_t num_experts,
                              const GatingOptions& options, ElementType type) {
  const std::vector<ValueId> plan =
      builder.AddNode("plan_dispatch", {gate.expert, gate.slot},
                      {{"experts", num_experts},
                       {"group_size", options.group_size},
                       {"rows", Shape{builder.FreshSymbol("R")}}});
  Attributes attributes;
  if (type != ElementType::kFloat32) {
    attributes["type"] = std::string(ElementTypeName(type));
  }
  return {
      .row_source = plan[0],
      .group_sizes = plan[1],
      .rows = builder.AddOne("dispatch", {x, plan[0]}, std::move(attributes))};
}

ValueId CombineRows(Builder& builder, ValueId rows, ValueId row_source,
                    ValueId weight) {
  return builder.AddOne("combine", {rows, row_source, weight});
}

}  // namespace gshard
