// Tests a translation on a fake GPU whose memory is short.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "services/decoding/running_batch.h"
#include "services/model/transformer.h"
#include "tests/services/cuda/fake_cuda.h"
#include "tests/services/cuda/gpu_test.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tiny_model.h"

namespace gshard {
namespace {

using OutOfMemoryTest = GpuTest;

// A call fails if memory is short, and the batch works once memory is free.
TEST_F(OutOfMemoryTest, FailsTheCall) {
  const ModelConfig config = TinyConfig();
  const Translator gpu(config, *BuildEncodeProgram(config),
                       *BuildDecodeProgram(config),
                       {.bos = 3, .eos = 1, .never = {0, 2, 3}}, device_.get());
  const SourceSentence sentence{.ids = {4, 1}, .options = {}};
  const TensorMap parameters = TinyParameters(config, 7);
  RunningBatch batch(gpu, parameters, 1000);
  TheFakeCuda().memory_bytes = 1000;
  EXPECT_THAT(batch.Join({{.id = 1, .sentence = &sentence}}, nullptr, nullptr),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       ::testing::HasSubstr("cudaMallocAsync")));
  TheFakeCuda().memory_bytes = int64_t{1} << 30;
  ASSERT_OK(batch.Join({{.id = 1, .sentence = &sentence}}, nullptr, nullptr));
  EXPECT_OK(batch.Step(nullptr, nullptr));
}

}  // namespace
}  // namespace gshard
