#include "client/sacrebleu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "tests/client/scratch_folder.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(SacrebleuTest, ReadsScoresAndSignatures) {
  const ScratchFolder folder;
  // Records its arguments.
  const std::string program = folder.Write(
      "sacrebleu",
      "#!/bin/sh\n"
      "[ \"$1\" = --version ] && exit 0\n"
      "echo \"$@\" > " +
          folder.path() +
          "/call\n"
          "echo '[{\"name\": \"BLEU\", \"score\": 25.5, \"signature\": "
          "\"n:1\"},"
          " {\"name\": \"chrF2\", \"score\": 40, \"signature\": \"n:2\"}]'\n",
      /*executable=*/true);
  ASSERT_OK_AND_ASSIGN(const Sacrebleu sacrebleu, Sacrebleu::Find(program));
  ASSERT_OK_AND_ASSIGN(const std::vector<Score> scores,
                       sacrebleu.Compare("ours.txt", "theirs.txt"));
  ASSERT_EQ(scores.size(), 2u);
  EXPECT_EQ(scores[0].metric, "BLEU");
  EXPECT_EQ(scores[0].score, 25.5);
  EXPECT_EQ(scores[0].signature, "n:1");
  EXPECT_EQ(scores[1].metric, "chrF2");
  EXPECT_EQ(scores[1].score, 40.0);
  EXPECT_EQ(folder.Read("call"),
            "theirs.txt --input ours.txt --metrics bleu chrf --width 2 "
            "--format json\n");
}

// sacreBLEU prefers its variable to the flag.
TEST(SacrebleuTest, ItsVariableDoesNotChangeTheFormat) {
  const ScratchFolder folder;
  const std::string program =
      folder.Write("sacrebleu",
                   "#!/bin/sh\n"
                   "[ \"$SACREBLEU_FORMAT\" = json ] || exec echo BLEU = 3\n"
                   "echo '{\"name\": \"BLEU\", \"score\": 3}'\n",
                   /*executable=*/true);
  setenv("SACREBLEU_FORMAT", "text", 1);
  ASSERT_OK_AND_ASSIGN(const Sacrebleu sacrebleu, Sacrebleu::Find(program));
  EXPECT_OK(sacrebleu.Compare("a", "b"));
  unsetenv("SACREBLEU_FORMAT");
}

TEST(SacrebleuTest, SaysWhatWentWrong) {
  const ScratchFolder folder;
  EXPECT_THAT(Sacrebleu::Find(folder.path() + "/none"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none")));

  const std::string failing =
      folder.Write("failing",
                   "#!/bin/sh\n[ \"$1\" = --version ] && exit 0\necho no lines "
                   ">&2\nexit 4\n",
                   /*executable=*/true);
  ASSERT_OK_AND_ASSIGN(const Sacrebleu fails, Sacrebleu::Find(failing));
  EXPECT_THAT(fails.Compare("a", "b"),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("ended with 4: no lines")));

  const std::string chatty =
      folder.Write("chatty", "#!/bin/sh\necho BLEU = 3\n", true);
  ASSERT_OK_AND_ASSIGN(const Sacrebleu chats, Sacrebleu::Find(chatty));
  EXPECT_THAT(chats.Compare("a", "b"),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("BLEU = 3")));
}

}  // namespace
}  // namespace gshard
