// How fast the kernels are beside ceilings measured in the same run.

#include <cublas_v2.h>

#include <algorithm>
#include <memory>
#include <string>

#include "services/cuda/kernels/launch_attention.h"
#include "services/cuda/kernels/launch_dense.h"
#include "services/cuda/kernels/launch_steps.h"
#include "tests/cuda/gpu.h"

namespace gshard::cuda {

double Milliseconds(const std::function<void(int)>& work) {
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin), "event");
  Check(cudaEventCreate(&end), "event");
  std::vector<double> times;
  int done = 0;
  while (done < 3) work(done++);
  for (int i = 0; i < 9; ++i) {
    // Several at once: of one, the way of its launch to the GPU would count.
    constexpr int kAtOnce = 5;
    Check(cudaEventRecord(begin), "event");
    for (int k = 0; k < kAtOnce; ++k) work(done++);
    Check(cudaEventRecord(end), "event");
    Check(cudaEventSynchronize(end), "work");
    float time = 0;
    Check(cudaEventElapsedTime(&time, begin, end), "event");
    times.push_back(time / kAtOnce);
  }
  Check(cudaEventDestroy(begin), "event");
  Check(cudaEventDestroy(end), "event");
  std::nth_element(times.begin(), times.begin() + times.size() / 2,
                   times.end());
  return times[times.size() / 2];
}

namespace {

// A line of the table. `amount` is what was done, in the ceiling's unit.
void Line(const std::string& what, double milliseconds, double amount,
          double ceiling, const char* unit, double goal) {
  const double rate = amount / (milliseconds / 1e3) / 1e12;
  std::printf("%-62s %9.3f %9.2f %-8s %6.2f %6.2f\n", what.c_str(),
              milliseconds, rate, unit, rate / ceiling, goal);
}

// Bytes that are read and written in a second, in 10^12.
double CopyRate() {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const Buffer<float> from(kBytes / 4), to(kBytes / 4);
  Fill(from, 1);
  return 2.0 * kBytes / 1e9 / Milliseconds([&](int) {
           Check(cudaMemcpyAsync(to.data(), from.data(), kBytes,
                                 cudaMemcpyDeviceToDevice, nullptr),
                 "copy");
         });
}

// Operations of cuBLAS's bfloat16 product of 8192^3 in a second, in 10^12.
double GemmRate() {
  constexpr int64_t kSize = 8192;
  const Buffer<BFloat16> a(kSize * kSize), b(kSize * kSize), c(kSize * kSize);
  Fill(a, 1);
  Fill(b, 2);
  cublasHandle_t handle;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) return 0;
  const float one = 1, zero = 0;
  const double time = Milliseconds([&](int) {
    const cublasStatus_t status = cublasGemmEx(
        handle, CUBLAS_OP_N, CUBLAS_OP_N, kSize, kSize, kSize, &one, a.data(),
        CUDA_R_16BF, kSize, b.data(), CUDA_R_16BF, kSize, &zero, c.data(),
        CUDA_R_16BF, kSize, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS) std::exit(1);
  });
  cublasDestroy(handle);
  return 2.0 * kSize * kSize * kSize / 1e9 / time;
}

// The same in float32, without tensor cores.
double FloatGemmRate() {
  constexpr int64_t kSize = 4096;
  const Buffer<float> a(kSize * kSize), b(kSize * kSize), c(kSize * kSize);
  Fill(a, 1);
  Fill(b, 2);
  cublasHandle_t handle;
  if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS) return 0;
  cublasSetMathMode(handle, CUBLAS_PEDANTIC_MATH);
  const float one = 1, zero = 0;
  const double time = Milliseconds([&](int) {
    const cublasStatus_t status =
        cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, kSize, kSize, kSize, &one,
                    a.data(), kSize, b.data(), kSize, &zero, c.data(), kSize);
    if (status != CUBLAS_STATUS_SUCCESS) std::exit(1);
  });
  cublasDestroy(handle);
  return 2.0 * kSize * kSize * kSize / 1e9 / time;
}

// Forward and both gradients of a layer of experts.
void Experts(int64_t experts, int32_t rows_of_each, int64_t k, int64_t n,
             double gemm, double forward_goal, double gradient_goal) {
  const int64_t count = experts * rows_of_each;
  const std::vector<int32_t> sizes(experts, rows_of_each);
  const Buffer<BFloat16> rows(count * k), weights(experts * k * n),
      dresult(count * n), rounded(count * n);
  const Buffer<float> drows(count * k), dweights(experts * k * n);
  Fill(rows, 1);
  Fill(weights, 2);
  Fill(dresult, 3);
  const Rows<BFloat16> launches(sizes);
  const Buffer<int64_t> offsets(GroupOffsets(sizes));
  const double operations = 2.0 * static_cast<double>(count) *
                            static_cast<double>(k) * static_cast<double>(n);
  const std::string shape = std::to_string(experts) + " experts x " +
                            std::to_string(rows_of_each) + " rows, M " +
                            std::to_string(k) + ", H " + std::to_string(n);
  RaggedProduct<BFloat16> forward = {};
  forward.rows = rows.data();
  forward.weights = weights.data();
  forward.k = k;
  forward.n = n;
  forward.relu = true;
  forward.rounded_out = rounded.data();
  Line("bf16 forward with ReLU, " + shape,
       Milliseconds([&](int) { launches.Multiply(forward); }), operations, gemm,
       "TFLOP/s", forward_goal);
  RaggedProduct<BFloat16> backward = {};
  backward.rows = dresult.data();
  backward.weights = weights.data();
  backward.transposed = true;
  backward.k = n;
  backward.n = k;
  backward.out = drows.data();
  Line("bf16 gradient of rows, " + shape,
       Milliseconds([&](int) { launches.Multiply(backward); }), operations,
       gemm, "TFLOP/s", gradient_goal);
  const RaggedWeightsGradient<BFloat16> gradient = {
      rows.data(), dresult.data(), offsets.data(), experts, k,
      n,           dweights.data()};
  Line("bf16 gradient of weights, " + shape, Milliseconds([&](int) {
         Check(LaunchRaggedWeightsGradient(gradient, nullptr), "gradient");
       }),
       operations, gemm, "TFLOP/s", gradient_goal);
}

// Forward with int8 weights, of float32 rows, which are quantized first.
struct Int8Forward {
  Int8Forward(int64_t experts, int32_t rows_of_each, int64_t width, int64_t n)
      : count(experts * rows_of_each),
        k(width),
        x(count * k),
        row_scales(count),
        out(count * n),
        rows(count * Int8RowBytes(k)),
        weights(2 * experts * Int8MatrixBytes(k, n)),
        launches(std::vector<int32_t>(experts, rows_of_each)) {
    Fill(x, 1);
    Fill(weights, 2);
    product.rows = rows.data();
    product.row_scales = row_scales.data();
    product.k = k;
    product.n = n;
    product.relu = true;
    product.out = out.data();
  }
  // With one of two sets of weights.
  void Run(int i) {
    Check(LaunchRows(RoundRows{x.data(), k, rows.data(), row_scales.data()},
                     count, nullptr),
          "rounding of rows");
    product.weights = weights.data() + i % 2 * (weights.size() / 2);
    launches.Multiply(product);
  }

  const int64_t count, k;
  const Buffer<float> x, row_scales, out;
  const Buffer<int8_t> rows, weights;
  const Rows<int8_t> launches;
  RaggedProduct<int8_t> product = {};
};

void Int8Experts(int64_t experts, int32_t rows_of_each, int64_t k, int64_t n,
                 double gemm, double goal) {
  Int8Forward forward(experts, rows_of_each, k, n);
  Line("int8 forward with ReLU, " + std::to_string(experts) + " experts x " +
           std::to_string(rows_of_each) + " rows, M " + std::to_string(k) +
           ", H " + std::to_string(n),
       Milliseconds([&](int i) { forward.Run(i); }),
       2.0 * static_cast<double>(forward.count) * static_cast<double>(k) *
           static_cast<double>(n),
       gemm, "TFLOP/s", goal);
}

void FewInt8Rows(int32_t rows_of_each, double copy) {
  constexpr int64_t kExperts = 128, kK = 1024, kN = 4096;
  Int8Forward forward(kExperts, rows_of_each, kK, kN);
  Line("int8 128 experts x " + std::to_string(rows_of_each) +
           " rows, M 1024, H 4096, bytes of the weights",
       Milliseconds([&](int i) { forward.Run(i); }), 1.0 * kExperts * kK * kN,
       copy, "TB/s", 0.80);
}

// Decoding: the weights' way from memory counts. Several sets of them, beyond
// any cache.
void FewRows(int32_t rows_of_each, double copy) {
  constexpr int64_t kExperts = 128, kK = 1024, kN = 4096;
  const std::vector<int32_t> sizes(kExperts, rows_of_each);
  const Buffer<BFloat16> rows(kExperts * rows_of_each * kK),
      weights(2 * kExperts * kK * kN), out(kExperts * rows_of_each * kN);
  Fill(rows, 1);
  Fill(weights, 2);
  const Rows<BFloat16> launches(sizes);
  RaggedProduct<BFloat16> p = {};
  p.rows = rows.data();
  p.k = kK;
  p.n = kN;
  p.rounded_out = out.data();
  const double time = Milliseconds([&](int i) {
    p.weights = weights.data() + i % 2 * kExperts * kK * kN;
    launches.Multiply(p);
  });
  Line("bf16 128 experts x " + std::to_string(rows_of_each) +
           " rows, M 1024, H 4096, bytes of the weights",
       time, 2.0 * kExperts * kK * kN, copy, "TB/s", 0.80);
}

template <typename In, typename Out, typename Make>
void Elements(const char* what, double copy, const Make& make) {
  constexpr int64_t kSize = int64_t{1} << 28;
  const Buffer<In> x(kSize);
  const Buffer<Out> out(kSize);
  Fill(x, 1);
  Line(what, Milliseconds([&](int) {
         Check(LaunchElements(make(x.data(), out.data()), kSize, nullptr),
               what);
       }),
       static_cast<double>(kSize) * (sizeof(In) + sizeof(Out)), copy, "TB/s",
       0.85);
}

// What training does with the parameters of 16 experts: bytes that have to be
// read and written, as often as the kernels do.
void Steps(double copy) {
  constexpr int64_t kExperts = 16, kN = 1024, kM = 8192;
  constexpr int64_t kSize = kExperts * kN * kM;
  const Buffer<float> g(kSize), w(kSize), first(kSize), second(kSize),
      column(kExperts * kM), factor(kExperts * kM), row_factor(kExperts * kN),
      rate(kExperts);
  const Buffer<double> squares(kSize / kSumWidth);
  for (const Buffer<float>* const x :
       {&g, &w, &first, &row_factor, &rate, &factor}) {
    Fill(*x, 1);
  }
  Check(cudaMemset(second.data(), 0, kSize * 4), "memset");
  Check(cudaMemset(column.data(), 0, column.size() * 4), "memset");
  const auto line = [&](const char* what, double numbers, const auto& work) {
    Line(what, Milliseconds([&](int) { Check(work(), what); }),
         4.0 * numbers * kSize, copy, "TB/s", 0.85);
  };
  line("sum of gradients", 3, [&] {
    return LaunchElements(AddTo{g.data(), first.data()}, kSize, nullptr);
  });
  line("sums of squares", 1, [&] {
    return LaunchRowSums(
        RowSums<Square>{
            {kExperts, kN * kM, kSumWidth}, {g.data()}, squares.data()},
        nullptr);
  });
  AdamStep adam = {};
  adam.gradient_scale = adam.rate = adam.epsilon = 1e-3f;
  line("adam", 7, [&] {
    return LaunchElements(
        AdamElements{adam, g.data(), w.data(), first.data(), second.data()},
        kSize, nullptr);
  });
  AdafactorStep step = {};
  step.gradient_scale = step.epsilon1 = 1e-3;
  step.factored = true;
  const AdafactorUpdate update = {
      step, kN, kM, g.data(), row_factor.data(), factor.data(), nullptr};
  const RowsOfParts rows = {kExperts, kN * kM, kM};
  line("adafactor, squares of rows of updates", 1, [&] {
    return LaunchRowSums(RowSums<AdafactorUpdate>{rows, update, squares.data()},
                         nullptr);
  });
  line("adafactor, columns", 1, [&] {
    return LaunchElements(
        ColumnMoments{step, kN, kM, g.data(), column.data(), first.data()},
        column.size(), nullptr);
  });
  line("adafactor, weights", 3, [&] {
    return LaunchApplyUpdate({update, rows.rows(), rate.data(), w.data()},
                             nullptr);
  });
}

// What routers compute: bytes that have to be read and written, and decoding's
// attention to caches beyond any cache of the GPU.
void Dense(double copy) {
  constexpr int64_t kRows = 16384, kWidth = 4096, kSize = kRows * kWidth;
  const Buffer<float> x(kSize), y(kSize), scale(kWidth), inverse(kRows);
  Fill(x, 1);
  Fill(scale, 2);
  const auto line = [&](const char* what, double numbers, const auto& work) {
    Line(what, Milliseconds([&](int) { Check(work(), what); }), 4.0 * numbers,
         copy, "TB/s", 0.80);
  };
  line("rms norm, 16384 rows of 4096", 2.0 * kSize, [&] {
    return LaunchRows(RmsNormRows{x.data(), scale.data(), kWidth, 1e-6f,
                                  y.data(), inverse.data()},
                      kRows, nullptr);
  });
  constexpr int64_t kTargets = 2048, kVocabulary = 32000;
  const Buffer<int32_t> labels(std::vector<int32_t>(kTargets, 5));
  const Buffer<double> losses(kTargets);
  line("cross entropy, 2048 rows of 32000", 1.0 * kTargets * kVocabulary, [&] {
    return LaunchRows(
        CrossEntropyRows{x.data(), labels.data(), kVocabulary, 0.1f, 0.0f,
                         losses.data(), inverse.data()},
        kTargets, nullptr);
  });
  constexpr int64_t kHypotheses = 256, kKeys = 512, kPositions = 16;
  constexpr int64_t kPages = kHypotheses * kKeys / kPositions;
  constexpr int64_t kHeads = 16, kHeadWidth = 64;
  std::vector<int32_t> pages(kPages);
  for (int64_t i = 0; i < kPages; ++i) {
    pages[i] = static_cast<int32_t>(i * 31 % kPages);
  }
  const Buffer<int32_t> there(pages),
      lengths(std::vector<int32_t>(kHypotheses, kKeys));
  const Buffer<float> keys(kPages * kPositions * kHeads * kHeadWidth),
      values(keys.size());
  Fill(keys, 1);
  Fill(values, 2);
  PagedAttentionRows attention = {};
  attention.q = x.data();
  attention.keys = keys.data();
  attention.values = values.data();
  attention.pages = there.data();
  attention.lengths = lengths.data();
  attention.heads = kHeads;
  attention.width = kHeadWidth;
  attention.positions = kPositions;
  attention.most_pages = kKeys / kPositions;
  attention.scale = 0.1f;
  attention.out = y.data();
  line("attention to pages, 256 rows, 512 keys, 16 heads of 64",
       2.0 * static_cast<double>(keys.size()),
       [&] { return LaunchRows(attention, kHypotheses * kHeads, nullptr); });
}

// Attention in training, beside cuBLAS's float32 product. Counted are two
// products forward and five backward, one of them to compute the logits again.
// The kernels backward do nine.
void Attentions() {
  constexpr int64_t kSentences = 16, kLength = 1024, kHeads = 16, kWidth = 64;
  constexpr int64_t kRows = kSentences * kHeads * kLength;
  const double gemm = FloatGemmRate();
  const double product = 2.0 * kRows * kLength * kWidth;
  const Buffer<float> q(kRows * kWidth), k(q.size()), v(q.size()),
      dout(q.size()), out(q.size()), dq(q.size()), dk(q.size()), dv(q.size()),
      statistics(2 * kRows), dots(kRows);
  Fill(q, 1);
  Fill(k, 2);
  Fill(v, 3);
  Fill(dout, 4);
  const Buffer<int32_t> lengths(std::vector<int32_t>(kSentences, kLength));
  AttentionOperands o = {};
  o.batch = kSentences;
  o.width = kWidth;
  o.mask.lengths = lengths.data();
  o.mask.heads = kHeads;
  o.mask.queries = o.mask.keys = o.mask.all_queries = kLength;
  o.mask.scale = 0.125f;
  o.q = {q.data(), nullptr};
  o.k = {k.data(), nullptr};
  o.v = {v.data(), nullptr};
  for (const float dropout : {0.0f, 0.1f}) {
    o.mask.dropout_rate = dropout;
    const std::string of = ", 16 x 1024, 16 heads of 64" +
                           std::string(dropout > 0 ? ", dropout" : "");
    Line("attention" + of, Milliseconds([&](int) {
           Check(LaunchAttention({o, out.data(), statistics.data()}, nullptr),
                 "attention");
         }),
         2 * product, gemm, "TFLOP/s", 0.40);
    Line("its gradient" + of, Milliseconds([&](int) {
           Check(LaunchAttentionGradient(
                     {o, statistics.data(), dout.data(), dots.data(), dq.data(),
                      dk.data(), dv.data()},
                     nullptr),
                 "attention, gradient");
         }),
         5 * product, gemm, "TFLOP/s", 0.25);
  }
}

}  // namespace

void PrintSpeed() {
  cudaDeviceProp properties;
  Check(cudaGetDeviceProperties(&properties, 0), "properties");
  int driver = 0;
  Check(cudaDriverGetVersion(&driver), "driver");
  const double copy = CopyRate(), gemm = GemmRate();
  std::printf(
      "\n%s, driver %d: copies %.2f TB/s, cuBLAS bf16 8192^3 %.0f TFLOP/s\n",
      properties.name, driver, copy, gemm);
  std::printf("%-62s %9s %9s %-8s %6s %6s\n", "kernel", "ms", "rate", "",
              "ratio", "goal");
  Experts(16, 4096, 1024, 8192, gemm, 0.80, 0.70);
  Experts(128, 512, 2048, 8192, gemm, 0.70, 0.70);
  FewRows(16, copy);
  FewRows(1, copy);
  // Of cuBLAS's bfloat16; tensor cores multiply int8 twice as fast.
  Int8Experts(16, 4096, 1024, 8192, gemm, 1.20);
  FewInt8Rows(16, copy);
  Elements<float, BFloat16>("cast to bf16", copy,
                            [](const float* x, BFloat16* out) {
                              return CastToBf16{x, out};
                            });
  Elements<float, float>("relu f32", copy, [](const float* x, float* out) {
    return Relu{x, out};
  });
  Steps(copy);
  Dense(copy);
  Attentions();
}

}  // namespace gshard::cuda
