// Holds what training does with parameters to the same functions on the host:
// bit for bit, but for sums of squares, which are held to float64 alone.

#include <cmath>
#include <string>

#include "services/cuda/kernels/launch_steps.h"
#include "tests/cuda/gpu.h"

namespace gshard::cuda {
namespace {

float Value(uint64_t seed, int64_t i) { return Number<float>(seed, i); }
// Not negative, as second moments are.
float Moment(uint64_t seed, int64_t i) { return std::fabs(Value(seed, i)); }

Buffer<float> Numbers(uint64_t seed, int64_t size, bool moments = false) {
  std::vector<float> values(size);
  for (int64_t i = 0; i < size; ++i) {
    values[i] = moments ? Moment(seed, i) : Value(seed, i);
  }
  return Buffer<float>(values);
}

// How many elements are not, bit for bit, expected(i).
template <typename T, typename Function>
void Compare(const std::string& what, const Buffer<T>& got,
             const Function& expected) {
  const std::vector<T> values = got.Read();
  int64_t differences = 0;
  for (int64_t i = 0; i < got.size(); ++i) {
    differences += !(values[i] == expected(i));
  }
  Report(what + " of " + std::to_string(got.size()), differences == 0,
         static_cast<double>(differences));
}

void CheckAdam(int64_t size) {
  const AdamStep step = {.gradient_scale = 0.7f,
                         .beta1 = 0.9f,
                         .keep1 = 0.1f,
                         .beta2 = 0.98f,
                         .keep2 = 0.02f,
                         .rate = 0.01f,
                         .inverse_root = 3.0f,
                         .epsilon = 1e-9f,
                         .keep = 0.999f};
  const Buffer<float> g = Numbers(1, size), w = Numbers(2, size),
                      first = Numbers(3, size), second = Numbers(4, size, true);
  Check(LaunchElements(
            AdamElements{step, g.data(), w.data(), first.data(), second.data()},
            size, nullptr),
        "adam");
  const auto stepped = [&](int64_t i, int which) {
    float x[3] = {Value(2, i), Value(3, i), Moment(4, i)};
    step.Update(Value(1, i), x[0], x[1], x[2]);
    return x[which];
  };
  Compare("adam, weights", w, [&](int64_t i) { return stepped(i, 0); });
  Compare("adam, first moments", first,
          [&](int64_t i) { return stepped(i, 1); });
  Compare("adam, second moments", second,
          [&](int64_t i) { return stepped(i, 2); });
  const Buffer<float> sum = Numbers(5, size);
  Check(LaunchElements(AddTo{g.data(), sum.data()}, size, nullptr), "sum");
  Compare("sum of gradients", sum,
          [](int64_t i) { return Value(5, i) + Value(1, i); });
}

void CheckSums(const RowsOfParts& rows) {
  const int64_t size = rows.parts * rows.size;
  const Buffer<float> x = Numbers(1, size);
  const Buffer<double> sums(rows.rows()), again(rows.rows()), parts(rows.parts);
  for (const Buffer<double>* const out : {&sums, &again}) {
    Check(
        LaunchRowSums(RowSums<Square>{rows, {x.data()}, out->data()}, nullptr),
        "sums of squares");
  }
  Check(LaunchElements(PartSums{sums.data(), rows.of_part(), parts.data()},
                       rows.parts, nullptr),
        "sums of parts");
  const auto first = again.Read();
  Compare("sums of squares, again", sums, [&](int64_t i) { return first[i]; });
  double worst = 0;
  const auto got = parts.Read();
  for (int64_t p = 0; p < rows.parts; ++p) {
    double sum = 0;
    for (int64_t i = p * rows.size; i < (p + 1) * rows.size; ++i) {
      sum += static_cast<double>(Value(1, i)) * Value(1, i);
    }
    worst = std::fmax(worst, std::isnan(got[p])
                                 ? 1.0
                                 : std::fabs(got[p] - sum) / (sum + 1e-300));
  }
  Report("sums of squares of " + std::to_string(rows.parts) + " x " +
             std::to_string(rows.size) + " by " + std::to_string(rows.width),
         worst < 1e-12, worst);
}

// Of parts [n, m], kernel by kernel, on what the one before has left.
void CheckAdafactor(int64_t parts, int64_t n, int64_t m) {
  const AdafactorStep step = {.gradient_scale = 0.7,
                              .decay = 0.4,
                              .epsilon1 = 1e-30,
                              .epsilon2 = 1e-3,
                              .clip_threshold = 1.0,
                              .learning_rate = 0.05,
                              .multiply_by_parameter_scale = true,
                              .factored = true};
  const int64_t rows = parts * n, columns = parts * m, size = parts * n * m;
  const Buffer<float> g = Numbers(1, size), w = Numbers(2, size),
                      row = Numbers(3, rows, true),
                      column = Numbers(4, columns, true),
                      second = Numbers(5, size, true), row_factor(rows),
                      column_factor(columns), rate(parts);
  const Buffer<double> squares(rows), mean(parts);
  const auto elements = [](const auto& function, int64_t count) {
    Check(LaunchElements(function, count, nullptr), "adafactor");
  };
  const RowsOfParts of_rows = {parts, n * m, m};
  Check(LaunchRowSums(RowSums<Square>{of_rows, {g.data()}, squares.data()},
                      nullptr),
        "adafactor");
  elements(RowMoments{step, m, squares.data(), row.data()}, rows);
  const auto row_squares = squares.Read();
  Compare("adafactor, rows' moments", row, [&](int64_t r) {
    return step.Moment(Moment(3, r), row_squares[r], static_cast<double>(m));
  });
  elements(RowMeans{n, row.data(), mean.data()}, parts);
  const auto moments = row.Read();
  Compare("adafactor, their means", mean, [&](int64_t p) {
    double sum = 0;
    for (int64_t r = p * n; r < (p + 1) * n; ++r) sum += moments[r];
    return sum / static_cast<double>(n);
  });
  elements(RowFactors{step, n, row.data(), mean.data(), row_factor.data()},
           rows);
  const auto means = mean.Read();
  Compare("adafactor, rows' factors", row_factor,
          [&](int64_t r) { return step.RowFactor(means[r / n], moments[r]); });
  elements(
      ColumnMoments{step, n, m, g.data(), column.data(), column_factor.data()},
      columns);
  Compare("adafactor, columns' moments", column, [&](int64_t c) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double x = Value(1, c / m * n * m + i * m + c % m);
      sum += x * x;
    }
    return step.Moment(Moment(4, c), sum, static_cast<double>(n));
  });
  const auto of_columns = column.Read();
  Compare("adafactor, columns' factors", column_factor,
          [&](int64_t c) { return step.ColumnFactor(of_columns[c]); });

  const AdafactorUpdate update = {
      step, n, m, g.data(), row_factor.data(), column_factor.data(), nullptr};
  const auto a = row_factor.Read(), b = column_factor.Read();
  const auto u = [&](int64_t i) {
    const int64_t r = i / m;
    return Value(1, i) * a[r] * b[r / n * m + i % m];
  };
  Check(LaunchRowSums(RowSums<AdafactorUpdate>{of_rows, update, squares.data()},
                      nullptr),
        "adafactor");
  elements(Rates{step,
                 n * m,
                 {squares.data(), n, nullptr},
                 {squares.data(), n, nullptr},
                 rate.data()},
           parts);
  const auto update_squares = squares.Read();
  double worst = 0;
  for (int64_t r = 0; r < rows; ++r) {
    double sum = 0;
    for (int64_t i = r * m; i < (r + 1) * m; ++i) {
      sum += static_cast<double>(u(i)) * u(i);
    }
    worst = std::fmax(worst, std::isnan(update_squares[r])
                                 ? 1.0
                                 : std::fabs(update_squares[r] - sum) / sum);
  }
  Report("adafactor, squares of updates", worst < 1e-12, worst);
  Compare("adafactor, rates", rate, [&](int64_t p) {
    double sum = 0;
    for (int64_t r = p * n; r < (p + 1) * n; ++r) sum += update_squares[r];
    return step.Rate(sum, sum, static_cast<double>(n * m));
  });
  Check(LaunchApplyUpdate({update, rows, rate.data(), w.data()}, nullptr),
        "adafactor");
  const auto rates = rate.Read();
  Compare("adafactor, weights", w,
          [&](int64_t i) { return Value(2, i) - rates[i / (n * m)] * u(i); });
  elements(SecondMoments{step, g.data(), second.data()}, size);
  Compare("adafactor, all second moments", second, [&](int64_t i) {
    const double x = Value(1, i);
    return step.Moment(Moment(5, i), x * x, 1.0);
  });

  // By these, not factored: a part is one row.
  const auto moment_of = second.Read();
  const Buffer<float> unfactored = Numbers(2, size);
  const Buffer<double> part_squares(parts);
  const AdafactorUpdate whole = {.step = step,
                                 .n = 1,
                                 .m = n * m,
                                 .gradient = g.data(),
                                 .second = second.data()};
  const auto element = [&](int64_t i) {
    return Value(1, i) * step.RowFactor() * step.ElementFactor(moment_of[i]);
  };
  Check(LaunchRowSums(
            RowSums<AdafactorUpdate>{
                {parts, n * m, n * m}, whole, part_squares.data()},
            nullptr),
        "adafactor");
  worst = 0;
  const auto got_squares = part_squares.Read();
  for (int64_t p = 0; p < parts; ++p) {
    double sum = 0;
    for (int64_t i = p * n * m; i < (p + 1) * n * m; ++i) {
      sum += static_cast<double>(element(i)) * element(i);
    }
    worst = std::fmax(worst, std::isnan(got_squares[p])
                                 ? 1.0
                                 : std::fabs(got_squares[p] - sum) / sum);
  }
  Report("adafactor, not factored, squares of updates", worst < 1e-12, worst);
  Check(LaunchApplyUpdate({whole, parts, rate.data(), unfactored.data()},
                          nullptr),
        "adafactor");
  Compare("adafactor, not factored, weights", unfactored, [&](int64_t i) {
    return Value(2, i) - rates[i / (n * m)] * element(i);
  });
}

}  // namespace

void CheckSteps(bool quick) {
  for (const int64_t size : {1, 1000, 100'000}) CheckAdam(size);
  CheckSums({3, 70, 70});
  CheckSums({3, 9000, kSumWidth});
  CheckAdafactor(3, 5, 70);
  if (quick) return;
  CheckSums({4, 3'000'001, kSumWidth});
  CheckAdafactor(2, 300, 2100);
}

}  // namespace gshard::cuda
