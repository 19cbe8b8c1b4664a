// Holds the choice of tokens and the copying of a cache's pages to float64.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "services/cuda/kernels/launch_dense.h"
#include "tests/cuda/rows.h"

namespace gshard::cuda {
namespace {

// Many equal logits; every other row may not have the first three tokens of
// its order. Rows want different numbers of tokens, and the logits of others.
// The fourth row has impossible tokens, the fifth a NaN.
void CheckTopTokens(int64_t rows, int64_t vocabulary, int32_t count) {
  const std::string what = "top " + std::to_string(count) + " of " +
                           std::to_string(vocabulary) + " tokens, " +
                           std::to_string(rows) + " rows";
  std::vector<float> logits;
  for (int64_t i = 0; i < rows * vocabulary; ++i) {
    logits.push_back(static_cast<float>(SplitMix64(i) % 64) / 8);
    const int64_t r = i / vocabulary, v = i % vocabulary;
    if (r == 3 && v % 3 == 0) logits.back() = -INFINITY;
    if (r == 4 && v == vocabulary / 2) logits.back() = NAN;
  }
  std::vector<int32_t> never, span, also, also_begin = {0}, counts;
  std::vector<std::vector<int32_t>> expected;
  for (int64_t r = 0; r < rows; ++r) {
    const float* const x = logits.data() + r * vocabulary;
    std::vector<int32_t> order(vocabulary);
    std::iota(order.begin(), order.end(), 0);
    std::erase_if(order, [&](int32_t v) { return !(x[v] > -INFINITY); });
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return x[a] > x[b]; });
    const int64_t left_out =
        r % 2 == 0 ? 0 : std::min<int64_t>(3, std::ssize(order) / 2);
    span.push_back(static_cast<int32_t>(never.size()));
    never.insert(never.end(), order.begin(), order.begin() + left_out);
    span.push_back(static_cast<int32_t>(never.size()));
    for (int64_t i = 0; i < r % 3 * 20; ++i) {
      also.push_back(static_cast<int32_t>((7 * r + i) % vocabulary));
    }
    also_begin.push_back(static_cast<int32_t>(also.size()));
    order.erase(order.begin(), order.begin() + left_out);
    counts.push_back(static_cast<int32_t>(count - r % std::min(count, 4)));
    order.resize(counts.back(), Choice::kNobody);
    expected.push_back(order);
  }
  const int64_t chunks = BlocksAlong(vocabulary, kChunkTokens);
  const Buffer<float> x(logits), chunk_max(rows * chunks),
      chunk_sum(rows * chunks), logit(rows * count), also_logit(also.size()),
      maximum(rows), sum(rows);
  const Buffer<int32_t> wanted(counts), nevers(never), spans(span), alsos(also),
      begins(also_begin);
  // Of tokens that a row does not want, nothing is written.
  const Buffer<int32_t> token(std::vector<int32_t>(rows * count));
  const Buffer<Choice> best(rows * chunks * count);
  Check(LaunchRows(BestOfChunks{x.data(), vocabulary, chunks, wanted.data(),
                                count, nevers.data(), spans.data(), best.data(),
                                chunk_max.data()},
                   rows * chunks, nullptr),
        what.c_str());
  Check(LaunchRows(SumsOfChunks{x.data(), vocabulary, chunks, chunk_max.data(),
                                chunk_sum.data()},
                   rows * chunks, nullptr),
        what.c_str());
  Check(LaunchRows(
            MergeChunks{x.data(), vocabulary, chunks, wanted.data(), count,
                        best.data(), chunk_max.data(), chunk_sum.data(),
                        alsos.data(), begins.data(), token.data(), logit.data(),
                        also_logit.data(), maximum.data(), sum.data()},
            rows, nullptr),
        what.c_str());
  const std::vector<int32_t> tokens = token.Read();
  const std::vector<float> also_logits = also_logit.Read(),
                           maxima = maximum.Read(), sums = sum.Read();
  int64_t differences = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float* const of_row = logits.data() + r * vocabulary;
    float max = -INFINITY;
    double total = 0;
    for (int64_t v = 0; v < vocabulary; ++v) max = std::fmax(max, of_row[v]);
    for (int64_t v = 0; v < vocabulary; ++v) {
      total += std::exp(static_cast<double>(of_row[v]) - max);
    }
    bool same = std::equal(expected[r].begin(), expected[r].end(),
                           tokens.begin() + r * count) &&
                maxima[r] == max &&
                (std::isnan(total) ? std::isnan(sums[r])
                                   : std::abs(sums[r] / total - 1) < 1e-5);
    for (int32_t i = also_begin[r]; i < also_begin[r + 1]; ++i) {
      const float x = of_row[also[i]];
      same &=
          also_logits[i] == x || (std::isnan(x) && std::isnan(also_logits[i]));
    }
    differences += !same;
  }
  Report(what, differences == 0, static_cast<double>(differences));
}

// Pages of `width` elements, in reverse, each a little shorter than the last.
void CheckCopies(int64_t pages, int64_t width) {
  std::vector<RangeOfElements> ranges;
  for (int64_t p = 0; p < pages; ++p) {
    ranges.push_back({p * width, (pages - 1 - p) * width,
                      width - p % std::min<int64_t>(width, 5)});
  }
  const Buffer<float> x = Numbers(1, pages * width);
  const Buffer<float> out(std::vector<float>(pages * width, 0.5f));
  const Buffer<RangeOfElements> there(ranges);
  Check(LaunchElements(CopyElements{x.data(), there.data(), width, out.data()},
                       pages * width, nullptr),
        "copy ranges");
  const double difference = Difference(out.Read(), [&](int64_t i) {
    const RangeOfElements& range = ranges[pages - 1 - i / width];
    return i % width < range.count ? X(1, range.from + i % width) : 0.5;
  });
  Report(
      "copy " + std::to_string(pages) + " ranges of " + std::to_string(width),
      difference == 0, difference);
}

}  // namespace

void CheckDecoding(bool quick) {
  for (const int64_t vocabulary : {1, 31, 1024, 1025, 5000}) {
    CheckTopTokens(5, vocabulary, 8);
  }
  CheckTopTokens(1, 3000, 64);
  for (const int64_t width : {1, 33, 1000}) CheckCopies(7, width);
  if (quick) return;
  CheckTopTokens(256, 32000, 8);
  CheckCopies(512, 16 * 512);
}

}  // namespace gshard::cuda
