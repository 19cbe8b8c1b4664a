#include "services/config/models_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ModelsFileTest, IsAListOfModels) {
  ASSERT_OK_AND_ASSIGN(const auto none, ParseModelsFile("# nothing\n"));
  EXPECT_THAT(none, IsEmpty());
  ASSERT_OK_AND_ASSIGN(const auto models, ParseModelsFile(R"(
    models { name: "a" checkpoint: "/c/step-1" replicas: 2 }
    models { name: "b" checkpoint: "/c/step-2" version: "beta" weights: INT8 }
  )"));
  EXPECT_THAT(models, ElementsAre(ModelRequest{.name = "a",
                                               .checkpoint = "/c/step-1",
                                               .version = "",
                                               .replicas = 2},
                                  ModelRequest{.name = "b",
                                               .checkpoint = "/c/step-2",
                                               .version = "beta",
                                               .replicas = 0,
                                               .weights = ComputeType::kInt8}));
}

TEST(ModelsFileTest, SaysWhereItIsWrong) {
  const struct {
    const char* text;
    const char* error;
  } rows[] = {
      {"models {", "line 1"},
      {"models { name: 'a' checkpoint: '/c' size: 3 }", "size"},
      {"models { checkpoint: '/c' }", "models[0].name"},
      {"models { name: 'a b' checkpoint: '/c' }", "models[0].name"},
      {"models { name: 'a' }", "models[0].checkpoint"},
      {"models { name: 'a' checkpoint: '/c' replicas: 17 }",
       "models[0].replicas: expected 0 to 16, got 17"},
      {"models { name: 'a' checkpoint: '/c' replicas: -1 }", "got -1"},
      {"models { name: 'a' checkpoint: '/c' version: '1/2' }",
       "models[0].version"},
      {"models { name: 'a' checkpoint: '/c' weights: INT4 }", "INT4"},
      {"models { name: 'a' checkpoint: '/c' }"
       "models { name: 'a' checkpoint: '/d' }",
       "models[1].name: expected each name once, got 'a' again"},
  };
  for (const auto& row : rows) {
    EXPECT_THAT(
        ParseModelsFile(row.text),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(row.error)))
        << row.text;
  }
  std::string many;
  for (size_t i = 0; i <= kMaxFileModels; ++i) {
    absl::StrAppend(&many, "models { name: 'm", i, "' checkpoint: '/c' }\n");
  }
  EXPECT_THAT(ParseModelsFile(many),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("at most 1024, got 1025")));
}

}  // namespace
}  // namespace gshard
