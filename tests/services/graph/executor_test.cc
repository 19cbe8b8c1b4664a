#include "services/graph/executor.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "services/graph/builder.h"
#include "services/ops/cast.h"
#include "services/tensor/buffer.h"
#include "tests/services/graph/wrong_use.h"
#include "tests/testing/builder_ops.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Dim N = Dim::Symbol("N");

// y = relu(...relu(x * w)), `depth` of them.
Program Chain(int depth) {
  Builder b("chain");
  ValueId x = b.Input("x", {kFloat, {N, 64}});
  x = b.Multiply(x, b.Parameter("w", {64}));
  for (int i = 0; i < depth; ++i) x = b.Relu(x);
  b.Output("y", x);
  return *std::move(b).Finish();
}

TEST(ExecutorTest, RunsForEachSizeOfASymbol) {
  const Executor executor(Chain(1));
  const Tensor w = RandomTensor({64}, 2);
  for (const int64_t n : {0, 1, 3}) {
    const Tensor x = RandomTensor({n, 64}, 1);
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                         executor.Run({{"x", x}}, {{"w", w}}));
    ASSERT_EQ(y.size(), 1);
    ASSERT_EQ(y[0].dims(), x.dims());
    for (int64_t i = 0; i < x.size(); ++i) {
      EXPECT_EQ(y[0].f32()[i], std::max(x.f32()[i] * w.f32()[i % 64], 0.0f));
    }
  }
}

// A bf16 parameter is rounded if it is given as float32.
TEST(ExecutorTest, RoundsParametersOfBFloat16) {
  Builder b("p");
  b.Output("y", b.Cast(b.Parameter("w", {3}, ElementType::kBFloat16), kFloat));
  const Executor executor(*std::move(b).Finish());
  const Tensor w = Tensor::Floats({3}, {1.0f, 1.00390625f, -3.3f});
  const Tensor rounded = Cast(w, ElementType::kBFloat16);
  for (const Tensor& given : {w, rounded}) {
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                         executor.Run({}, {{"w", given}}));
    EXPECT_TRUE(TensorEqual(y[0], Cast(rounded, kFloat)));
  }
  TensorMap parameters = {{"w", w}, {"other", w}};
  CastToBf16(executor.weight_forms(), parameters);
  EXPECT_TRUE(TensorEqual(parameters.at("w"), rounded));
  EXPECT_EQ(parameters.at("other").raw(), w.raw());
  EXPECT_THAT(executor.Run({}, {{"w", Tensor::Ints({3}, {1, 2, 3})}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected bf16[3], got i32[3]")));
}

TEST(ExecutorTest, SaysWhatIsMissingOrWrong) {
  const Executor executor(Chain(1));
  const Tensor x = RandomTensor({2, 64}, 1), w = RandomTensor({64}, 2);
  EXPECT_THAT(
      executor.Run({}, {{"w", w}}),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("input 'x' is missing")));
  EXPECT_THAT(executor.Run({{"x", x}}, {}),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("parameter 'w' is missing")));
  EXPECT_THAT(executor.Run({{"x", RandomTensor({2, 63}, 1)}}, {{"w", w}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("input 'x': expected [N, 64], got [2, 63]")));
  EXPECT_THAT(executor.Run({{"x", Tensor::Zeros(ElementType::kInt32, {2, 64})}},
                           {{"w", w}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("input 'x': expected f32[N, 64], got "
                                 "i32[2, 64]")));
  EXPECT_THAT(executor.Run({{"x", x}}, {{"w", RandomTensor({65}, 1)}}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("parameter 'w': expected [64], got [65]")));
  EXPECT_OK(executor.Run({{"x", x}, {"unknown", w}}, {{"w", w}}));
}

TEST(ExecutorTest, SymbolsMustAgreeBetweenInputs) {
  Builder b("p");
  const ValueId x = b.Input("a", {kFloat, {N}});
  b.Output("y", b.Add(x, b.Input("b", {kFloat, {N}})));
  const Executor executor(*std::move(b).Finish());
  EXPECT_THAT(
      executor.Run({{"a", RandomTensor({2}, 1)}, {"b", RandomTensor({3}, 1)}},
                   {}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("input 'b': expected [N], got [3] where N = "
                         "2")));
}

TEST(ExecutorTest, KernelErrorsNameTheNode) {
  Builder b("lookup");
  const ValueId table = b.Parameter("table", {5, 2});
  const ValueId ids = b.Input("ids", {ElementType::kInt32, {N}});
  b.Output("y", b.Embedding(table, ids));
  const Executor executor(*std::move(b).Finish());
  for (const int32_t id : {-1, 5}) {
    EXPECT_THAT(executor.Run({{"ids", Tensor::Ints({2}, {0, id})}},
                             {{"table", RandomTensor({5, 2}, 1)}}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("program 'lookup', node 2 "
                                         "(embedding)"),
                               HasSubstr(absl::StrCat(id)))));
  }
}

TEST(ExecutorTest, TensorsOfTheCallerAreNeverOverwritten) {
  const Executor executor(Chain(3));
  const Tensor x = RandomTensor({8, 64}, 1), w = RandomTensor({64}, 2);
  const Tensor x_before = x.Clone(), w_before = w.Clone();
  // The caller holds the tensor itself, or a view of a larger one.
  for (const Tensor& held : {x, x.Rows(2, 6)}) {
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> first,
                         executor.Run({{"x", held}}, {{"w", w}}));
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> second,
                         executor.Run({{"x", held}}, {{"w", w}}));
    EXPECT_TRUE(TensorEqual(first[0], second[0]));
    EXPECT_TRUE(TensorEqual(x, x_before));
    EXPECT_TRUE(TensorEqual(w, w_before));
  }
}

TEST(ExecutorTest, MovedInputsAreReused) {
  const Executor executor(Chain(3));
  TensorMap inputs;
  inputs["x"] = RandomTensor({8, 64}, 1);
  const std::byte* buffer = inputs["x"].raw();
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> y,
      executor.Run(std::move(inputs), {{"w", RandomTensor({64}, 2)}}));
  EXPECT_EQ(y[0].raw(), buffer);
}

// A value that is used again later, or is an output, is not overwritten.
TEST(ExecutorTest, ValuesLiveUntilTheirLastUse) {
  Builder b("p");
  const ValueId x = b.Input("x", {kFloat, {N}});
  const ValueId doubled = b.Scale(x, 2.0);
  const ValueId positive = b.Relu(doubled);
  const ValueId sum = b.Add(positive, doubled);
  const ValueId twice = b.Add(sum, sum);
  b.Output("doubled", doubled);
  b.Output("again", doubled);
  b.Output("twice", twice);
  const Executor executor(*std::move(b).Finish());
  TensorMap inputs;
  inputs["x"] = Tensor::Floats({3}, {-1, 2, 0.5});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                       executor.Run(std::move(inputs), {}));
  EXPECT_TRUE(TensorEqual(y[0], Tensor::Floats({3}, {-2, 4, 1})));
  EXPECT_TRUE(TensorEqual(y[1], y[0]));
  EXPECT_TRUE(TensorEqual(y[2], Tensor::Floats({3}, {-4, 16, 4})));
}

TEST(ExecutorTest, BuffersAreFreedAtTheirLastUse) {
  // Each transpose needs a new buffer: without freeing, 40 would be alive.
  Builder b("p");
  ValueId x = b.Input("x", {kFloat, {256, 256}});
  for (int i = 0; i < 40; ++i) x = b.Transpose(x, {1, 0});
  b.Output("y", x);
  const Executor executor(*std::move(b).Finish());
  const Tensor input = RandomTensor({256, 256}, 1);
  const size_t before = GetBufferUsage().live_bytes;
  size_t peak = 0;
  RunOptions options;
  options.cancelled = [&] {
    peak = std::max(peak, GetBufferUsage().live_bytes);
    return false;
  };
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> y,
                       executor.Run({{"x", input}}, {}, options));
  EXPECT_LE(peak - before, 2 * input.bytes());
  EXPECT_TRUE(TensorEqual(y[0], input));
}

TEST(ExecutorTest, StopsWhenCancelled) {
  const Executor executor(Chain(5));
  int asked = 0;
  RunOptions options;
  options.cancelled = [&] { return ++asked == 4; };
  EXPECT_THAT(executor.Run({{"x", RandomTensor({2, 64}, 1)}},
                           {{"w", RandomTensor({64}, 2)}}, options),
              StatusIs(absl::StatusCode::kCancelled,
                       HasSubstr("program 'chain' was cancelled")));
  EXPECT_EQ(asked, 4);
}

TEST(ExecutorTest, ResultsThatMemoryCannotHoldAreErrors) {
  const auto run = [](Shape shape) {
    Builder b("p");
    b.Output("y", b.Constant(1.0, std::move(shape)));
    return Executor(*std::move(b).Finish()).Run({}, {}).status();
  };
  const int64_t big = int64_t{1} << 40;
  for (const Shape& shape : {Shape{big, big}, Shape{big, big, 0}, Shape{big, 4},
                             Shape{Dim(big) * Dim(big)}}) {
    EXPECT_THAT(run(shape), StatusIs(absl::StatusCode::kResourceExhausted,
                                     HasSubstr("node 0 (constant)")));
  }
}

// Takes a minute or more if the time is quadratic in the number of operands.
TEST(ExecutorTest, ANodeMayHaveManyOperands) {
  constexpr int64_t kOperands = 300'000;
  Builder b("p");
  const ValueId x = b.Input("x", {kFloat, {1}});
  b.Output("y", Concat(b, std::vector<ValueId>(kOperands, x), 0));
  const Executor executor(*std::move(b).Finish());
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> outputs,
                       executor.Run({{"x", Tensor::Floats({1}, {3.0f})}}, {}));
  EXPECT_EQ(outputs[0].dims(), (Dims{kOperands}));
  EXPECT_EQ(outputs[0].f32()[kOperands - 1], 3.0f);
}

// A missing kernel is an error; inputs and parameters need none.
TEST(ExecutorTest, ABackEndThatLacksAKernelIsAnError) {
  Builder b("p");
  const ValueId x = b.Input("x", {ElementType::kFloat32, {2}});
  b.Output("y", Exp(b, b.Multiply(x, b.Parameter("w", {2}))));
  const Program program = *std::move(b).Finish();
  const Executor on_cpu(program);
  EXPECT_OK(on_cpu.status());
  const Tensor two = Tensor::Floats({2}, {1.0f, 2.0f});
  // Other tests of this program register kernels of their own for others.
  RegisterKernels(Backend::kCuda,
                  {{"multiply", *FindKernel("multiply", Backend::kCpu)}});
  const Executor executor(program, Backend::kCuda);
  const auto lacks_it = StatusIs(absl::StatusCode::kUnimplemented,
                                 HasSubstr("'cuda' has no kernel for 'exp'"));
  EXPECT_THAT(executor.status(), lacks_it);
  EXPECT_THAT(executor.Run({{"x", two}}, {{"w", two}}), lacks_it);
}

TEST(ExecutorTest, RunsOnSeveralThreadsAtOnce) {
  const Executor executor(Chain(3));
  const Tensor w = RandomTensor({64}, 2);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const Tensor x = RandomTensor({5 + t, 64}, t);
      auto first = executor.Run({{"x", x}}, {{"w", w}});
      ASSERT_OK(first);
      for (int i = 0; i < 50; ++i) {
        auto again = executor.Run({{"x", x}}, {{"w", w}});
        ASSERT_OK(again);
        EXPECT_TRUE(TensorEqual((*first)[0], (*again)[0]));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gshard
