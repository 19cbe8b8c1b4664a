#include "client/model_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "client/commands.h"
#include "services/storage/object_client.h"
#include "tests/client/command_run.h"
#include "tests/client/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

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
              StatusIs(absl::StatusCode::kInvalidArgument,
                       file + ": expected the folder of a checkpoint, or of "
                              "several, got a file"));
}

TEST(ModelFilesTest, OtherStoresAreNotFolders) {
  for (const char* url : {"gs://models/run", "s3://b/run"}) {
    const auto refused = StatusIs(absl::StatusCode::kInvalidArgument,
                                  HasSubstr("expected s3://bucket/key"));
    EXPECT_THAT(FindCheckpoint(url), refused);
    EXPECT_THAT(CommandRun(CheckpointInspectCommand, {url}).status, refused);
  }
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

// The error tells which store a command would ask: it lacks credentials.
TEST(StoreFlagsTest, AStoreWithoutTlsTakesAFlag) {
  const ScratchFolder folder;
  for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
                           "AWS_WEB_IDENTITY_TOKEN_FILE"}) {
    unsetenv(name);
  }
  setenv("AWS_SHARED_CREDENTIALS_FILE", "/none", 1);
  setenv("AWS_ENDPOINT_URL", "http://10.255.255.1:9", 1);
  const std::string path = "s3://bucket/run";
  const struct {
    absl::Status (*command)(Arguments, Console&);
    std::vector<std::string> arguments;
  } calls[] = {{LoadCommand, {"demo", path}},
               {EvaluateCommand, {"--test", path}},
               {UpCommand, {"--models=demo=" + path}},
               {CheckpointInspectCommand, {path}},
               {CheckpointVerifyCommand, {path}},
               {CheckpointDiffCommand, {path, path}},
               {CheckpointExportCommand, {path, folder.path() + "/x"}}};
  for (const auto& [command, arguments] : calls) {
    const auto status_with = [&, command = command,
                              arguments = arguments](const char* flag) {
      std::vector<std::string> all = arguments;
      all.push_back(flag);
      return CommandRun(command, all).status;
    };
    EXPECT_THAT(status_with("--no-insecure"),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("expected an endpoint https://")));
    for (const char* flag :
         {"--insecure", "--s3_endpoint=https://s3.example.org"}) {
      EXPECT_THAT(status_with(flag),
                  StatusIs(absl::StatusCode::kPermissionDenied,
                           HasSubstr("no credentials for an object store")));
    }
  }
  unsetenv("AWS_ENDPOINT_URL");
  unsetenv("AWS_SHARED_CREDENTIALS_FILE");
  ConfigureObjectStore({});
}

}  // namespace
}  // namespace gshard
