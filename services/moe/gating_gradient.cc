#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/moe/gate_row.h"
#include "services/moe/gating.h"

namespace gshard {
namespace {

absl::Status Expect(const char* name, const Tensor& tensor, ElementType type,
                    const Dims& dims) {
  if (!tensor.empty() && tensor.type() == type && tensor.dims() == dims) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("gating gradient: expected ", name, " ",
                   ElementTypeName(type), DimsToString(dims), ", got ",
                   tensor.empty() ? "nothing" : tensor.TypeString()));
}

// Adds the gradient through the weights of one token's kept choices.
void AddWeightGradient(const float* logits, const int32_t* expert,
                       const int32_t* slot, const float* d_weight,
                       Normalize normalize, float log_sum, float* d_logits) {
  if (normalize == Normalize::kNever) {
    for (int k = 0; k < 2; ++k) {
      if (slot[k] < 0) continue;
      d_logits[expert[k]] +=
          d_weight[k] * std::exp(logits[expert[k]] - log_sum);
    }
    return;
  }
  const bool both = slot[0] >= 0 && slot[1] >= 0;
  // A single kept choice has weight 1 whatever the logits.
  if (normalize == Normalize::kAfterCapacity && !both) return;
  if (expert[1] < 0 || (slot[0] < 0 && slot[1] < 0)) return;
  const float ratio = std::exp(logits[expert[1]] - logits[expert[0]]);
  const float product = ratio / ((1.0f + ratio) * (1.0f + ratio));  // w1 * w2
  const float d = ((slot[0] >= 0 ? d_weight[0] : 0.0f) -
                   (slot[1] >= 0 ? d_weight[1] : 0.0f)) *
                  product;
  d_logits[expert[0]] += d;
  d_logits[expert[1]] -= d;
}

// sum_k d_weight[k] * p of the kept choices: the part of the gradient through
// the softmax's denominator when weights are never normalised.
float KeptProbability(const float* logits, const int32_t* expert,
                      const int32_t* slot, const float* d_weight,
                      float log_sum) {
  float sum = 0.0f;
  for (int k = 0; k < 2; ++k) {
    if (slot[k] < 0) continue;
    sum += d_weight[k] * std::exp(logits[expert[k]] - log_sum);
  }
  return sum;
}

}  // namespace

absl::Status CheckExperts(const Tensor& expert, int64_t num_experts) {
  for (int64_t t = 0; t < expert.dim(0); ++t) {
    const int32_t* e = expert.i32() + 2 * t;
    if (e[0] < -1 || e[0] >= num_experts || e[1] < -1 || e[1] >= num_experts ||
        (e[0] == e[1] && e[0] >= 0) || (e[0] < 0 && e[1] >= 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "gating gradient: expected two experts below ", num_experts,
          " for token ", t, ", got ", e[0], " and ", e[1]));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckChoiceCount(const Tensor& count, int64_t groups,
                              int64_t num_experts) {
  return Expect("choice_count", count, ElementType::kInt32,
                {groups, num_experts});
}

ValidTokens::ValidTokens(const Tensor& expert, int64_t group_size)
    : of_group((expert.dim(0) + group_size - 1) / group_size, 0) {
  for (int64_t t = 0; t < expert.dim(0); ++t) {
    if (expert.i32()[2 * t] < 0) continue;
    ++tokens;
    groups += of_group[t / group_size]++ == 0;
  }
}

double ValidTokens::BalanceDivisor(int64_t group, const GatingOptions& options,
                                   int64_t num_experts) const {
  const double n = static_cast<double>(std::max<int64_t>(of_group[group], 1));
  const int counted = options.balance_both_choices && num_experts > 1 ? 2 : 1;
  return n * n * counted * static_cast<double>(std::max<int64_t>(groups, 1));
}

absl::StatusOr<Tensor> GatingGradient(const Tensor& logits,
                                      const Routing& routing,
                                      const GatingOptions& options,
                                      const Tensor& d_weight,
                                      float d_balance_loss, float d_z_loss) {
  RETURN_IF_ERROR(ValidateGating(options));
  if (logits.empty() || logits.type() != ElementType::kFloat32 ||
      logits.rank() != 2 || logits.dim(1) < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("gating gradient: expected logits f32[T, E], got ",
                     logits.TypeString()));
  }
  const int64_t tokens = logits.dim(0), experts = logits.dim(1);
  const int64_t group_size = options.group_size > 0
                                 ? options.group_size
                                 : std::max<int64_t>(tokens, 1);
  const int64_t groups = (tokens + group_size - 1) / group_size;
  const bool never = options.normalize == Normalize::kNever;
  const bool dense =
      never || (options.losses && (d_balance_loss != 0.0f || d_z_loss != 0.0f));
  RETURN_IF_ERROR(
      Expect("expert", routing.expert, ElementType::kInt32, {tokens, 2}));
  RETURN_IF_ERROR(
      Expect("slot", routing.slot, ElementType::kInt32, {tokens, 2}));
  RETURN_IF_ERROR(CheckExperts(routing.expert, experts));
  if (!d_weight.empty()) {
    RETURN_IF_ERROR(
        Expect("d_weight", d_weight, ElementType::kFloat32, {tokens, 2}));
  }
  if (dense) {
    RETURN_IF_ERROR(
        Expect("log_sum", routing.log_sum, ElementType::kFloat32, {tokens}));
    RETURN_IF_ERROR(CheckChoiceCount(routing.choice_count, groups, experts));
  }

  const int32_t* expert = routing.expert.i32();
  const ValidTokens valid(routing.expert, group_size);

  Tensor d_logits =
      dense ? Tensor(ElementType::kFloat32, {tokens, experts})
            : Tensor::Zeros(ElementType::kFloat32, {tokens, experts});
  std::vector<float> f(experts);  // d loss / d p_e, the same for a whole group
  for (int64_t t = 0; t < tokens; ++t) {
    if (dense && t % group_size == 0) {
      const int64_t g = t / group_size;
      const double scale = options.losses
                               ? static_cast<double>(d_balance_loss) *
                                     static_cast<double>(experts) /
                                     valid.BalanceDivisor(g, options, experts)
                               : 0.0;
      const int32_t* count = routing.choice_count.i32() + g * experts;
      for (int64_t e = 0; e < experts; ++e) {
        f[e] = static_cast<float>(scale * count[e]);
      }
    }
    float* row = d_logits.f32() + t * experts;
    if (expert[2 * t] < 0) {
      std::fill_n(row, dense ? experts : 0, 0.0f);
      continue;
    }
    const float* x = logits.f32() + t * experts;
    const int32_t* slot = routing.slot.i32() + 2 * t;
    const float* d = d_weight.empty() ? nullptr : d_weight.f32() + 2 * t;
    const float log_sum = dense ? routing.log_sum.f32()[t] : 0.0f;
    if (dense) {
      float shift = options.losses ? 2.0f * d_z_loss * log_sum /
                                         static_cast<float>(valid.tokens)
                                   : 0.0f;
      if (never && d != nullptr) {
        shift -= KeptProbability(x, expert + 2 * t, slot, d, log_sum);
      }
      SoftmaxGradientRow(x, log_sum, f.data(), shift, experts, row);
    }
    if (d != nullptr) {
      AddWeightGradient(x, expert + 2 * t, slot, d, options.normalize, log_sum,
                        row);
    }
  }
  return d_logits;
}

}  // namespace gshard
