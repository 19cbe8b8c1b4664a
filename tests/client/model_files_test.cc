#include "client/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/client/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(ModelFilesTest, ReadsNameAndPath) {
  ASSERT_OK_AND_ASSIGN(const NamedCheckpoint model,
                       ParseNamedCheckpoint("demo=a/b=c"));
  EXPECT_EQ(model.name, "demo");
  EXPECT_EQ(model.path, "a/b=c");
  for (const char* text : {"", "demo", "=path", "demo="}) {
    EXPECT_THAT(ParseNamedCheckpoint(text),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("expected NAME=CHECKPOINT")));
  }
}

TEST(ModelFilesTest, TakesACheckpointAsItIs) {
  const ScratchFolder folder;
  folder.Write("manifest.json", "{}");
  ASSERT_OK_AND_ASSIGN(
      const std::string path,
      FindCheckpoint(folder.path() + "/../" + folder.path().substr(5) + "/."));
  EXPECT_EQ(std::filesystem::path(path) / "", folder.path() + "/");
}

TEST(ModelFilesTest, SaysWhenThereIsNone) {
  const ScratchFolder folder;
  EXPECT_THAT(FindCheckpoint(folder.path()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(folder.path())));
  EXPECT_THAT(FindCheckpoint(folder.path() + "/none"),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("/none: no such directory")));
  const std::string file = folder.Write("file", "");
  EXPECT_THAT(FindCheckpoint(file),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("/file: no such directory")));
}

// As where it may not look; but tests may run as root, who may everywhere.
TEST(ModelFilesTest, SaysWhyItCannotLook) {
  const ScratchFolder folder;
  const std::string file = folder.Write("file", "");
  EXPECT_THAT(FindCheckpoint(file + "/below"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("/below': Not a directory")));
  EXPECT_THAT(FindCheckpoint(folder.path() + "/" + std::string(256, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("File name too long")));
}

}  // namespace
}  // namespace gshard
