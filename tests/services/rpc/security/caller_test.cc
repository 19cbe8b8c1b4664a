#include "services/rpc/security/caller.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::_;
using ::testing::HasSubstr;
using ::testing::Not;
using enum Role;

Caller With(const std::string& grants) {
  return {"shop", ParseGrants(grants).value()};
}

TEST(GrantsTest, HaveATextForm) {
  const std::string text =
      "translate:titles-*,admin,train:/data/team-a,train:/data/all,expert";
  ASSERT_OK_AND_ASSIGN(const Grants grants, ParseGrants(text));
  EXPECT_EQ(grants, (Grants{{kTranslate, "titles-*"},
                            {kAdmin},
                            {kTrain, "/data/team-a"},
                            {kTrain, "/data/all"},
                            {kExpert}}));
  EXPECT_EQ(GrantsText(grants), text);
  EXPECT_EQ(ParseGrants(GrantsText(AllGrants())).value(), AllGrants());
}

TEST(GrantsTest, RefusesLimitsThatAreNone) {
  for (const auto& [text, why] :
       std::vector<std::pair<std::string, std::string>>{
           {"", "got ''"},
           {"translate:", "expected models behind the colon"},
           {"translate:a/b", "expected models"},
           {"translate:a@1", "expected models"},
           {"translate:[a-z]", "expected models"},
           {"admin:" + std::string(129, '*'), "expected models"},
           {"admin:*:*", "expected models"},
           {"train:", "expected an absolute folder"},
           {"train:data/team-a", "expected an absolute folder"},
           {"train:titles-*", "expected an absolute folder"},
           {std::string("train:/a\0b", 10), "expected an absolute folder"},
           {"expert:*", "expected no limit"},
           {"root:*", "got 'root'"}}) {
    EXPECT_THAT(ParseGrants(text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)))
        << text;
  }
  std::string many = "expert";
  for (size_t i = 0; i < kMaxGrants; ++i) absl::StrAppend(&many, ",expert");
  EXPECT_THAT(ParseGrants(many),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("64")));
}

TEST(CheckAccessTest, AsksForOneOfTheRoles) {
  const Caller ops{"ops", {{kAdmin}}};
  EXPECT_OK(CheckAccess(ops, "/gshard.v1.CoordinatorService/LoadModel"));
  EXPECT_OK(CheckAccess(ops, "/gshard.v1.CoordinatorService/Describe"));
  EXPECT_OK(CheckAccess({}, "/grpc.health.v1.Health/Check"));
  EXPECT_OK(CheckAccess(With("admin:titles-*"),
                        "/gshard.v1.CoordinatorService/LoadModel"));
  EXPECT_THAT(CheckAccess(ops, "/gshard.v1.TranslationService/Translate"),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "the method needs the role translate, which caller "
                       "'ops' does not have"));
  EXPECT_THAT(CheckAccess(ops, "/gshard.v1.TranslationService/Guess"),
              StatusIs(absl::StatusCode::kUnimplemented, Not(HasSubstr("v1"))));
}

TEST(MayUseModelTest, PatternsStandForNames) {
  struct Row {
    std::string pattern, model;
    bool may;
  };
  for (const Row& row : std::vector<Row>{
           {"titles-*", "titles-de", true},
           {"titles-*", "titles-", true},
           {"titles-*", "titles-de@7", true},
           {"titles-*", "titles-de@", true},
           {"titles-*", "titles", false},
           {"titles-*", "my-titles-de", false},
           {"titles-*", "", false},
           {"titles-*", "@titles-de", false},
           {"titles-*", "Titles-de", false},
           {"titles-*", "news@titles-1", false},
           {"titles-*", std::string("titles\0-de", 10), false},
           {"news", "news", true},
           {"news", "news@2", true},
           {"news", "news2", false},
           {"news", std::string("news\0x", 6), false},
           {"*", "anything", true},
           {"*", "", true},
           {"*-de", "news-de", true},
           {"*-de", "news-de-at", false},
           {"a*b*c", "a-b-c", true},
           {"a*b*c", "abc", true},
           {"a*b*c", "a-c-b", false},
           {"ab*ba", "aba", false},
           {"ab*ba", "abba", true},
           {"a**b", "ab", true},
       }) {
    EXPECT_EQ(
        MayUseModel(With("translate:" + row.pattern), kTranslate, row.model),
        row.may)
        << row.pattern << " " << row.model;
  }
}

TEST(MayUseModelTest, ARoleIsForItself) {
  const Caller caller = With("translate,admin:titles-*,admin:news,train");
  EXPECT_TRUE(MayUseModel(caller, kTranslate, "any"));
  EXPECT_TRUE(MayUseModel(caller, kAdmin, "titles-de"));
  EXPECT_TRUE(MayUseModel(caller, kAdmin, "news@2"));
  EXPECT_FALSE(MayUseModel(caller, kAdmin, "any"));
  EXPECT_FALSE(MayUseModel({}, kTranslate, "any"));
  EXPECT_TRUE(IsLimited(caller));
  EXPECT_FALSE(IsLimited({"ops", AllGrants()}));
  EXPECT_OK(CheckModel(caller, kAdmin, "news"));
  EXPECT_THAT(CheckModel(caller, kAdmin, "any@3"),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       "model 'any' needs the role admin for models of that "
                       "name, which caller 'shop' does not have"));
  // The error bounds and escapes a hostile name.
  const std::string hostile = "\n\x1b[2J" + std::string(1 << 20, 'x');
  const absl::Status denied = CheckModel(caller, kAdmin, hostile);
  EXPECT_THAT(denied, StatusIs(absl::StatusCode::kPermissionDenied,
                               Not(HasSubstr("\n"))));
  EXPECT_LT(denied.message().size(), 1000u);
}

TEST(MayTrainInTest, FoldersAreWhole) {
  const Caller caller = With("train:/data/team-a,train:/data/all,admin");
  EXPECT_TRUE(MayTrainIn(caller, "/data/team-a"));
  EXPECT_TRUE(MayTrainIn(caller, "/data/team-a/run/1"));
  EXPECT_TRUE(MayTrainIn(caller, "/data/all/x.tsv"));
  EXPECT_FALSE(MayTrainIn(caller, "/data/team-ab"));
  EXPECT_FALSE(MayTrainIn(caller, "/data"));
  EXPECT_FALSE(MayTrainIn(caller, "data/team-a"));
  EXPECT_FALSE(MayTrainIn(caller, ""));
  EXPECT_TRUE(MayTrainIn(With("train"), "/etc/passwd"));
  EXPECT_FALSE(MayTrainIn(With("admin"), "/data/team-a"));
}

}  // namespace
}  // namespace gshard
