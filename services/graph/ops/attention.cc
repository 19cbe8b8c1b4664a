// attention, attention_gradient, paged_attention, update_cache.

#include "services/ops/attention.h"

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/graph/builder.h"
#include "services/graph/kernel_calls.h"
#include "services/graph/ops/standard_ops.h"
#include "services/ops/cache.h"
#include "services/ops/cast.h"
#include "services/ops/paged_attention.h"

namespace gshard {
namespace {

// Optional: where a part of a partitioned attention lies (kernel_calls.cc). No
// tensor has more elements than the largest.
absl::Status ExpectPartPosition(const Attributes& attributes) {
  constexpr int64_t kLargest = int64_t{1} << 41;
  for (const char* name :
       {"first_sentence", "first_head", "first_query", "all_queries"}) {
    if (!attributes.contains(name)) continue;
    RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, name));
    const int64_t position = IntAttribute(attributes, name);
    if (position < 0 || position > kLargest) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", name, "' must lie in [0, 2^41], got ", position));
    }
  }
  return absl::OkStatus();
}

absl::Status ExpectOptions(const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectPartPosition(attributes));
  for (const char* name : {"causal", "salt", "keep_statistics"}) {
    RETURN_IF_ERROR(ExpectAttribute<int64_t>(attributes, name));
  }
  RETURN_IF_ERROR(ExpectAttribute<double>(attributes, "scale"));
  return ExpectRate(attributes, "dropout_rate");
}

// q, k, v, key_lengths and, with dropout, key as the last one. q, k and v are
// f32 or bf16; the results are f32.
absl::Status ExpectAttention(absl::Span<const ValueType> operands) {
  for (const int i : {0, 1, 2}) {
    RETURN_IF_ERROR(ExpectFactors(operands, 0, i));
    RETURN_IF_ERROR(ExpectRank(operands, i, 4));
  }
  const Shape& q = operands[0].shape;
  const Shape& k = operands[1].shape;
  RETURN_IF_ERROR(ExpectShape(operands, 1, {q[0], k[1], q[2], q[3]}));
  RETURN_IF_ERROR(ExpectShape(operands, 2, k));
  RETURN_IF_ERROR(ExpectInt(operands, 3));
  return ExpectShape(operands, 3, {q[0]});
}

ValueType AsFloat(const ValueType& type) {
  return {ElementType::kFloat32, type.shape};
}

ValueType StatisticsType(absl::Span<const ValueType> operands) {
  const Shape& q = operands[0].shape;
  return {ElementType::kFloat32, {q[0], q[2], q[1], 2}};
}

ResultTypes InferAttention(absl::Span<const ValueType> operands,
                           const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOptions(attributes));
  RETURN_IF_ERROR(ExpectOperands(operands, HasDropoutKey(attributes) ? 5 : 4));
  RETURN_IF_ERROR(ExpectAttention(operands));
  if (HasDropoutKey(attributes)) RETURN_IF_ERROR(ExpectIndex(operands, 4));
  std::vector<ValueType> results = {AsFloat(operands[0])};
  if (IntAttribute(attributes, "keep_statistics") != 0) {
    results.push_back(StatisticsType(operands));
  }
  return results;
}

// q, k, v, key_lengths, statistics, dout, key -> dq, dk, dv.
ResultTypes InferAttentionGradient(absl::Span<const ValueType> operands,
                                   const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectOptions(attributes));
  RETURN_IF_ERROR(ExpectOperands(operands, HasDropoutKey(attributes) ? 7 : 6));
  RETURN_IF_ERROR(ExpectAttention(operands));
  RETURN_IF_ERROR(ExpectFloat(operands, 4));
  RETURN_IF_ERROR(ExpectShape(operands, 4, StatisticsType(operands).shape));
  RETURN_IF_ERROR(ExpectFloat(operands, 5));
  RETURN_IF_ERROR(ExpectShape(operands, 5, operands[0].shape));
  if (HasDropoutKey(attributes)) RETURN_IF_ERROR(ExpectIndex(operands, 6));
  return std::vector<ValueType>{AsFloat(operands[0]), AsFloat(operands[1]),
                                AsFloat(operands[2])};
}

OperandGradients Gradient(Builder& b, const Node& node,
                          absl::Span<const ValueId> dy) {
  if (node.outputs.size() < 2 || dy[1] != kNoValue) {
    return absl::UnimplementedError(
        "attention: the gradient needs 'keep_statistics', and the statistics "
        "have none themselves");
  }
  std::vector<ValueId> operands(node.inputs.begin(), node.inputs.begin() + 4);
  operands.push_back(node.outputs[1]);
  operands.push_back(b.Cast(dy[0], ElementType::kFloat32));
  if (node.inputs.size() > 4) operands.push_back(node.inputs[4]);
  std::vector<ValueId> gradients =
      b.AddNode("attention_gradient", std::move(operands), node.attributes);
  gradients.resize(node.inputs.size(), kNoValue);
  return gradients;
}

// q [R, 1, N, D], keys and values [S, P, N, D], pages i32[R, T], lengths i32[R]
// -> [R, 1, N, D].
ResultTypes InferPagedAttention(absl::Span<const ValueType> operands,
                                const Attributes& attributes) {
  RETURN_IF_ERROR(ExpectAttribute<double>(attributes, "scale"));
  RETURN_IF_ERROR(ExpectOperands(operands, 5));
  for (const int i : {0, 1, 2}) {
    RETURN_IF_ERROR(ExpectFloat(operands, i));
    RETURN_IF_ERROR(ExpectRank(operands, i, 4));
  }
  for (const int i : {3, 4}) RETURN_IF_ERROR(ExpectInt(operands, i));
  RETURN_IF_ERROR(ExpectRank(operands, 3, 2));
  const Shape& q = operands[0].shape;
  const Shape& keys = operands[1].shape;
  RETURN_IF_ERROR(ExpectShape(operands, 0, {q[0], 1, keys[2], keys[3]}));
  RETURN_IF_ERROR(ExpectShape(operands, 2, keys));
  RETURN_IF_ERROR(ExpectShape(operands, 3, {q[0], operands[3].shape[1]}));
  RETURN_IF_ERROR(ExpectShape(operands, 4, {q[0]}));
  return std::vector<ValueType>{operands[0]};
}

// cache [S, P, N, D], entry [R, 1, N, D], slots i32[R] -> cache.
ResultTypes InferUpdateCache(absl::Span<const ValueType> operands,
                             const Attributes&) {
  RETURN_IF_ERROR(ExpectOperands(operands, 3));
  RETURN_IF_ERROR(ExpectFloat(operands, 0));
  RETURN_IF_ERROR(ExpectRank(operands, 0, 4));
  RETURN_IF_ERROR(ExpectFloat(operands, 1));
  RETURN_IF_ERROR(ExpectRank(operands, 1, 4));
  RETURN_IF_ERROR(ExpectInt(operands, 2));
  const Shape& cache = operands[0].shape;
  const Dim rows = operands[1].shape[0];
  RETURN_IF_ERROR(ExpectShape(operands, 1, {rows, 1, cache[2], cache[3]}));
  RETURN_IF_ERROR(ExpectShape(operands, 2, {rows}));
  return std::vector<ValueType>{operands[0]};
}

absl::Status UpdateCacheKernel(KernelContext& c) {
  const Tensor& cache = c.operands[0];
  RETURN_IF_ERROR(CheckSlots(c.operands[2], cache.dim(0) * cache.dim(1)));
  c.results[0] = UpdateCache(c.Take(0), c.operands[1], c.operands[2]);
  return absl::OkStatus();
}

}  // namespace

std::vector<OpDef> AttentionOps() {
  return {
      {.name = "attention",
       .infer = InferAttention,
       .kernel = [](KernelContext& c) { return CallAttention(c, Attention); },
       .gradient = Gradient},
      {.name = "attention_gradient",
       .infer = InferAttentionGradient,
       .kernel =
           [](KernelContext& c) {
             return CallAttentionGradient(c, AttentionGradient);
           }},
      {.name = "paged_attention",
       .infer = InferPagedAttention,
       .kernel =
           [](KernelContext& c) {
             return CallPagedAttention(c, PagedAttention);
           }},
      {.name = "update_cache",
       .infer = InferUpdateCache,
       .kernel = UpdateCacheKernel}};
}

}  // namespace gshard
