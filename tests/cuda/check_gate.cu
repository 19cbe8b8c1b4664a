// Holds the gate, dispatch and combine to float64.

#include <algorithm>
#include <cmath>

#include "services/cuda/kernels/launch_dense.h"
#include "tests/cuda/rows.h"

namespace gshard::cuda {
namespace {

// Few different logits, so that there are many equal ones. Every seventh token
// has impossible experts, and every seventh a NaN.
void CheckTopTwo(int64_t tokens, int64_t experts) {
  std::vector<float> logits;
  for (int64_t i = 0; i < tokens * experts; ++i) {
    const int64_t t = i / experts, e = i % experts;
    logits.push_back(static_cast<float>(SplitMix64(i) % 9));
    if (t % 7 == 3 && e % 2 == 1) logits.back() = -INFINITY;
    if (t % 7 == 5 && e == t % experts) logits.back() = NAN;
  }
  const Buffer<float> there(logits), sum(tokens);
  // Of one expert, there is no second logit.
  const Buffer<float> logit(std::vector<float>(2 * tokens));
  const Buffer<int32_t> expert(2 * tokens), again(2 * tokens);
  TopTwo top = {there.data(), experts, again.data(), logit.data(), nullptr};
  Check(LaunchRows(top, tokens, nullptr), "top two");
  top.expert = expert.data();
  top.sum = sum.data();
  Check(LaunchRows(top, tokens, nullptr), "top two");
  const std::vector<int32_t> got = expert.Read();
  const std::vector<float> sums = sum.Read(), best = logit.Read();
  int64_t differences = got != again.Read();
  for (int64_t t = 0; t < tokens; ++t) {
    const float* const x = logits.data() + t * experts;
    int64_t first = 0, second = -1;
    double total = 0;
    for (int64_t e = 1; e < experts; ++e) first = x[e] > x[first] ? e : first;
    for (int64_t e = 0; e < experts; ++e) {
      total += std::exp(static_cast<double>(x[e]) - x[first]);
      if (e != first && (second < 0 || x[e] > x[second])) second = e;
    }
    const int64_t one = got[2 * t], two = got[2 * t + 1];
    if (t % 7 == 5) {  // any two
      differences += one < 0 || one >= experts || two >= experts ||
                     one == two || (two < 0) != (experts == 1);
      continue;
    }
    differences += one != first || two != second || best[2 * t] != x[one] ||
                   (two >= 0 && best[2 * t + 1] != x[two]) ||
                   !(std::abs(sums[t] / total - 1) < 1e-6);
  }
  Report("top two of " + std::to_string(experts), differences == 0,
         static_cast<double>(differences));
}

// To rows of experts and back: each token has a row of its second choice, every
// other one of its first, too.
void CheckTokens(int64_t tokens, int64_t width) {
  std::vector<int32_t> source, row_of_choice(2 * tokens, -1);
  for (int64_t t = tokens - 1; t >= 0; --t) {
    for (int k = static_cast<int>(t % 2); k < 2; ++k) {
      row_of_choice[2 * t + k] = static_cast<int32_t>(source.size());
      source.push_back(static_cast<int32_t>(2 * t + k));
    }
  }
  const int64_t count = static_cast<int64_t>(source.size());
  const Buffer<float> x = Numbers(1, tokens * width),
                      weight = Numbers(2, 2 * tokens), rows(count * width);
  // Of choices without a row, it is the caller's.
  const Buffer<float> d_weight(std::vector<float>(2 * tokens));
  const Buffer<int32_t> sources(source), rows_of_choices(row_of_choice);
  CheckRows(
      "dispatch", count, width, 0,
      [&](int64_t first, int64_t some, float* out) {
        return LaunchElements(
            DispatchTokens{
                x.data(), sources.data() + first, width, {out, nullptr}},
            some * width, nullptr);
      },
      [&](int64_t r, int64_t c) { return X(1, source[r] / 2 * width + c); });
  Check(LaunchElements(
            DispatchTokens{
                x.data(), sources.data(), width, {rows.data(), nullptr}},
            count * width, nullptr),
        "dispatch");
  CheckRows(
      "combine", tokens, width, 1e-6,
      [&](int64_t first, int64_t some, float* out) {
        return LaunchElements(CombineTokens{{rows.data(), nullptr},
                                            rows_of_choices.data() + 2 * first,
                                            weight.data() + 2 * first,
                                            width,
                                            out},
                              some * width, nullptr);
      },
      [&](int64_t t, int64_t c) {
        return X(1, t * width + c) *
               (X(2, 2 * t + 1) + (t % 2 == 0 ? X(2, 2 * t) : 0.0));
      });
  CheckRows(
      "combine, gradient of rows", count, width, 1e-6,
      [&](int64_t first, int64_t some, float* out) {
        return LaunchRows(
            CombineGradientRows{x.data(),
                                {rows.data() + first * width, nullptr},
                                sources.data() + first,
                                weight.data(),
                                width,
                                {out, nullptr},
                                d_weight.data()},
            some, nullptr);
      },
      [&](int64_t r, int64_t c) {
        return X(2, source[r]) * X(1, source[r] / 2 * width + c);
      });
  const std::vector<float> got = d_weight.Read();
  double worst = 0;
  for (int64_t r = 0; r < count; ++r) {
    double dot = 0;
    for (int64_t c = 0; c < width; ++c) {
      dot += X(1, source[r] / 2 * width + c) * X(1, source[r] / 2 * width + c);
    }
    worst = std::max(worst, std::abs(got[source[r]] / dot - 1));
  }
  Report("combine, gradient of weights", worst <= 1e-5, worst);

  // The same of bfloat16, and without weights.
  const Buffer<BFloat16> rounded(count * width), d_rounded(count * width);
  const auto of_row = [&](int64_t i) {
    return Number<float>(1, source[i / width] / 2 * width + i % width);
  };
  Check(LaunchElements(
            DispatchTokens{
                x.data(), sources.data(), width, {nullptr, rounded.data()}},
            count * width, nullptr),
        "dispatch");
  CheckExact("dispatch, bf16", rounded, of_row);
  for (const float* const weights : {weight.data(), (float*)nullptr}) {
    const Buffer<float> y(tokens * width);
    Check(LaunchElements(CombineTokens{{nullptr, rounded.data()},
                                       rows_of_choices.data(),
                                       weights,
                                       width,
                                       y.data()},
                         tokens * width, nullptr),
          "combine");
    CheckExact(
        weights == nullptr ? "combine, bf16, no weights" : "combine, bf16", y,
        [&](int64_t i) {
          const int64_t t = i / width;
          const float row = ToFloat(Number<BFloat16>(1, i));
          const auto of = [&](int64_t k) {
            return weights == nullptr ? row : Number<float>(2, 2 * t + k) * row;
          };
          return t % 2 == 0 ? of(0) + of(1) : of(1);
        });
  }
  Check(LaunchRows(CombineGradientRows{x.data(),
                                       {nullptr, rounded.data()},
                                       sources.data(),
                                       weight.data(),
                                       width,
                                       {nullptr, d_rounded.data()},
                                       d_weight.data()},
                   count, nullptr),
        "combine");
  CheckExact("combine, gradient of rows, bf16", d_rounded, [&](int64_t i) {
    return Number<float>(2, source[i / width]) * of_row(i);
  });
}

struct GatePolicy {
  const char* name;
  bool losses, never_normalized, normalized_after;
};
constexpr GatePolicy kPolicies[] = {
    {"gate, gradient", true, false, false},
    {"gate, gradient, never normalized", true, true, false},
    {"gate, gradient, normalized after", true, false, true},
    {"gate, gradient without losses", false, false, false},
    {"gate, gradient, never, without losses", false, true, false}};

// The gate's sums of probabilities and its gradient, in two groups, the last
// token of each padding.
void CheckGate(int64_t group_size, int64_t experts) {
  const int64_t tokens = 2 * group_size;
  const Buffer<float> logits = Numbers(1, tokens * experts), logit(2 * tokens),
                      sum(tokens), sums(2 * experts),
                      d_weight = Numbers(2, 2 * tokens);
  const Buffer<float> d_balance(std::vector<float>{0.7f}),
      d_z(std::vector<float>{0.2f});
  const Buffer<double> divisor(std::vector<double>{3.0, 5.0});
  std::vector<int32_t> valid(tokens, 1), count;
  valid[group_size - 1] = valid[tokens - 1] = 0;
  for (int64_t i = 0; i < 2 * experts; ++i) {
    count.push_back(static_cast<int32_t>(i % 7));
  }
  const Buffer<int32_t> chosen(2 * tokens), valid_there(valid),
      count_there(count);
  Check(LaunchRows(TopTwo{logits.data(), experts, chosen.data(), logit.data(),
                          sum.data()},
                   tokens, nullptr),
        "top two");
  Check(LaunchElements(ProbabilitySums{logits.data(), valid_there.data(),
                                       logit.data(), sum.data(), tokens,
                                       group_size, experts, sums.data()},
                       2 * experts, nullptr),
        "sums of probabilities");
  std::vector<float> log_sums(tokens);
  const auto p = [&](int64_t t, int64_t e) {
    return std::exp(X(1, t * experts + e) - log_sums[t]);
  };
  for (int64_t t = 0; t < tokens; ++t) {
    double total = 0;
    for (int64_t e = 0; e < experts; ++e) {
      total += std::exp(X(1, t * experts + e));
    }
    log_sums[t] = static_cast<float>(std::log(total));
  }
  const double difference = Difference(sums.Read(), [&](int64_t i) {
    double of_group = 0;
    for (int64_t t = 0; t < group_size - 1; ++t) {
      of_group += p(i / experts * group_size + t, i % experts);
    }
    return of_group;
  });
  Report("gate, sums of probabilities", difference <= 1e-5, difference);
  // All choices have slots, but the second ones of every other token, and the
  // first ones of every third.
  std::vector<int32_t> expert = chosen.Read(), slot(2 * tokens, 0);
  for (int64_t t = 0; t < tokens; ++t) {
    if (valid[t] == 0) expert[2 * t] = expert[2 * t + 1] = -1;
    if (t % 2 == 1) slot[2 * t + 1] = -1;
    if (t % 3 == 1) slot[2 * t] = -1;
  }
  const Buffer<int32_t> expert_there(expert), slot_there(slot);
  const Buffer<float> log_sum(log_sums);
  for (const GatePolicy& policy : kPolicies) {
    const Buffer<float> out(tokens * experts);
    GateGradient gradient = {};
    gradient.logits = logits.data();
    gradient.expert = expert_there.data();
    gradient.slot = slot_there.data();
    gradient.count = count_there.data();
    gradient.log_sum = log_sum.data();
    gradient.d_weight = d_weight.data();
    gradient.d_balance = d_balance.data();
    gradient.d_z = d_z.data();
    gradient.divisor = divisor.data();
    gradient.group_size = group_size;
    gradient.experts = experts;
    gradient.valid_tokens = tokens - 2;
    gradient.losses = policy.losses;
    gradient.never_normalized = policy.never_normalized;
    gradient.normalized_after = policy.normalized_after;
    gradient.d_logits = out.data();
    Check(LaunchRows(gradient, tokens, nullptr), policy.name);
    // By way of the probabilities, of the log of their sum, and of what the
    // weights are made of.
    const double of_logits = Difference(out.Read(), [&](int64_t i) {
      const int64_t t = i / experts, e = i % experts, g = t / group_size;
      const int32_t* const two = expert.data() + 2 * t;
      if (valid[t] == 0) return 0.0;
      double d = 0, of_choice[2] = {};
      for (int k = 0; k < 2; ++k) {
        if (slot[2 * t + k] >= 0 && two[k] >= 0) {
          of_choice[k] = X(2, 2 * t + k);
        }
      }
      if (policy.losses) {
        const auto f = [&](int64_t j) {
          return 0.7 * static_cast<double>(experts) / (g == 0 ? 3.0 : 5.0) *
                 count[g * experts + j];
        };
        double dot = 0;
        for (int64_t j = 0; j < experts; ++j) dot += p(t, j) * f(j);
        d +=
            p(t, e) * (f(e) - dot +
                       2 * 0.2 * log_sums[t] / static_cast<double>(tokens - 2));
      }
      if (policy.never_normalized) {  // the weights are the probabilities
        for (int k = 0; k < 2; ++k) {
          if (two[k] < 0) continue;
          d += of_choice[k] * p(t, two[k]) * ((e == two[k]) - p(t, e));
        }
        return d;
      }
      const bool both = slot[2 * t] >= 0 && slot[2 * t + 1] >= 0;
      if (two[1] < 0 || (policy.normalized_after && !both)) return d;
      const double ratio =
          std::exp(X(1, t * experts + two[1]) - X(1, t * experts + two[0]));
      const double moved =
          (of_choice[0] - of_choice[1]) * ratio / ((1 + ratio) * (1 + ratio));
      return d + moved * ((e == two[0]) - (e == two[1]));
    });
    Report(policy.name, of_logits <= 1e-5, of_logits);
  }
}

}  // namespace

void CheckGates(bool quick) {
  CheckGate(5, 1);
  CheckGate(5, 3);
  CheckGate(9, 70);
  for (const int64_t experts : {1, 2, 3, 31, 64, 1000}) {
    CheckTopTwo(50, experts);
  }
  for (const int64_t width : {2, 31, 33, 200}) CheckTokens(9, width);
  if (quick) return;
  CheckGate(1000, 128);
  CheckTopTwo(5000, 2048);
  CheckTopTwo(150'000, 3);  // more than there are warps
  CheckTokens(3000, 1024);
}

}  // namespace gshard::cuda
