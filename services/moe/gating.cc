#include "services/moe/gating.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/moe/gate_row.h"
#include "services/moe/slots.h"

namespace gshard {
namespace {

absl::Status CheckLogits(const Tensor& logits) {
  if (!logits.empty() && logits.type() == ElementType::kFloat32 &&
      logits.rank() == 2 && logits.dim(1) >= 1) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("gating: expected logits f32[T, E] with E >= 1, got ",
                   logits.TypeString()));
}

absl::Status CheckArguments(int64_t tokens, int64_t experts,
                            const Tensor& valid, const GatingNoise& noise) {
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max() / 2;
  if (tokens > kLimit || experts > kLimit) {
    return absl::InvalidArgumentError(
        absl::StrCat("gating: expected at most ", kLimit,
                     " tokens and experts, got ", tokens, " and ", experts));
  }
  if (!valid.empty() && ((valid.type() != ElementType::kUint8 &&
                          valid.type() != ElementType::kInt32) ||
                         valid.dims() != Dims{tokens})) {
    return absl::InvalidArgumentError(
        absl::StrCat("gating: expected valid u8[", tokens, "] or i32[", tokens,
                     "], got ", valid.TypeString()));
  }
  const auto fits = [](absl::Span<const float> span, int64_t size) {
    return span.empty() || static_cast<int64_t>(span.size()) == size;
  };
  if (!fits(noise.uniform, tokens) || !fits(noise.gumbel, tokens * experts)) {
    return absl::InvalidArgumentError(
        absl::StrCat("gating: expected ", tokens, " uniforms and ",
                     tokens * experts, " Gumbel numbers or none, got ",
                     noise.uniform.size(), " and ", noise.gumbel.size()));
  }
  return absl::OkStatus();
}

bool IsValid(const Tensor& valid, int64_t token) {
  if (valid.empty()) return true;
  return valid.type() == ElementType::kUint8 ? valid.data<uint8_t>()[token] != 0
                                             : valid.i32()[token] != 0;
}

// The expert with the largest logit plus Gumbel noise, except `first`.
int32_t SampleSecond(const float* logits, int32_t first, int64_t token,
                     int64_t num_experts, const GatingNoise& noise) {
  int32_t best = -1;
  float best_value = 0.0f;
  for (int64_t e = 0; e < num_experts; ++e) {
    if (e == first) continue;
    const int64_t i = token * num_experts + e;
    float gumbel;
    if (noise.gumbel.empty()) {
      const int64_t draw = i + noise.first_token * num_experts;
      // Above 0, and below 1, to which the largest number would be rounded: its
      // noise would be infinite.
      const float uniform =
          std::min(RandomUniform(noise.key, draw) + 0x1p-25f, 0x1.fffffep-1f);
      gumbel = -std::log(-std::log(uniform));
    } else {
      gumbel = noise.gumbel[i];
    }
    const float value = logits[e] + gumbel;
    if (best < 0 || value > best_value) {
      best = static_cast<int32_t>(e);
      best_value = value;
    }
  }
  return best;
}

// Gates one group after another; holds the state of one group.
class Gate {
 public:
  // From logits, or, where these are null, from rows.
  Gate(const Tensor* logits, const GateRows* rows, int64_t tokens,
       int64_t experts, const Tensor& valid, const GatingOptions& options,
       const GatingNoise& noise);

  Routing Run();

 private:
  void RunGroup(int64_t group, int64_t begin, int64_t end);
  void ChooseExperts(int64_t token, int64_t s);
  Top2 Top(int64_t token) const;
  float SumOfExp(int64_t token, float max);
  void WeightChoices(int64_t begin, int64_t end);

  const Tensor* const logits_;
  const GateRows* const rows_;
  const Tensor& valid_;
  const GatingOptions& options_;
  const GatingNoise& noise_;
  const int64_t tokens_, experts_, group_size_;
  const bool needs_softmax_;
  Routing routing_;
  SlotAssigner slots_;
  std::vector<uint8_t> wanted_;         // [S, 2]
  std::vector<float> probability_;      // [S, 2], if needs_softmax_
  std::vector<float> row_;              // [E]
  std::vector<float> probability_sum_;  // [E] S * m_e
  int64_t valid_tokens_ = 0, valid_groups_ = 0;
  int64_t group_valid_tokens_ = 0;
  double balance_loss_ = 0.0, z_loss_ = 0.0;
};

Gate::Gate(const Tensor* logits, const GateRows* rows, int64_t tokens,
           int64_t experts, const Tensor& valid, const GatingOptions& options,
           const GatingNoise& noise)
    : logits_(logits),
      rows_(rows),
      valid_(valid),
      options_(options),
      noise_(noise),
      tokens_(tokens),
      experts_(experts),
      group_size_(options.group_size > 0 ? options.group_size
                                         : std::max<int64_t>(tokens_, 1)),
      needs_softmax_(NeedsSoftmax(options)),
      slots_(options.order, options.literal,
             Capacity(options, tokens_, experts_), experts_) {
  const int64_t groups = (tokens_ + group_size_ - 1) / group_size_;
  routing_.expert = Tensor(ElementType::kInt32, {tokens_, 2});
  routing_.slot = Tensor(ElementType::kInt32, {tokens_, 2});
  routing_.weight = Tensor::Zeros(ElementType::kFloat32, {tokens_, 2});
  routing_.choice_count =
      Tensor::Zeros(ElementType::kInt32, {groups, experts_});
  routing_.kept_count = Tensor::Zeros(ElementType::kInt32, {experts_});
  routing_.overflow_count = Tensor::Zeros(ElementType::kInt32, {2});
  if (needs_softmax_) {
    routing_.log_sum = Tensor::Zeros(ElementType::kFloat32, {tokens_});
    row_.resize(experts_);
    probability_sum_.resize(experts_);
  }
  const int64_t largest_group = std::min(group_size_, tokens_);
  wanted_.resize(2 * largest_group);
  probability_.resize(2 * largest_group);
}

Routing Gate::Run() {
  int64_t group = 0;
  for (int64_t begin = 0; begin < tokens_; ++group) {
    const int64_t end = begin + std::min(group_size_, tokens_ - begin);
    RunGroup(group, begin, end);
    begin = end;
  }
  const auto mean = [&](double sum, int64_t count) {
    return options_.losses && count > 0 ? static_cast<float>(sum / count)
                                        : 0.0f;
  };
  routing_.balance_loss = Tensor::Scalar(mean(balance_loss_, valid_groups_));
  routing_.z_loss = Tensor::Scalar(mean(z_loss_, valid_tokens_));
  return std::move(routing_);
}

void Gate::RunGroup(int64_t group, int64_t begin, int64_t end) {
  std::fill(probability_sum_.begin(), probability_sum_.end(), 0.0f);
  if (rows_ != nullptr && options_.losses) {
    std::copy_n(rows_->probability_sum.f32() + group * experts_, experts_,
                probability_sum_.begin());
  }
  group_valid_tokens_ = 0;
  for (int64_t t = begin; t < end; ++t) ChooseExperts(t, t - begin);

  const int32_t* expert = routing_.expert.i32() + 2 * begin;
  slots_.Assign({.tokens = end - begin,
                 .expert = expert,
                 .wanted = wanted_.data(),
                 .probability = probability_.data()},
                routing_.slot.i32() + 2 * begin);
  WeightChoices(begin, end);

  int32_t* count = routing_.choice_count.i32() + group * experts_;
  const int counted = options_.balance_both_choices && experts_ > 1 ? 2 : 1;
  for (int64_t s = 0; s < end - begin; ++s) {
    for (int k = 0; k < counted; ++k) {
      if (expert[2 * s + k] >= 0) ++count[expert[2 * s + k]];
    }
  }
  if (!options_.losses || group_valid_tokens_ == 0) return;
  double sum = 0.0;
  for (int64_t e = 0; e < experts_; ++e) {
    sum += static_cast<double>(count[e]) * probability_sum_[e];
  }
  const double n = static_cast<double>(group_valid_tokens_);
  balance_loss_ += static_cast<double>(experts_) * sum / (n * n * counted);
  ++valid_groups_;
}

Top2 Gate::Top(int64_t token) const {
  if (rows_ != nullptr) {
    const int32_t* const expert = rows_->expert.i32() + 2 * token;
    return {.first = expert[0], .second = expert[1]};
  }
  const float* const logits = logits_->f32() + token * experts_;
  Top2 top = FindTop2(logits, experts_);
  if (options_.second_expert == SecondExpertPolicy::kSampling && experts_ > 1) {
    top.second = SampleSecond(logits, top.first, token, experts_, noise_);
  }
  return top;
}

// The sum of exp(logit - max) over the experts. Adds the probabilities to
// those of the group.
float Gate::SumOfExp(int64_t token, float max) {
  if (rows_ != nullptr) return rows_->sum.f32()[token];
  const float sum =
      ExpRow(logits_->f32() + token * experts_, max, experts_, row_.data());
  if (options_.losses) {
    AddScaled(row_.data(), 1.0f / sum, experts_, probability_sum_.data());
  }
  return sum;
}

// Sets expert, what is wanted, and the weights before any choice is dropped.
void Gate::ChooseExperts(int64_t token, int64_t s) {
  int32_t* expert = routing_.expert.i32() + 2 * token;
  float* weight = routing_.weight.f32() + 2 * token;
  expert[0] = expert[1] = -1;
  wanted_[2 * s] = wanted_[2 * s + 1] = 0;
  if (!IsValid(valid_, token)) return;
  ++group_valid_tokens_;
  ++valid_tokens_;

  const Top2 top = Top(token);
  expert[0] = top.first;
  expert[1] = top.second;
  wanted_[2 * s] = 1;

  const auto logit_of = [&](int k) {
    return rows_ != nullptr ? rows_->logit.f32()[2 * token + k]
                            : logits_->f32()[token * experts_ + expert[k]];
  };
  const float max = logit_of(0);
  // p2 / p1: the weights come from two logits alone, whatever the others are.
  const float ratio = expert[1] < 0 ? 0.0f : std::exp(logit_of(1) - max);
  float first_probability = 0.0f;
  if (needs_softmax_) {
    const float sum = SumOfExp(token, max);
    first_probability = 1.0f / sum;
    const float log_sum = max + std::log(sum);
    routing_.log_sum.f32()[token] = log_sum;
    z_loss_ += static_cast<double>(log_sum) * log_sum;
    // Sorting by probability needs a strict order: NaN goes last.
    probability_[2 * s] = first_probability >= 0.0f ? first_probability : 0.0f;
    const float p2 = first_probability * ratio;
    probability_[2 * s + 1] = p2 >= 0.0f ? p2 : 0.0f;
  }
  const float second_probability = first_probability * ratio;
  if (options_.normalize == Normalize::kNever) {
    weight[0] = first_probability;
    weight[1] = second_probability;
  } else {
    weight[0] = 1.0f / (1.0f + ratio);
    weight[1] = ratio / (1.0f + ratio);
  }
  if (expert[1] < 0) return;
  if (options_.second_expert == SecondExpertPolicy::kRandom) {
    const float uniform =
        noise_.uniform.empty()
            ? RandomUniform(noise_.key, noise_.first_token + token)
            : noise_.uniform[token];
    const float w2 = options_.normalize == Normalize::kBeforeCapacity
                         ? weight[1]
                         : second_probability;
    wanted_[2 * s + 1] = uniform < w2 / options_.random_threshold;
  } else {
    wanted_[2 * s + 1] = 1;
  }
}

// Zeroes the weights of choices without a slot, rescales the rest if the
// options say so, and counts.
void Gate::WeightChoices(int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    float* weight = routing_.weight.f32() + 2 * t;
    const int32_t* slot = routing_.slot.i32() + 2 * t;
    const int32_t* expert = routing_.expert.i32() + 2 * t;
    const int kept = (slot[0] >= 0) + (slot[1] >= 0);
    for (int k = 0; k < 2; ++k) {
      if (slot[k] >= 0) {
        ++routing_.kept_count.i32()[expert[k]];
        if (kept == 1 && options_.normalize == Normalize::kAfterCapacity) {
          weight[k] = 1.0f;
        }
      } else {
        weight[k] = 0.0f;
        routing_.overflow_count.i32()[k] += wanted_[2 * (t - begin) + k];
      }
    }
  }
}

}  // namespace

absl::Status ValidateGating(const GatingOptions& options) {
  const auto check = [](bool ok, absl::string_view expected, double got) {
    return ok ? absl::OkStatus()
              : absl::InvalidArgumentError(
                    absl::StrCat("gating: expected ", expected, ", got ", got));
  };
  RETURN_IF_ERROR(check(options.random_threshold > 0.0f, "random_threshold > 0",
                        options.random_threshold));
  RETURN_IF_ERROR(
      check(options.capacity_factor >= 0.0 && options.capacity_factor <= 1e6,
            "capacity_factor in [0, 1e6]", options.capacity_factor));
  RETURN_IF_ERROR(check(options.min_capacity >= 0, "min_capacity >= 0",
                        static_cast<double>(options.min_capacity)));
  RETURN_IF_ERROR(check(options.capacity >= 0, "capacity >= 0",
                        static_cast<double>(options.capacity)));
  RETURN_IF_ERROR(check(
      options.group_size >= 0 &&
          options.group_size <= std::numeric_limits<int32_t>::max(),
      "group_size in [0, 2^31)", static_cast<double>(options.group_size)));
  if (options.literal && options.order != SlotOrder::kToken &&
      options.order != SlotOrder::kBatchPriority) {
    return absl::InvalidArgumentError(
        "gating: expected slot order by token or by batch priority with "
        "literal, got another");
  }
  return absl::OkStatus();
}

int64_t Capacity(const GatingOptions& options, int64_t tokens,
                 int64_t num_experts) {
  const int64_t group = options.group_size > 0 ? options.group_size : tokens;
  if (!options.drop) return group;
  int64_t capacity = options.capacity;
  if (capacity == 0) {
    capacity = std::max<int64_t>(
        options.min_capacity,
        static_cast<int64_t>(std::ceil(2.0 * static_cast<double>(group) *
                                       options.capacity_factor /
                                       static_cast<double>(num_experts))));
  }
  return std::min(capacity, group);
}

absl::StatusOr<Routing> Top2Gating(const Tensor& logits, const Tensor& valid,
                                   const GatingOptions& options,
                                   const GatingNoise& noise) {
  RETURN_IF_ERROR(ValidateGating(options));
  RETURN_IF_ERROR(CheckLogits(logits));
  const int64_t tokens = logits.dim(0), experts = logits.dim(1);
  RETURN_IF_ERROR(CheckArguments(tokens, experts, valid, noise));
  return Gate(&logits, nullptr, tokens, experts, valid, options, noise).Run();
}

bool NeedsSoftmax(const GatingOptions& options) {
  return options.losses || options.normalize == Normalize::kNever ||
         options.order == SlotOrder::kBatchPriority ||
         options.order == SlotOrder::kProbability ||
         (options.second_expert == SecondExpertPolicy::kRandom &&
          options.normalize != Normalize::kBeforeCapacity);
}

absl::StatusOr<Routing> Top2GatingOfRows(const GateRows& rows,
                                         int64_t num_experts,
                                         const Tensor& valid,
                                         const GatingOptions& options,
                                         const GatingNoise& noise) {
  CHECK(options.second_expert != SecondExpertPolicy::kSampling);
  RETURN_IF_ERROR(ValidateGating(options));
  const int64_t tokens = rows.expert.dim(0);
  RETURN_IF_ERROR(CheckArguments(tokens, num_experts, valid, noise));
  return Gate(nullptr, &rows, tokens, num_experts, valid, options, noise).Run();
}

}  // namespace gshard
