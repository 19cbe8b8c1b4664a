#include "tests/reference/gating.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "services/base/random.h"

namespace gshard::reference {
namespace {

// Algorithm 1 for one group, and the policies of other implementations.
struct Group {
  int64_t begin, end;  // tokens
  int64_t capacity;
  const std::vector<std::vector<double>>& p;     // softmax, [T][E]
  const std::vector<std::vector<bool>>& wanted;  // [T][2]
  const GatingOptions& options;
  Routing& routing;

  int32_t Expert(int64_t t, int k) const {
    return routing.expert.i32()[2 * t + k];
  }
  void SetSlot(int64_t t, int k, int64_t slot) const {
    routing.slot.i32()[2 * t + k] = static_cast<int32_t>(slot);
  }

  // The tokens in the order in which they get slots.
  std::vector<int64_t> Tokens() const {
    std::vector<int64_t> tokens;
    for (int64_t t = begin; t < end; ++t) {
      if (Expert(t, 0) >= 0) tokens.push_back(t);
    }
    if (options.order == SlotOrder::kBatchPriority) {
      std::stable_sort(tokens.begin(), tokens.end(), [&](int64_t a, int64_t b) {
        return p[a][Expert(a, 0)] > p[b][Expert(b, 0)];
      });
    }
    return tokens;
  }

  // Lines 6-12 for k = 0 and 14-23 for k = 1.
  void Pass(const std::vector<int64_t>& tokens, std::vector<int64_t>& c,
            int k) const {
    for (const int64_t s : tokens) {
      const int32_t e = Expert(s, k);
      if (e < 0) continue;
      if (c[e] < capacity && wanted[s][k]) SetSlot(s, k, c[e]);
      // As printed in the paper, the counter advances for every token.
      if (wanted[s][k] || options.literal) c[e] += 1;
    }
  }

  // The slot of a choice is the number of earlier choices of the same expert,
  // of which `keeps` selects those that count.
  template <typename Keeps>
  void ByPosition(int64_t experts, Keeps keeps) const {
    std::vector<int64_t> c(experts, 0);
    for (int64_t t = begin; t < end; ++t) {
      for (int k = 0; k < 2; ++k) {
        const int32_t e = Expert(t, k);
        if (e < 0 || !wanted[t][k] || !keeps(t, k)) continue;
        if (c[e] < capacity) SetSlot(t, k, c[e]);
        c[e] += 1;
      }
    }
  }

  // Whether fewer than C choices of the expert are ahead of this one.
  bool AmongLargest(int64_t t, int k) const {
    const int32_t e = Expert(t, k);
    int64_t ahead = 0;
    for (int64_t u = begin; u < end; ++u) {
      for (int j = 0; j < 2; ++j) {
        if (Expert(u, j) != e || !wanted[u][j]) continue;
        if (p[u][e] > p[t][e] || (p[u][e] == p[t][e] && u < t)) ++ahead;
      }
    }
    return ahead < capacity;
  }

  void Assign(int64_t experts) const {
    switch (options.order) {
      case SlotOrder::kToken:
      case SlotOrder::kBatchPriority: {
        const std::vector<int64_t> tokens = Tokens();
        std::vector<int64_t> c(experts, 0);
        Pass(tokens, c, 0);
        Pass(tokens, c, 1);
        return;
      }
      case SlotOrder::kPosition:
        ByPosition(experts, [](int64_t, int) { return true; });
        return;
      case SlotOrder::kProbability:
        ByPosition(experts,
                   [&](int64_t t, int k) { return AmongLargest(t, k); });
        return;
    }
  }
};

bool IsValid(const Tensor& valid, int64_t t) {
  if (valid.empty()) return true;
  if (valid.type() == ElementType::kInt32) return valid.i32()[t] != 0;
  return valid.data<uint8_t>()[t] != 0;
}

}  // namespace

Routing Top2Gating(const Tensor& logits, const Tensor& valid,
                   const GatingOptions& options, const GatingNoise& noise) {
  const int64_t T = logits.dim(0), E = logits.dim(1);
  const int64_t S =
      options.group_size > 0 ? options.group_size : std::max<int64_t>(T, 1);
  const int64_t G = (T + S - 1) / S;
  Routing routing;
  routing.expert = Tensor(ElementType::kInt32, {T, 2});
  routing.slot = Tensor(ElementType::kInt32, {T, 2});
  std::fill_n(routing.expert.i32(), 2 * T, -1);
  std::fill_n(routing.slot.i32(), 2 * T, -1);
  routing.weight = Tensor::Zeros(ElementType::kFloat32, {T, 2});
  routing.choice_count = Tensor::Zeros(ElementType::kInt32, {G, E});
  routing.kept_count = Tensor::Zeros(ElementType::kInt32, {E});
  routing.overflow_count = Tensor::Zeros(ElementType::kInt32, {2});
  routing.log_sum = Tensor::Zeros(ElementType::kFloat32, {T});

  std::vector<std::vector<double>> p(T, std::vector<double>(E, 0.0));
  std::vector<std::vector<bool>> wanted(T, {false, false});
  std::vector<double> w1(T, 0.0), w2(T, 0.0);
  double z_loss = 0.0;
  int64_t valid_tokens = 0;
  for (int64_t t = 0; t < T; ++t) {
    if (!IsValid(valid, t)) continue;
    ++valid_tokens;
    const float* x = logits.f32() + t * E;
    int32_t* e = routing.expert.i32() + 2 * t;
    // The top 2 gates by logits, whose order the softmax keeps.
    e[0] = 0;
    for (int64_t j = 1; j < E; ++j) {
      if (x[j] > x[e[0]]) e[0] = static_cast<int32_t>(j);
    }
    float best = 0.0f;
    for (int64_t j = 0; j < E; ++j) {
      if (j == e[0]) continue;
      float value = x[j];
      if (options.second_expert == SecondExpertPolicy::kSampling) {
        const int64_t i = t * E + j;
        value += noise.gumbel.empty()
                     ? -std::log(-std::log(std::min(
                           RandomUniform(noise.key, noise.first_token * E + i) +
                               0x1p-25f,
                           0x1.fffffep-1f)))
                     : noise.gumbel[i];
      }
      if (e[1] < 0 || value > best) {
        e[1] = static_cast<int32_t>(j);
        best = value;
      }
    }
    double sum = 0.0;
    for (int64_t j = 0; j < E; ++j) {
      p[t][j] = std::exp(static_cast<double>(x[j]) - x[e[0]]);
      sum += p[t][j];
    }
    for (int64_t j = 0; j < E; ++j) p[t][j] /= sum;
    const double log_sum = x[e[0]] + std::log(sum);
    routing.log_sum.f32()[t] = static_cast<float>(log_sum);
    z_loss += log_sum * log_sum;

    const double g1 = p[t][e[0]], g2 = e[1] < 0 ? 0.0 : p[t][e[1]];
    const double total = options.normalize == Normalize::kNever ? 1.0 : g1 + g2;
    w1[t] = g1 / total;
    w2[t] = g2 / total;
    wanted[t][0] = true;
    wanted[t][1] = e[1] >= 0;
    if (e[1] >= 0 && options.second_expert == SecondExpertPolicy::kRandom) {
      const float rnd = noise.uniform.empty()
                            ? RandomUniform(noise.key, noise.first_token + t)
                            : noise.uniform[t];
      const double compared =
          options.normalize == Normalize::kBeforeCapacity ? w2[t] : g2;
      wanted[t][1] = compared / options.random_threshold > rnd;
    }
  }

  double balance_loss = 0.0;
  int64_t valid_groups = 0;
  for (int64_t g = 0; g < G; ++g) {
    const int64_t begin = g * S, end = std::min(T, begin + S);
    Group{begin, end, Capacity(options, T, E), p, wanted, options, routing}
        .Assign(E);
    // Line 13, times E^2, over the tokens that are not padding.
    int64_t n = 0;
    std::vector<double> c(E, 0.0), m(E, 0.0);
    int counted = 1;
    for (int64_t t = begin; t < end; ++t) {
      for (int k = 0; k < (options.balance_both_choices ? 2 : 1); ++k) {
        const int32_t e = routing.expert.i32()[2 * t + k];
        if (e < 0) continue;
        c[e] += 1.0;
        counted = std::max(counted, k + 1);
      }
      n += routing.expert.i32()[2 * t] >= 0;
      for (int64_t e = 0; e < E; ++e) m[e] += p[t][e];
    }
    double sum = 0.0;
    for (int64_t e = 0; e < E; ++e) {
      routing.choice_count.i32()[g * E + e] = static_cast<int32_t>(c[e]);
      if (n > 0) sum += c[e] / (n * counted) * (m[e] / n);
    }
    balance_loss += E * sum;
    valid_groups += n > 0;
  }

  for (int64_t t = 0; t < T; ++t) {
    const int32_t* slot = routing.slot.i32() + 2 * t;
    const bool lone = (slot[0] >= 0) != (slot[1] >= 0);
    for (int k = 0; k < 2; ++k) {
      if (slot[k] < 0) {
        routing.overflow_count.i32()[k] += wanted[t][k];
        continue;
      }
      ++routing.kept_count.i32()[routing.expert.i32()[2 * t + k]];
      routing.weight.f32()[2 * t + k] = static_cast<float>(
          lone && options.normalize == Normalize::kAfterCapacity
              ? 1.0
              : (k == 0 ? w1[t] : w2[t]));
    }
  }
  const bool losses = options.losses;
  routing.balance_loss = Tensor::Scalar(
      losses && valid_groups > 0 ? balance_loss / valid_groups : 0.0);
  routing.z_loss =
      Tensor::Scalar(losses && valid_tokens > 0 ? z_loss / valid_tokens : 0.0);
  return routing;
}

}  // namespace gshard::reference
