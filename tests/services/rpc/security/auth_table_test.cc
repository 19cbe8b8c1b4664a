#include "services/rpc/security/auth_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "services/checkpoint/sha256.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnauthenticated = absl::StatusCode::kUnauthenticated;

AuthTable Table() {
  return AuthTable::Parse(
             absl::StrCat("# who may do what\n\n"
                          "shop  token ",
                          Sha256("open sesame"),
                          " translate\n"
                          "\tops token ",
                          Sha256("s3cret"),
                          " train,admin  # the night shift\n"
                          "member certificate worker.gshard expert\n"
                          "member certificate 10.0.0.7 expert\n"))
      .value();
}

Credentials Shows(const std::string& authorization) {
  return {.authorization = authorization, .certificate_names = {}};
}

TEST(AuthTableTest, KnowsTokens) {
  ASSERT_OK_AND_ASSIGN(const Caller shop,
                       Table().Identify(Shows("Bearer open sesame")));
  EXPECT_EQ(shop, (Caller{"shop", {{Role::kTranslate}}}));
  ASSERT_OK_AND_ASSIGN(const Caller ops,
                       Table().Identify(Shows("bearer s3cret")));
  EXPECT_EQ(ops, (Caller{"ops", {{Role::kTrain}, {Role::kAdmin}}}));
}

TEST(AuthTableTest, RolesMayBeLimited) {
  ASSERT_OK_AND_ASSIGN(
      const AuthTable table,
      AuthTable::Parse(absl::StrCat(
          "shop token ", Sha256("x"),
          " translate:titles-*,train:/data/team-a  # for a while\n")));
  EXPECT_EQ(table.Identify(Shows("Bearer x")).value(),
            (Caller{"shop",
                    {{Role::kTranslate, "titles-*"},
                     {Role::kTrain, "/data/team-a"}}}));
}

// Otherwise the limit would end there, and the role reach further than written.
TEST(AuthTableTest, NoCommentBeginsInsideAWord) {
  ASSERT_OK_AND_ASSIGN(const AuthTable table,
                       AuthTable::Parse(absl::StrCat(
                           "  # nobody else\n#\n", "shop token ", Sha256("x"),
                           " train:/data/#team-a,train:/data/b#\t#train\n"
                           "#shop token ",
                           Sha256("y"), " admin\n")));
  EXPECT_EQ(
      table.Identify(Shows("Bearer x")).value(),
      (Caller{"shop",
              {{Role::kTrain, "/data/#team-a"}, {Role::kTrain, "/data/b#"}}}));
  EXPECT_EQ(table.size(), 1);
  EXPECT_THAT(AuthTable::Parse(absl::StrCat("shop token ", Sha256("x"),
                                            " train#for a while\n")),
              StatusIs(kInvalid, HasSubstr("line 1")));
}

TEST(AuthTableTest, KnowsCertificates) {
  ASSERT_OK_AND_ASSIGN(
      const Caller member,
      Table().Identify({.authorization = std::nullopt,
                        .certificate_names = {"gshard", "worker.gshard"}}));
  EXPECT_EQ(member, (Caller{"member", {{Role::kExpert}}}));
  EXPECT_THAT(Table().Identify({.authorization = std::nullopt,
                                .certificate_names = {"worker.gshard.evil"}}),
              StatusIs(kUnauthenticated, HasSubstr("certificate")));
}

// All invalid tokens get the same answer, which reveals nothing about valid
// tokens.
TEST(AuthTableTest, ABadTokenIsABadToken) {
  for (const std::string& shown :
       {std::string("Bearer open sesam"), std::string("Bearer "),
        std::string("Bearer"), std::string(""), std::string("open sesame"),
        std::string("Basic open sesame"), std::string("Bearer s3cret "),
        absl::StrCat("Bearer ", Sha256("s3cret"))}) {
    EXPECT_THAT(Table().Identify(Shows(shown)),
                StatusIs(kUnauthenticated, "the token is not valid"))
        << shown;
  }
  // A valid certificate does not outweigh an invalid token.
  EXPECT_THAT(Table().Identify({.authorization = "Bearer wrong",
                                .certificate_names = {"worker.gshard"}}),
              StatusIs(kUnauthenticated, "the token is not valid"));
}

TEST(AuthTableTest, SomethingMustBeShown) {
  EXPECT_THAT(Table().Identify({}),
              StatusIs(kUnauthenticated, HasSubstr("expected a bearer token")));
}

TEST(AuthTableTest, RefusesBadFiles) {
  const std::string digest = Sha256("x");
  for (const auto& [text, why] :
       std::vector<std::pair<std::string, std::string>>{
           {"shop token " + digest, "line 1: expected a name, token"},
           {"\nshop token " + digest + " translate more", "line 2"},
           {"sh\"op token " + digest + " translate", "expected a name of"},
           {"shop password " + digest + " translate", "'token' or"},
           {"shop token open-sesame translate", "SHA-256"},
           {"shop token " + digest.substr(1) + " translate", "SHA-256"},
           {"shop token " + digest + " translate,root", "got 'root'"},
           {"shop token " + digest + " translate,", "got ''"},
           {"a token " + digest + " train\nshop token " + digest +
                " train,translate:a/b",
            "line 2: translate: expected models"},
           {"\n\nshop token " + digest + " train:data", "line 3: train: expe"},
           {"shop token " + digest + " train:/data/team a", "got 5 words"},
           {"shop token " + digest + " expert:x",
            "line 1: expert: expected"}}) {
    EXPECT_THAT(AuthTable::Parse(text), StatusIs(kInvalid, HasSubstr(why)));
  }
  // The error must not quote the line, which may hold a plaintext token.
  EXPECT_THAT(AuthTable::Parse("shop token open-sesame translate"),
              StatusIs(kInvalid, Not(HasSubstr("sesame"))));
  std::string many;
  for (size_t i = 0; i <= kMaxAuthLines; ++i) {
    absl::StrAppend(&many, "a certificate b expert\n");
  }
  EXPECT_THAT(AuthTable::Parse(many), StatusIs(kInvalid, HasSubstr("at most")));
}

}  // namespace
}  // namespace gshard
