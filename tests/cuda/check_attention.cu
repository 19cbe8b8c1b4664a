// Holds attention and its gradient to float64. A sentence alone has the same
// bits, and so has a second run.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "services/cuda/kernels/launch_attention.h"
#include "tests/cuda/rows.h"

namespace gshard::cuda {
namespace {

// Sentences of different lengths, some of them empty.
struct AttentionCase {
  int64_t sentences, heads, queries, keys, width;
  bool causal = false;
  int64_t first_query = 0, all_queries = 0;
  float dropout = 0.0f;

  int64_t all() const { return all_queries > 0 ? all_queries : queries; }
  int64_t length(int64_t b) const {
    return b % 4 == 2 ? 0 : keys - b % std::max<int64_t>(keys, 1);
  }
  std::string Text() const {
    return std::to_string(sentences) + " x " + std::to_string(heads) + ", " +
           std::to_string(queries) + " to " + std::to_string(keys) + " of " +
           std::to_string(width);
  }
};

constexpr uint64_t kDropoutKey = 77;
constexpr int64_t kFirstSentence = 5, kFirstHead = 2;
constexpr float kScale = 0.5f;

// The results for some of the sentences.
struct AttentionResults {
  AttentionResults(const AttentionCase& c, int64_t sentences)
      : out(sentences * c.queries * c.heads * c.width),
        statistics(sentences * c.heads * c.queries * 2),
        dots(sentences * c.heads * c.queries),
        dq(out.size()),
        dk(sentences * c.keys * c.heads * c.width),
        dv(dk.size()) {}

  Buffer<float> out, statistics, dots, dq, dk, dv;
};

FloatsOrRounded From(const Buffer<float>& x, int64_t at) {
  return {x.data() + at, nullptr};
}
FloatsOrRounded From(const Buffer<BFloat16>& x, int64_t at) {
  return {nullptr, x.data() + at};
}

// The same in float64.
struct ExpectedAttention {
  std::vector<double> out, statistics, dq, dk, dv;
};

template <typename T>
ExpectedAttention Expect(const AttentionCase& c) {
  const int64_t of_queries = c.sentences * c.queries * c.heads * c.width,
                of_keys = c.sentences * c.keys * c.heads * c.width;
  ExpectedAttention e = {
      std::vector<double>(of_queries),
      std::vector<double>(c.sentences * c.heads * c.queries * 2),
      std::vector<double>(of_queries), std::vector<double>(of_keys),
      std::vector<double>(of_keys)};
  const auto numbers = [](uint64_t seed, int64_t size) {
    std::vector<double> values(size);
    for (int64_t i = 0; i < size; ++i) values[i] = Wide(Number<T>(seed, i));
    return values;
  };
  const std::vector<double> q = numbers(1, of_queries), k = numbers(2, of_keys),
                            v = numbers(3, of_keys);
  std::vector<double> dout(of_queries);
  for (int64_t i = 0; i < of_queries; ++i) dout[i] = X(4, i);
  std::vector<double> p(c.keys), dp(c.keys), kept(c.keys);
  for (int64_t row = 0; row < c.sentences * c.heads * c.queries; ++row) {
    const int64_t b = row / (c.heads * c.queries),
                  n = row / c.queries % c.heads, i = row % c.queries,
                  query = c.first_query + i;
    // The last query of all sees all keys.
    const int64_t seen =
        c.causal ? std::max<int64_t>(0, c.keys - (c.all() - 1 - query))
                 : c.keys;
    const int64_t visible = std::min(c.length(b), seen);
    const DropoutMask drop(
        c.dropout,
        FoldIn(FoldIn(FoldIn(kDropoutKey, kFirstSentence + b), kFirstHead + n),
               query));
    const int64_t of_query = ((b * c.queries + i) * c.heads + n) * c.width;
    const auto of_key = [&](int64_t j) {
      return ((b * c.keys + j) * c.heads + n) * c.width;
    };
    double max = -INFINITY, sum = 0, dot = 0;
    for (int64_t j = 0; j < visible; ++j) {
      p[j] = dp[j] = 0;
      kept[j] = c.dropout > 0 ? drop.Factor(j) : 1.0;
      for (int64_t d = 0; d < c.width; ++d) {
        p[j] += kScale * q[of_query + d] * k[of_key(j) + d];
        dp[j] += kept[j] * dout[of_query + d] * v[of_key(j) + d];
      }
      max = std::max(max, p[j]);
    }
    for (int64_t j = 0; j < visible; ++j) sum += p[j] = std::exp(p[j] - max);
    for (int64_t j = 0; j < visible; ++j) dot += (p[j] /= sum) * dp[j];
    if (visible > 0) {
      e.statistics[2 * row] = max;
      e.statistics[2 * row + 1] = 1 / sum;
    }
    for (int64_t j = 0; j < visible; ++j) {
      const double dlogit = kScale * p[j] * (dp[j] - dot);
      for (int64_t d = 0; d < c.width; ++d) {
        e.out[of_query + d] += p[j] * kept[j] * v[of_key(j) + d];
        e.dq[of_query + d] += dlogit * k[of_key(j) + d];
        e.dk[of_key(j) + d] += dlogit * q[of_query + d];
        e.dv[of_key(j) + d] += p[j] * kept[j] * dout[of_query + d];
      }
    }
  }
  return e;
}

template <typename T>
void CheckAttention(const AttentionCase& c) {
  const int64_t of_queries = c.queries * c.heads * c.width,  // of a sentence
      of_keys = c.keys * c.heads * c.width;
  std::vector<int32_t> lengths;
  for (int64_t b = 0; b < c.sentences; ++b) {
    lengths.push_back(static_cast<int32_t>(c.length(b)));
  }
  const Buffer<int32_t> there(lengths);
  const Buffer<T> q(c.sentences * of_queries), k(c.sentences * of_keys),
      v(k.size());
  const Buffer<float> dout(q.size());
  Fill(q, 1);
  Fill(k, 2);
  Fill(v, 3);
  Fill(dout, 4);
  const auto run = [&](int64_t first, const AttentionResults& results) {
    AttentionOperands o = {};
    o.batch = c.sentences - first;
    o.width = c.width;
    o.mask.lengths = there.data() + first;
    o.mask.heads = c.heads;
    o.mask.queries = c.queries;
    o.mask.keys = c.keys;
    o.mask.first_sentence = kFirstSentence + first;
    o.mask.first_head = kFirstHead;
    o.mask.first_query = c.first_query;
    o.mask.all_queries = c.all();
    o.mask.causal = c.causal;
    o.mask.scale = kScale;
    o.mask.dropout_rate = c.dropout;
    o.mask.dropout_key = kDropoutKey;
    o.q = From(q, first * of_queries);
    o.k = From(k, first * of_keys);
    o.v = From(v, first * of_keys);
    Check(LaunchAttention({o, results.out.data(), results.statistics.data()},
                          nullptr),
          "attention");
    Check(LaunchAttentionGradient(
              {o, results.statistics.data(), dout.data() + first * of_queries,
               results.dots.data(), results.dq.data(), results.dk.data(),
               results.dv.data()},
              nullptr),
          "attention, gradient");
  };
  const AttentionResults all(c, c.sentences), again(c, c.sentences), last(c, 1);
  run(0, all);
  run(0, again);
  run(c.sentences - 1, last);
  const ExpectedAttention expected = Expect<T>(c);
  const auto report = [&](const char* what, Buffer<float> AttentionResults::*of,
                          const std::vector<double>& e, double tolerance) {
    const std::vector<float> a = (all.*of).Read(), b = (again.*of).Read(),
                             alone = (last.*of).Read();
    const double difference = Difference(a, [&](int64_t i) { return e[i]; });
    const bool same = std::memcmp(a.data(), b.data(), a.size() * 4) == 0 &&
                      std::memcmp(a.data() + a.size() - alone.size(),
                                  alone.data(), alone.size() * 4) == 0;
    Report(std::string(sizeof(T) == 2 ? "bf16 " : "f32 ") + "attention, " +
               what + ", " + c.Text(),
           same && difference <= tolerance, difference);
  };
  report("result", &AttentionResults::out, expected.out, 1e-5);
  report("statistics", &AttentionResults::statistics, expected.statistics,
         1e-5);
  report("dq", &AttentionResults::dq, expected.dq, 1e-4);
  report("dk", &AttentionResults::dk, expected.dk, 1e-4);
  report("dv", &AttentionResults::dv, expected.dv, 1e-4);
}

}  // namespace

void CheckAttentions(bool quick) {
  std::vector<AttentionCase> cases = {
      {1, 1, 1, 1, 1},
      {3, 2, 5, 5, 7, true, 0, 0, 0.25f},
      {3, 2, 3, 40, 64, true, 30, 37},
      {3, 2, 3, 3, 65, true, 2, 6, 0.25f},  // the first sees no keys
      {3, 2, 70, 130, 100, false, 0, 0, 0.25f},
      {2, 1, 130, 130, 256, true}};
  if (!quick) {
    cases.push_back({8, 16, 128, 128, 64, true, 0, 0, 0.1f});
    cases.push_back({2, 4, 1000, 1000, 64, true});
    cases.push_back({2, 4, 500, 1000, 128, false, 0, 0, 0.1f});
  }
  for (const AttentionCase& c : cases) {
    CheckAttention<float>(c);
    CheckAttention<BFloat16>(c);
  }
}

}  // namespace gshard::cuda
