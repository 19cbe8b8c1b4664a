// Holds what routers compute to float64: each row with its bits alone, too, and
// twice with the same bits.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "services/cuda/kernels/launch_dense.h"
#include "tests/cuda/gpu.h"

namespace gshard::cuda {
namespace {

double X(uint64_t seed, int64_t i) { return Number<float>(seed, i); }

Buffer<float> Numbers(uint64_t seed, int64_t size) {
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i) values[i] = Number<float>(seed, i);
  return Buffer<float>(values);
}

// ||got - expected|| / ||expected||, infinite for NaN.
double Difference(const std::vector<float>& got,
                  const std::function<double(int64_t)>& expected) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double e = expected(static_cast<int64_t>(i));
    difference += (got[i] - e) * (got[i] - e);
    size += e * e;
  }
  if (difference == 0) return 0;
  const double ratio = std::sqrt(difference / size);
  return std::isfinite(ratio) ? ratio : INFINITY;
}

// `launch(first, rows, out)` computes rows [first, first + rows) of `width`
// elements. Holds all of them to `expected(row, column)`; launched again they
// are to have the same bits, and the last one alone, too.
void CheckRows(
    const std::string& what, int64_t rows, int64_t width, double tolerance,
    const std::function<cudaError_t(int64_t, int64_t, float*)>& launch,
    const std::function<double(int64_t, int64_t)>& expected) {
  const Buffer<float> out(rows * width), again(rows * width), alone(width);
  Check(launch(0, rows, out.data()), what.c_str());
  Check(launch(0, rows, again.data()), what.c_str());
  Check(launch(rows - 1, 1, alone.data()), what.c_str());
  const std::vector<float> a = out.Read(), b = again.Read(), c = alone.Read();
  const double difference =
      Difference(a, [&](int64_t i) { return expected(i / width, i % width); });
  const bool good =
      difference <= tolerance &&
      std::memcmp(a.data(), b.data(), a.size() * 4) == 0 &&
      std::memcmp(a.data() + (rows - 1) * width, c.data(), width * 4) == 0;
  Report(
      what + ", " + std::to_string(rows) + " rows of " + std::to_string(width),
      good, difference);
}

void CheckNorm(int64_t rows, int64_t width) {
  const Buffer<float> x = Numbers(1, rows * width), scale = Numbers(2, width),
                      dy = Numbers(3, rows * width), inverse(rows),
                      dscale(rows * width);
  const float epsilon = 1e-6f;
  std::vector<double> rms(rows), dots(rows);
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0, dot = 0;
    for (int64_t i = 0; i < width; ++i) {
      const double at = X(1, r * width + i);
      sum += at * at;
      dot += X(3, r * width + i) * at * X(2, i);
    }
    rms[r] = 1 / std::sqrt(sum / static_cast<double>(width) + epsilon);
    dots[r] = dot;
  }
  CheckRows(
      "rms norm", rows, width, 1e-6,
      [&](int64_t first, int64_t count, float* out) {
        return LaunchRows(
            RmsNormRows{x.data() + first * width, scale.data(), width, epsilon,
                        out, inverse.data() + first},
            count, nullptr);
      },
      [&](int64_t r, int64_t i) {
        return X(1, r * width + i) * rms[r] * X(2, i);
      });
  CheckRows(
      "rms norm, gradient", rows, width, 1e-5,
      [&](int64_t first, int64_t count, float* out) {
        const int64_t at = first * width;
        return LaunchRows(
            RmsNormGradientRows{x.data() + at, scale.data(),
                                inverse.data() + first, dy.data() + at, width,
                                out, dscale.data() + at},
            count, nullptr);
      },
      [&](int64_t r, int64_t i) {
        const double factor =
            dots[r] * rms[r] * rms[r] * rms[r] / static_cast<double>(width);
        return X(3, r * width + i) * X(2, i) * rms[r] -
               X(1, r * width + i) * factor;
      });
  // Of the scale: sums of what the rows gave.
  const int64_t parts = BlocksAlong(rows, kReduced);
  const Buffer<float> some(parts * width), sums(width);
  ReduceStrided reduce = {
      ReduceStrided::Op::kSum, dscale.data(), {}, width, {}, rows, some.data()};
  reduce.kept.Add(width, 1);
  reduce.reduced.Add(rows, width);
  Check(LaunchElements(reduce, parts * width, nullptr), "reduce");
  reduce.x = some.data();
  reduce.reduced = {};
  reduce.reduced.Add(parts, width);
  reduce.reduced_size = parts;
  reduce.out = sums.data();
  if (parts <= kReduced) {
    Check(LaunchElements(reduce, width, nullptr), "reduce");
    const double difference = Difference(sums.Read(), [&](int64_t i) {
      double sum = 0;
      for (int64_t r = 0; r < rows; ++r) {
        sum += X(3, r * width + i) * X(1, r * width + i) * rms[r];
      }
      return sum;
    });
    Report("sum over rows", difference <= 1e-5, difference);
  }
}

void CheckCrossEntropy(int64_t rows, int64_t vocabulary) {
  const Buffer<float> logits = Numbers(1, rows * vocabulary), lse(rows),
                      upstream(std::vector<float>{0.5f});
  const Buffer<double> losses(rows);
  std::vector<int32_t> labels;
  std::vector<double> log_sums(rows), totals(rows);
  for (int64_t r = 0; r < rows; ++r) {
    labels.push_back(static_cast<int32_t>(r * 7 % vocabulary));
    if (r % 5 == 4) labels.back() = -1;
    double sum = 0;
    for (int64_t i = 0; i < vocabulary; ++i) {
      sum += std::exp(X(1, r * vocabulary + i));
      totals[r] += X(1, r * vocabulary + i);
    }
    log_sums[r] = std::log(sum);
  }
  const Buffer<int32_t> there(labels);
  const float smoothing = 0.1f, z_loss = 0.01f;
  const double V = static_cast<double>(vocabulary);
  CheckRows(
      "cross entropy, log of sums", rows, 1, 1e-6,
      [&](int64_t first, int64_t count, float* out) {
        return LaunchRows(
            CrossEntropyRows{logits.data() + first * vocabulary,
                             there.data() + first, vocabulary, smoothing,
                             z_loss, losses.data() + first, out},
            count, nullptr);
      },
      [&](int64_t r, int64_t) { return labels[r] < 0 ? 0 : log_sums[r]; });
  const std::vector<double> got = losses.Read();
  double worst = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const double expected =
        labels[r] < 0
            ? 0
            : log_sums[r] - (1 - smoothing) * X(1, r * vocabulary + labels[r]) -
                  smoothing / V * totals[r] +
                  z_loss * log_sums[r] * log_sums[r];
    worst = std::max(worst, std::abs(got[r] - expected));
  }
  Report("cross entropy, losses", worst <= 1e-5, worst);
  Check(
      LaunchRows(CrossEntropyRows{logits.data(), there.data(), vocabulary,
                                  smoothing, z_loss, losses.data(), lse.data()},
                 rows, nullptr),
      "cross entropy");
  CheckRows(
      "cross entropy, gradient", rows, vocabulary, 1e-5,
      [&](int64_t first, int64_t count, float* out) {
        return LaunchElements(
            CrossEntropyGradientElements{logits.data() + first * vocabulary,
                                         there.data() + first,
                                         lse.data() + first, upstream.data(),
                                         vocabulary, smoothing, z_loss, out},
            count * vocabulary, nullptr);
      },
      [&](int64_t r, int64_t i) {
        if (labels[r] < 0) return 0.0;
        const double p = std::exp(X(1, r * vocabulary + i) - log_sums[r]);
        return 0.5 * (p * (1 + 2 * z_loss * log_sums[r]) - smoothing / V -
                      (i == labels[r] ? 1 - smoothing : 0.0));
      });
}

void CheckAttention(int64_t rows, int64_t keys) {
  // One head, of which each row is a query of its own sentence.
  std::vector<int32_t> lengths;
  for (int64_t r = 0; r < rows; ++r) {
    lengths.push_back(static_cast<int32_t>(keys - r % keys));
  }
  const Buffer<int32_t> there(lengths);
  const Buffer<float> probabilities = Numbers(2, rows * keys);
  const auto mask = [&](int64_t first) {
    AttentionMask mask = {};
    mask.lengths = there.data() + first;
    mask.heads = mask.queries = mask.all_queries = 1;
    mask.keys = keys;
    mask.scale = 0.5f;
    return mask;
  };
  const auto copy = [&](uint64_t seed, int64_t first, int64_t count,
                        float* out) {
    const Buffer<float> x = Numbers(seed, rows * keys);
    Check(cudaMemcpy(out, x.data() + first * keys, count * keys * 4,
                     cudaMemcpyDeviceToDevice),
          "copy");
  };
  CheckRows(
      "attention's softmax", rows, keys, 1e-6,
      [&](int64_t first, int64_t count, float* out) {
        copy(1, first, count, out);
        return LaunchRows(AttentionSoftmax{mask(first), out, nullptr}, count,
                          nullptr);
      },
      [&](int64_t r, int64_t j) {
        double sum = 0;
        for (int64_t i = 0; i < lengths[r]; ++i) {
          sum += std::exp(0.5 * X(1, r * keys + i));
        }
        return j < lengths[r] ? std::exp(0.5 * X(1, r * keys + j)) / sum : 0.0;
      });
  CheckRows(
      "attention's softmax, gradient", rows, keys, 1e-5,
      [&](int64_t first, int64_t count, float* out) {
        copy(1, first, count, out);
        return LaunchRows(
            AttentionSoftmaxGradient{
                mask(first), probabilities.data() + first * keys, out, nullptr},
            count, nullptr);
      },
      [&](int64_t r, int64_t j) {
        double sum = 0;
        for (int64_t i = 0; i < lengths[r]; ++i) {
          sum += X(2, r * keys + i) * X(1, r * keys + i);
        }
        return j < lengths[r]
                   ? 0.5 * X(2, r * keys + j) * (X(1, r * keys + j) - sum)
                   : 0.0;
      });
}

void CheckPagedAttention(int64_t rows, int64_t length, int64_t width) {
  constexpr int64_t kHeads = 3, kPositions = 16;
  const int64_t of_row = BlocksAlong(length, kPositions);
  const int64_t size = rows * of_row * kPositions * kHeads * width;
  const Buffer<float> q = Numbers(1, rows * kHeads * width),
                      keys = Numbers(2, size), values = Numbers(3, size);
  std::vector<int32_t> pages, lengths;
  for (int64_t r = 0; r < rows; ++r) {
    lengths.push_back(static_cast<int32_t>(length - r % length));
    for (int64_t t = 0; t < of_row; ++t) {  // from behind
      pages.push_back(static_cast<int32_t>((r + 1) * of_row - 1 - t));
    }
  }
  const Buffer<int32_t> pages_there(pages), lengths_there(lengths);
  const auto at = [&](int64_t r, int64_t head, int64_t j) {
    return ((pages[r * of_row + j / kPositions] * kPositions + j % kPositions) *
                kHeads +
            head) *
           width;
  };
  std::vector<std::vector<double>> weights(rows * kHeads);
  for (int64_t i = 0; i < rows * kHeads; ++i) {
    double sum = 0;
    for (int64_t j = 0; j < lengths[i / kHeads]; ++j) {
      double dot = 0;
      for (int64_t d = 0; d < width; ++d) {
        dot += X(1, i * width + d) * X(2, at(i / kHeads, i % kHeads, j) + d);
      }
      weights[i].push_back(std::exp(0.3 * dot));
      sum += weights[i].back();
    }
    for (double& weight : weights[i]) weight /= sum;
  }
  CheckRows(
      "attention to pages, " + std::to_string(length) + " keys", rows,
      kHeads * width, 1e-5,
      [&](int64_t first, int64_t count, float* out) {
        PagedAttentionRows attention = {};
        attention.q = q.data() + first * kHeads * width;
        attention.keys = keys.data();
        attention.values = values.data();
        attention.pages = pages_there.data() + first * of_row;
        attention.lengths = lengths_there.data() + first;
        attention.heads = kHeads;
        attention.width = width;
        attention.positions = kPositions;
        attention.most_pages = of_row;
        attention.scale = 0.3f;
        attention.out = out;
        return LaunchRows(attention, count * kHeads, nullptr);
      },
      [&](int64_t r, int64_t c) {
        const int64_t i = r * kHeads + c / width;
        double sum = 0;
        for (size_t j = 0; j < weights[i].size(); ++j) {
          sum += weights[i][j] *
                 X(3, at(r, c / width, static_cast<int64_t>(j)) + c % width);
        }
        return sum;
      });
}

// Few different logits, so that there are many equal ones.
void CheckTopTwo(int64_t tokens, int64_t experts) {
  std::vector<float> logits;
  for (int64_t i = 0; i < tokens * experts; ++i) {
    logits.push_back(static_cast<float>(SplitMix64(i) % 9));
  }
  const Buffer<float> there(logits), logit(2 * tokens), sum(tokens);
  const Buffer<int32_t> expert(2 * tokens);
  Check(LaunchRows(TopTwo{there.data(), experts, expert.data(), logit.data(),
                          sum.data()},
                   tokens, nullptr),
        "top two");
  const std::vector<int32_t> got = expert.Read();
  const std::vector<float> sums = sum.Read();
  int64_t differences = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const float* const x = logits.data() + t * experts;
    int64_t first = 0, second = -1;
    double total = 0;
    for (int64_t e = 1; e < experts; ++e) first = x[e] > x[first] ? e : first;
    for (int64_t e = 0; e < experts; ++e) {
      total += std::exp(static_cast<double>(x[e]) - x[first]);
      if (e != first && (second < 0 || x[e] > x[second])) second = e;
    }
    differences += got[2 * t] != first || got[2 * t + 1] != second ||
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
                      weight = Numbers(2, 2 * tokens), d_weight(2 * tokens),
                      rows(count * width);
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
}

// Equal groups have the bits of the same groups as tiles.
template <typename T>
void CheckEvenGroups(int32_t rows_of_each) {
  constexpr int64_t kExperts = 3, kK = 40, kN = 72;
  const std::vector<int32_t> sizes(kExperts, rows_of_each);
  const Buffer<T> rows(kExperts * rows_of_each * kK),
      weights(kExperts * kK * kN);
  const Buffer<float> a(kExperts * rows_of_each * kN), b(a.size());
  Fill(rows, 1);
  Fill(weights, 2);
  RaggedProduct<T> p = {};
  p.rows = rows.data();
  p.weights = weights.data();
  p.k = kK;
  p.n = kN;
  p.out = a.data();
  Rows<T>(sizes).Multiply(p);
  p.out = b.data();
  p.tiles = nullptr;
  p.rows_of_each = rows_of_each;
  const bool bf16 = sizeof(T) == 2, small = bf16 && rows_of_each <= kFewRows;
  p.num_tiles = kExperts * BlocksAlong(rows_of_each, small  ? SmallTile::kRows
                                                     : bf16 ? LargeTile::kRows
                                                            : FloatTile::kRows);
  if constexpr (sizeof(T) == 2) {
    Check(small ? LaunchSmallRaggedProduct(p, nullptr)
                : LaunchRaggedProduct(p, nullptr),
          "even groups");
  } else {
    Check(LaunchRaggedProduct(p, nullptr), "even groups");
  }
  const auto got = a.Read(), again = b.Read();
  Report("even groups of " + std::to_string(rows_of_each),
         std::memcmp(got.data(), again.data(), got.size() * 4) == 0, 0);
}

// Embeddings, and sums of their gradients by id.
void CheckTable(int64_t width) {
  const std::vector<int32_t> ids = {4, 1, 4, 0, 4, 1};
  const std::vector<int32_t> distinct = {0, 1, 4}, offsets = {0, 1, 3, 6},
                             order = {3, 1, 5, 0, 2, 4};
  const Buffer<float> table = Numbers(1, 5 * width), dy = Numbers(2, 6 * width),
                      sums(5 * width);
  const Buffer<int32_t> there(ids), ids_there(distinct), offsets_there(offsets),
      order_there(order);
  CheckRows(
      "embedding", 6, width, 0,
      [&](int64_t first, int64_t count, float* out) {
        return LaunchElements(
            TableRows{
                {table.data(), nullptr}, there.data() + first, width, out},
            count * width, nullptr);
      },
      [&](int64_t r, int64_t c) { return X(1, ids[r] * width + c); });
  Check(LaunchElements(FillZeros{sums.data()}, 5 * width, nullptr), "zeros");
  Check(LaunchElements(
            TableGradient{dy.data(), ids_there.data(), offsets_there.data(),
                          order_there.data(), width, sums.data()},
            3 * width, nullptr),
        "embedding gradient");
  const double difference = Difference(sums.Read(), [&](int64_t i) {
    double sum = 0;
    for (size_t r = 0; r < ids.size(); ++r) {
      if (ids[r] == i / width) {
        sum += X(2, static_cast<int64_t>(r) * width + i % width);
      }
    }
    return sum;
  });
  Report("embedding, gradient", difference <= 1e-6, difference);
}

}  // namespace

void CheckDense(bool quick) {
  for (const int64_t width : {2, 31, 33, 200}) {
    CheckNorm(5, width);
    CheckCrossEntropy(7, width);
    CheckAttention(7, width);
    CheckTokens(9, width);
    CheckTable(width);
  }
  for (const int64_t experts : {2, 3, 31, 64, 1000}) CheckTopTwo(50, experts);
  for (const int64_t length : {1, 32, 33, 100}) {
    CheckPagedAttention(4, length, 7);
    CheckPagedAttention(2, length, 64);
  }
  for (const int32_t rows : {1, 16, 33, 130}) {
    CheckEvenGroups<BFloat16>(rows);
    CheckEvenGroups<float>(rows);
  }
  if (quick) return;
  CheckNorm(4000, 1024);
  CheckCrossEntropy(500, 32000);
  CheckAttention(3000, 300);
  CheckTokens(3000, 1024);
  CheckTopTwo(5000, 2048);
  CheckPagedAttention(40, 1000, 128);
}

}  // namespace gshard::cuda
