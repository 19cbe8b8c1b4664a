// Holds what routers compute to float64: each row with its bits alone, too, and
// twice with the same bits.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>

#include "services/cuda/kernels/launch_dense.h"
#include "tests/cuda/rows.h"

namespace gshard::cuda {
namespace {

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
  const Buffer<float> total(1);
  Check(LaunchElements(SumOfLosses{losses.data(), rows, total.data()}, 1,
                       nullptr),
        "sum of losses");
  CheckExact("sum of losses", total, [&](int64_t) {
    return static_cast<float>(std::accumulate(got.begin(), got.end(), 0.0));
  });
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

void CheckPagedAttention(int64_t rows, int64_t length, int64_t width) {
  constexpr int64_t kHeads = 3, kPositions = 16;
  const int64_t of_row = BlocksAlong(length, kPositions);
  const int64_t size = rows * of_row * kPositions * kHeads * width;
  const Buffer<float> q = Numbers(1, rows * kHeads * width),
                      keys = Numbers(2, size), values = Numbers(3, size);
  std::vector<int32_t> pages, lengths;
  for (int64_t r = 0; r < rows; ++r) {
    lengths.push_back(static_cast<int32_t>(r == 1 ? 0 : length - r % length));
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

// Equal groups have the bits of the same groups as tiles, or with offsets.
template <typename T>
void CheckEvenGroups(int32_t rows_of_each) {
  constexpr int64_t kExperts = 3, kK = 40, kN = 72;
  const std::vector<int32_t> sizes(kExperts, rows_of_each);
  const int64_t count = kExperts * rows_of_each;
  const Buffer<T> rows(count * kK), weights(kExperts * kK * kN),
      dresult(count * kN);
  Fill(rows, 1);
  Fill(weights, 2);
  Fill(dresult, 3);
  const auto check = [&](const char* of, const Buffer<float>& even,
                         const Buffer<float>& ragged) {
    const std::vector<float> expected = ragged.Read();
    CheckExact((sizeof(T) == 2 ? "bf16 " : "f32 ") + std::string(of) +
                   ", even groups of " + std::to_string(rows_of_each),
               even, [&](int64_t i) { return expected[i]; });
  };
  for (const bool transposed : {false, true}) {
    const Buffer<float> even(count * kN), ragged(count * kN);
    RaggedProduct<T> p = {};
    p.rows = rows.data();
    p.weights = weights.data();
    p.transposed = transposed;
    p.k = kK;
    p.n = kN;
    p.out = ragged.data();
    Rows<T>(sizes).Multiply(p);
    p.out = even.data();
    p.tiles = nullptr;
    p.rows_of_each = rows_of_each;
    const bool bf16 = sizeof(T) == 2, small = bf16 && rows_of_each <= kFewRows;
    p.num_tiles =
        kExperts * BlocksAlong(rows_of_each, small  ? SmallTile::kRows
                                             : bf16 ? LargeTile::kRows
                                                    : FloatTile::kRows);
    if constexpr (sizeof(T) == 2) {
      Check(small ? LaunchSmallRaggedProduct(p, nullptr)
                  : LaunchRaggedProduct(p, nullptr),
            "even groups");
    } else {
      Check(LaunchRaggedProduct(p, nullptr), "even groups");
    }
    check(transposed ? "rows' gradient" : "product", even, ragged);
  }
  const Buffer<float> even(weights.size()), ragged(weights.size());
  const Buffer<int64_t> offsets(GroupOffsets(sizes));
  RaggedWeightsGradient<T> g = {
      rows.data(), dresult.data(), offsets.data(), kExperts, kK,
      kN,          ragged.data()};
  Check(LaunchRaggedWeightsGradient(g, nullptr), "even groups");
  g.offsets = nullptr;
  g.rows_of_each = rows_of_each;
  g.out = even.data();
  Check(LaunchRaggedWeightsGradient(g, nullptr), "even groups");
  check("weights' gradient", even, ragged);
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
  const Buffer<BFloat16> rounded(table.size());
  Fill(rounded, 1);
  for (const bool bf16 : {false, true}) {
    const FloatsOrRounded rows = {bf16 ? nullptr : table.data(),
                                  bf16 ? rounded.data() : nullptr};
    CheckRows(
        bf16 ? "embedding of bf16" : "embedding", 6, width, 0,
        [&](int64_t first, int64_t count, float* out) {
          return LaunchElements(
              TableRows{rows, there.data() + first, width, out}, count * width,
              nullptr);
        },
        [&](int64_t r, int64_t c) {
          const int64_t i = ids[r] * width + c;
          return bf16 ? Wide(Number<BFloat16>(1, i)) : X(1, i);
        });
  }
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

void CheckElements(int64_t rows, int64_t width) {
  const int64_t size = rows * width;
  const Buffer<float> x = Numbers(1, size), y = Numbers(2, width);
  Buffer<float> out(size);
  const auto value = [](uint64_t seed, int64_t i) {
    return Number<float>(seed, i);
  };
  const auto run = [&](const auto& function, const std::string& what,
                       const std::function<float(int64_t)>& expected) {
    out.Poison();
    Check(LaunchElements(function, size, nullptr), what.c_str());
    CheckExact(what, out, expected);
  };
  using Op = Binary::Op;
  run(Binary{Op::kAdd, x.data(), y.data(), width, out.data()}, "add",
      [&](int64_t i) { return value(1, i) + value(2, i % width); });
  run(Binary{Op::kSubtract, x.data(), y.data(), width, out.data()}, "subtract",
      [&](int64_t i) { return value(1, i) - value(2, i % width); });
  run(Binary{Op::kMultiply, x.data(), y.data(), width, out.data()}, "multiply",
      [&](int64_t i) { return value(1, i) * value(2, i % width); });
  run(Binary{Op::kDivide, x.data(), y.data(), width, out.data()}, "divide",
      [&](int64_t i) { return value(1, i) / value(2, i % width); });
  run(ScaleBy{x.data(), 0.3f, out.data()}, "scale",
      [&](int64_t i) { return value(1, i) * 0.3f; });
  run(Exponential{x.data(), out.data()}, "exp",
      [&](int64_t i) { return Exp(value(1, i)); });
  const DropoutMask mask(0.25f, 9);
  run(DropElements{x.data(), mask, out.data()}, "dropout",
      [&](int64_t i) { return value(1, i) * mask.Factor(i); });
  Strides from, to, to_rows;  // a transpose
  from.Add(width, 1);
  from.Add(rows, width);
  to.Add(width, rows);
  to.Add(rows, 1);
  to_rows.Add(size, 1);
  run(CopyStrided<float>{x.data(), from, to, out.data()}, "transpose",
      [&](int64_t i) { return value(1, i % rows * width + i / rows); });
  Strides all = {};  // one row for all
  all.Add(rows, 0);
  all.Add(width, 1);
  run(CopyStrided<float>{y.data(), all, to_rows, out.data()}, "broadcast",
      [&](int64_t i) { return value(2, i % width); });
  // [rows, columns, 3] with its dimensions moved, in bfloat16.
  const int64_t columns = width / 3;
  const Buffer<BFloat16> rounded(size), moved(size);
  Fill(rounded, 1);
  Strides planes, whole;
  planes.Add(3, 1);
  planes.Add(rows, width);
  planes.Add(columns, 3);
  whole.Add(3, rows * columns);
  whole.Add(rows, columns);
  whole.Add(columns, 1);
  Check(LaunchElements(
            CopyStrided<BFloat16>{rounded.data(), planes, whole, moved.data()},
            size, nullptr),
        "transpose");
  CheckExact("transpose of bf16", moved, [&](int64_t i) {
    return value(1, i % (rows * columns) * 3 + i / (rows * columns));
  });
  const Buffer<float> largest(rows);
  ReduceStrided reduce = {
      ReduceStrided::Op::kMax, x.data(), {}, rows, {}, width, largest.data()};
  reduce.kept.Add(rows, width);
  reduce.reduced.Add(width, 1);
  Check(LaunchElements(reduce, rows, nullptr), "maximum");
  CheckExact("maximum of rows", largest, [&](int64_t r) {
    float most = value(1, r * width);
    for (int64_t i = 1; i < width; ++i) {
      most = std::max(most, value(1, r * width + i));
    }
    return most;
  });
  std::vector<int32_t> slots(rows), positions(rows);
  for (int64_t r = 0; r < rows; ++r) {
    slots[r] = static_cast<int32_t>(rows - 1 - r);
    positions[r] = static_cast<int32_t>(r < 3 ? r : r * 150'001);
  }
  const Buffer<int32_t> there(slots), positions_there(positions);
  run(PutRows{x.data(), there.data(), width, out.data()}, "rows of a cache",
      [&](int64_t i) {
        return value(1, (rows - 1 - i / width) * width + i % width);
      });
  const double step = -0.1;
  out.Poison();
  Check(LaunchElements(
            PositionRows{positions_there.data(), width, step, out.data()}, size,
            nullptr),
        "positions");
  const double difference = Difference(out.Read(), [&](int64_t i) {
    const int64_t half = width / 2, c = i % width;
    if (c >= 2 * half) return 0.0;
    const double angle =
        positions[i / width] * std::exp(step * static_cast<double>(c % half));
    return c < half ? std::sin(angle) : std::cos(angle);
  });
  Report("positions", difference <= 1e-6, difference);
}

}  // namespace

void CheckDense(bool quick) {
  CheckElements(7, 33);
  for (const int64_t width : {2, 31, 33, 200}) {
    CheckNorm(5, width);
    CheckCrossEntropy(7, width);
    CheckTable(width);
  }
  for (const int64_t length : {1, 32, 33, 100}) {
    CheckPagedAttention(4, length, 7);
    CheckPagedAttention(3, length, PagedAttentionRows::kMostWidth);
  }
  for (const int32_t rows : {1, 16, 33, 130}) {
    CheckEvenGroups<BFloat16>(rows);
    CheckEvenGroups<float>(rows);
  }
  if (quick) return;
  CheckNorm(4000, 1024);
  CheckCrossEntropy(500, 32000);
  CheckPagedAttention(40, 1000, 128);
}

}  // namespace gshard::cuda
