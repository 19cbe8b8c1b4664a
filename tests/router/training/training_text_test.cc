#include "router/training/training_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "tests/integration/names_job.h"
#include "tests/services/data/sample_text.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

// Of a job whose folder is in an object store. A cache's folder that is set,
// but empty, counts as not set.
TEST(TrainingTextTest, ItsIndexIsInTheUsersCache) {
  const ScratchDirectory scratch;
  Spill(scratch / "source.model",
        std::string(SampleTokenizers().source->model_bytes()));
  const std::string home = getenv("HOME");
  setenv("HOME", (scratch / "home").c_str(), 1);
  for (const std::string& cache : {scratch / "cache", std::string()}) {
    setenv("XDG_CACHE_HOME", cache.c_str(), 1);
    ASSERT_OK(TrainingText::Open(NamesJob("s3://bucket/demo"), scratch.path(),
                                 /*done_steps=*/0));
    EXPECT_TRUE(std::filesystem::exists(
        (cache.empty() ? scratch / "home/.cache" : cache) + "/gshard/text"));
  }
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", home.c_str(), 1);
}

}  // namespace
}  // namespace gshard
