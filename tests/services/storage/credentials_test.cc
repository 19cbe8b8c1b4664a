#include "services/storage/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/http/http_client.h"
#include "tests/services/storage/fake_object_store.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kFile[] =
    "# keys\n[default]\naws_access_key_id = A\naws_secret_access_key=B==\n"
    "[team]\n aws_access_key_id=C\naws_secret_access_key=D\n"
    "aws_session_token = E\n[half]\naws_access_key_id=F\n";

class CredentialsTest : public ::testing::Test {
 protected:
  CredentialSource Source() {
    return CredentialSource(
        store_.options().endpoint, &http_,
        [this](const char* name) { return env_[name]; },
        [this] { return absl::Now() + passed_; });
  }
  // Has the source assume a role.
  void UseRole() {
    Spill(scratch_ / "token", "secret token\n");
    env_["AWS_WEB_IDENTITY_TOKEN_FILE"] = scratch_ / "token";
    env_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/x";
  }
  void AnswerRole(absl::Duration lasts, const std::string& key = "ROLE") {
    store_.SetRoleAnswer(absl::StrCat(
        "<AssumeRoleWithWebIdentityResponse xmlns='x'>"
        "<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>",
        key,
        "</AccessKeyId><SecretAccessKey>S</SecretAccessKey>"
        "<SessionToken>T</SessionToken><Expiration>",
        absl::FormatTime(absl::RFC3339_sec, absl::Now() + lasts,
                         absl::UTCTimeZone()),
        "</Expiration></Credentials></AssumeRoleWithWebIdentityResult>"
        "</AssumeRoleWithWebIdentityResponse>"));
  }

  ScratchDirectory scratch_;
  FakeObjectStore store_;
  HttpClient http_;
  std::map<std::string, std::string> env_;
  absl::Duration passed_;  // by the clock of Source()
};

TEST(CredentialsFileTest, HasSections) {
  ASSERT_OK_AND_ASSIGN(StoreCredentials found,
                       ParseCredentialsFile(kFile, "default"));
  EXPECT_EQ(found.key_id, "A");
  EXPECT_EQ(found.secret, "B==");
  EXPECT_EQ(found.token, "");
  ASSERT_OK_AND_ASSIGN(found, ParseCredentialsFile(kFile, "team"));
  EXPECT_EQ(found.key_id, "C");
  EXPECT_EQ(found.token, "E");
  for (const char* profile : {"half", "other"}) {
    EXPECT_THAT(ParseCredentialsFile(kFile, profile),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr(profile)));
  }
}

TEST(CredentialsFileTest, TakesWhatIsMalformedForNothing) {
  ASSERT_OK_AND_ASSIGN(
      const StoreCredentials found,
      ParseCredentialsFile(
          "aws_access_key_id=none\n[\n[]\n]\n=\n==\n[default\n"
          "aws_secret_access_key=none\n[ default ]\r\naws_access_key_id\r\n"
          "\taws_access_key_id\t=\tA\r\nAWS_ACCESS_KEY_ID=none\n"
          "aws_secret_access_key=[x]=#;\n; x=y\n[other]\n"
          "aws_access_key_id=none",
          "default"));
  EXPECT_EQ(found.key_id, "A");
  EXPECT_EQ(found.secret, "[x]=#;");
  for (const absl::string_view text :
       {"", "\n", "[default]", "[default]\naws_access_key_id=\n",
        "[default]\naws_access_key_id=A\naws_secret_access_key= \n"}) {
    EXPECT_THAT(ParseCredentialsFile(text, "default"),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr("[default]")));
  }
}

// Keys with unprintable characters are refused: a line break in a request would
// start another header.
TEST_F(CredentialsTest, KeysAreOfPrintableCharacters) {
  env_["AWS_ACCESS_KEY_ID"] = "X";
  env_["AWS_SECRET_ACCESS_KEY"] = "Y";
  ASSERT_OK(Source().Get());
  for (const char* name : {"AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"}) {
    for (const char* const value :
         {"a\n", "a\r\nX-Evil: b", "a b", "\x7f", "ü"}) {
      const std::string before = env_[name];
      env_[name] = value;
      EXPECT_THAT(Source().Get(), StatusIs(absl::StatusCode::kPermissionDenied,
                                           HasSubstr("printable")))
          << name;
      env_[name] = before;
    }
  }
  env_.clear();
  Spill(scratch_ / "token", "secret token\n");
  env_["AWS_WEB_IDENTITY_TOKEN_FILE"] = scratch_ / "token";
  env_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/x";
  AnswerRole(absl::Hours(1), "ROLE&#10;X-Evil: b");
  EXPECT_THAT(Source().Get(), StatusIs(absl::StatusCode::kPermissionDenied,
                                       HasSubstr("printable")));
}

TEST_F(CredentialsTest, TheEnvironmentComesFirstAndTheFileLast) {
  Spill(scratch_ / "keys", kFile);
  env_["AWS_SHARED_CREDENTIALS_FILE"] = scratch_ / "keys";
  env_["AWS_PROFILE"] = "team";
  ASSERT_OK_AND_ASSIGN(StoreCredentials found, Source().Get());
  EXPECT_EQ(found.key_id, "C");
  env_["AWS_ACCESS_KEY_ID"] = "X";
  env_["AWS_SECRET_ACCESS_KEY"] = "Y";
  ASSERT_OK_AND_ASSIGN(found, Source().Get());
  EXPECT_EQ(found.key_id, "X");
}

TEST_F(CredentialsTest, WithoutAnySaysWhatIsExpected) {
  env_["HOME"] = scratch_.path();
  EXPECT_THAT(Source().Get(),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("AWS_ACCESS_KEY_ID"),
                             HasSubstr(scratch_ / ".aws/credentials"))));
}

TEST_F(CredentialsTest, ARoleIsAssumedBeforeItExpires) {
  Spill(scratch_ / "token", "secret token\n");
  env_["AWS_WEB_IDENTITY_TOKEN_FILE"] = scratch_ / "token";
  EXPECT_THAT(Source().Get(), StatusIs(absl::StatusCode::kPermissionDenied,
                                       HasSubstr("AWS_ROLE_ARN")));
  env_["AWS_ROLE_ARN"] = "arn:aws:iam::1:role/x";
  CredentialSource source = Source();
  EXPECT_THAT(source.Get(), StatusIs(absl::StatusCode::kPermissionDenied,
                                     AllOf(HasSubstr("InvalidIdentityToken"),
                                           Not(HasSubstr("secret token")))));
  AnswerRole(absl::Hours(1));
  ASSERT_OK_AND_ASSIGN(StoreCredentials found, source.Get());
  EXPECT_EQ(found.key_id, "ROLE");
  EXPECT_EQ(found.secret, "S");
  EXPECT_EQ(found.token, "T");
  AnswerRole(absl::Minutes(4), "SHORT");
  ASSERT_OK_AND_ASSIGN(found, source.Get());
  EXPECT_EQ(found.key_id, "ROLE");
  source.Forget();
  ASSERT_OK_AND_ASSIGN(found, source.Get());
  EXPECT_EQ(found.key_id, "SHORT");
  // Valid for four minutes, in which a refresh is tried each half minute and
  // may fail.
  store_.SetRoleAnswer("<x/>");
  const size_t requests = store_.Requests().size();
  for (int half_minutes = 1; half_minutes <= 3; ++half_minutes) {
    passed_ = half_minutes * absl::Seconds(31);
    for (int i = 0; i < 5; ++i) {
      ASSERT_OK_AND_ASSIGN(found, source.Get());
      EXPECT_EQ(found.key_id, "SHORT");
    }
    EXPECT_EQ(store_.Requests().size(), requests + half_minutes);
  }
  AnswerRole(absl::Hours(1), "NEXT");
  ASSERT_OK_AND_ASSIGN(found, source.Get());
  EXPECT_EQ(found.key_id, "SHORT");
  passed_ += absl::Seconds(31);
  ASSERT_OK_AND_ASSIGN(found, source.Get());
  EXPECT_EQ(found.key_id, "NEXT");
  // Without any that are good, each call asks.
  store_.SetRoleAnswer("<x/>");
  passed_ += absl::Hours(1);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(source.Get(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("role")));
  }
}

TEST_F(CredentialsTest, NobodyWaitsForARefreshWhileTheKeysAreGood) {
  UseRole();
  AnswerRole(absl::Minutes(4));
  CredentialSource source = Source();
  ASSERT_OK(source.Get());
  passed_ = absl::Seconds(31);
  std::promise<void> asked, answer;
  std::atomic<bool> is_first = true;
  store_.SetOnRequest([&](const std::string&) {
    if (is_first.exchange(false)) {
      asked.set_value();
      answer.get_future().wait();
    }
    return FakeObjectStore::Fault::kNone;
  });
  auto refreshed = std::async(std::launch::async, [&] { return source.Get(); });
  asked.get_future().wait();
  auto others = std::async(std::launch::async, [&] { return source.Get(); });
  EXPECT_EQ(others.wait_for(std::chrono::seconds(30)),
            std::future_status::ready);
  EXPECT_EQ(refreshed.wait_for(std::chrono::seconds(0)),
            std::future_status::timeout);
  answer.set_value();
  EXPECT_OK(others.get());
  EXPECT_OK(refreshed.get());
  EXPECT_EQ(store_.Requests().size(), 2u);
}

// A lease of 30 s has to be renewed meanwhile.
TEST_F(CredentialsTest, AServiceThatHangsIsGivenUpSoon) {
  UseRole();
  AnswerRole(absl::Minutes(4));
  CredentialSource source = Source();
  ASSERT_OK(source.Get());
  passed_ = absl::Seconds(31);
  std::promise<void> end;
  store_.SetOnRequest([ended = end.get_future().share()](const std::string&) {
    ended.wait();
    return FakeObjectStore::Fault::kNone;
  });
  auto found = std::async(std::launch::async, [&] { return source.Get(); });
  EXPECT_EQ(found.wait_for(std::chrono::seconds(10)),
            std::future_status::ready);
  end.set_value();
  ASSERT_OK_AND_ASSIGN(const StoreCredentials keys, found.get());
  EXPECT_EQ(keys.key_id, "ROLE");
}

TEST_F(CredentialsTest, AServiceThatHasNoTimeIsNoDenial) {
  UseRole();
  store_.SetOnRequest(
      [](const std::string&) { return FakeObjectStore::Fault::kMadeUp; });
  const auto code_for = [&](int http, const std::string& code) {
    const std::string body = absl::StrCat("<ErrorResponse><Error><Code>", code,
                                          "</Code></Error></ErrorResponse>");
    store_.SetMadeUp(absl::StrCat("HTTP/1.1 ", http, " No\r\nContent-Length: ",
                                  body.size(), "\r\n\r\n", body));
    const absl::Status status = Source().Get().status();
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("HTTP ", http, " ", code)));
    return status.code();
  };
  EXPECT_EQ(code_for(400, "Throttling"), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code_for(400, "ThrottlingException"),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(code_for(400, "IDPCommunicationError"),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(code_for(503, "RequestLimitExceeded"),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(code_for(400, "RequestLimitExceeded"),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(code_for(429, ""), absl::StatusCode::kUnavailable);
  EXPECT_EQ(code_for(400, "ExpiredTokenException"),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(code_for(403, "AccessDenied"), absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace gshard
