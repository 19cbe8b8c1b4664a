#include "services/storage/object_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/base/utf8.h"
#include "tests/services/storage/fake_object_store.h"
#include "tests/services/storage/scratch_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Fault = FakeObjectStore::Fault;

const ObjectPath kPath{"bucket", "a+b/ü=1"};

class ObjectClientTest : public ::testing::Test {
 protected:
  ObjectClientTest() {
    store_.Use();
    client_ = *ObjectClient::Create(store_.options());
  }

  // Fails the next `count` requests that start with `begin`.
  void Fail(Fault fault, int count, const std::string& begin = "") {
    auto left = std::make_shared<std::atomic<int>>(count);
    store_.SetOnRequest([=](const std::string& request) {
      return absl::StartsWith(request, begin) && (*left)-- > 0 ? fault
                                                               : Fault::kNone;
    });
  }
  std::string Read(size_t size) {
    std::string bytes(size, ' ');
    EXPECT_OK(client_->Get(kPath, 0, "", absl::MakeSpan(bytes)));
    return bytes;
  }

  FakeObjectStore store_;
  std::unique_ptr<ObjectClient> client_;
};

TEST_F(ObjectClientTest, GoesOnAfterFaultsThatPass) {
  const std::string bytes(300'000, 'x');
  for (const Fault fault : {Fault::kReset, Fault::kLost, Fault::kSlowDown,
                            Fault::kInternal, Fault::kTruncate}) {
    SCOPED_TRACE(static_cast<int>(fault));
    Fail(fault, 3);
    ASSERT_OK(client_->Put(kPath, bytes));
    Fail(fault, 3);
    EXPECT_TRUE(Read(bytes.size()) == bytes);
    Fail(fault, 3);
    ASSERT_OK_AND_ASSIGN(const ObjectInfo info, client_->Head(kPath));
    EXPECT_EQ(info.bytes, bytes.size());
    Fail(fault, 3);
    ASSERT_OK_AND_ASSIGN(const ObjectList list,
                         client_->List("bucket", "", ""));
    EXPECT_THAT(list.keys, ::testing::ElementsAre(kPath.key));
    Fail(fault, 3);
    ASSERT_OK(client_->Delete(kPath));
  }
}

TEST_F(ObjectClientTest, WhatCameOfATruncatedAnswerIsNotAskedForAgain) {
  ASSERT_OK(client_->Put(kPath, std::string(1 << 20, 'x')));
  Fail(Fault::kTruncate, 6);
  const size_t before = store_.Requests().size();
  EXPECT_TRUE(Read(1 << 20) == std::string(1 << 20, 'x'));
  EXPECT_EQ(store_.Requests().size(), before + 7);
}

// HTTP lets a server ignore what range is asked for.
TEST_F(ObjectClientTest, TheWholeObjectIsTakenForItsRange) {
  store_.SetMadeUp("HTTP/1.1 200 x\r\nContent-Length: 2\r\n\r\nab");
  store_.SetOnRequest([](const std::string&) { return Fault::kMadeUp; });
  EXPECT_EQ(Read(2), "ab");
  for (const auto& [offset, size] : {std::pair(0, 1), {0, 3}, {1, 1}, {1, 2}}) {
    std::string bytes(size, ' ');
    EXPECT_FALSE(client_->Get(kPath, offset, "", absl::MakeSpan(bytes)).ok());
  }
}

// One that does so only after a first answer was cut.
TEST_F(ObjectClientTest, TheWholeObjectIsNotTakenForItsRest) {
  ASSERT_OK(client_->Put(kPath, "abcdefgh"));
  store_.SetMadeUp("HTTP/1.1 200 x\r\nContent-Length: 2\r\n\r\nab");
  std::atomic<int> count = 0;
  store_.SetOnRequest([&](const std::string&) {
    constexpr Fault kFaults[] = {Fault::kTruncate, Fault::kMadeUp};
    const int i = count++;
    return i < 2 ? kFaults[i] : Fault::kNone;
  });
  EXPECT_EQ(Read(8), "abcdefgh");
}

TEST_F(ObjectClientTest, GivesUpInTheEndAndSaysWhy) {
  Fail(Fault::kSlowDown, 1000);
  EXPECT_THAT(client_->Put(kPath, "x"),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("s3://bucket/a+b"), HasSubstr("503"),
                             HasSubstr("SlowDown"))));
  EXPECT_EQ(store_.Requests().size(), 8u);
}

TEST_F(ObjectClientTest, WhatCannotPassIsNotTriedAgain) {
  Fail(Fault::kRefused, 1000);
  EXPECT_THAT(
      client_->Put(kPath, "x"),
      StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("AccessDenied")));
  EXPECT_EQ(store_.Requests().size(), 1u);
}

TEST_F(ObjectClientTest, HasASecretThatIsNeverTold) {
  const auto stranger = ObjectClient::Create(
      store_.options(), [](const char* name) -> std::string {
        if (std::string(name) == "AWS_ACCESS_KEY_ID") return "AKIDEXAMPLE";
        return std::string(name) == "AWS_SECRET_ACCESS_KEY" ? "no secret" : "";
      });
  ASSERT_OK(stranger);
  EXPECT_THAT((*stranger)->Put(kPath, "x"),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("SignatureDoesNotMatch"),
                             Not(HasSubstr("no secret")))));
}

TEST_F(ObjectClientTest, SignsTheTokenOfASession) {
  const auto client = ObjectClient::Create(
      store_.options(), [](const char* name) -> std::string {
        const std::string asked = name;
        if (asked == "AWS_ACCESS_KEY_ID") return FakeObjectStore::kKeyId;
        if (asked == "AWS_SECRET_ACCESS_KEY") return FakeObjectStore::kSecret;
        return asked == "AWS_SESSION_TOKEN" ? "a//token+" : "";
      });
  ASSERT_OK(client);
  EXPECT_OK((*client)->Put(kPath, "x"));
}

// A role that cannot be assumed now is asked for again, like the store.
TEST_F(ObjectClientTest, GoesOnOnceItHasCredentials) {
  const ScratchDirectory scratch;
  Spill(scratch / "token", "token");
  store_.SetRoleAnswer(absl::StrCat(
      "<x><Credentials><AccessKeyId>", FakeObjectStore::kKeyId,
      "</AccessKeyId><SecretAccessKey>", FakeObjectStore::kSecret,
      "</SecretAccessKey><SessionToken>T</SessionToken>"
      "<Expiration>2999-01-01T00:00:00Z</Expiration></Credentials></x>"));
  const auto make = [&] {
    ObjectStoreOptions options = store_.options();
    return *ObjectClient::Create(options, [&](const char* name) -> std::string {
      const std::string asked = name;
      if (asked == "AWS_ENDPOINT_URL_STS") return options.endpoint;
      if (asked == "AWS_ROLE_ARN") return "role";
      return asked == "AWS_WEB_IDENTITY_TOKEN_FILE" ? scratch / "token" : "";
    });
  };
  Fail(Fault::kSlowDown, 3, "POST");
  ASSERT_OK(make()->Put(kPath, "x"));
  EXPECT_EQ(store_.Requests().size(), 5u);
  // What is there by the first request that was sent is a rival's.
  Fail(Fault::kSlowDown, 3, "POST");
  EXPECT_THAT(make()->Put(kPath, "x", {PutCondition::Kind::kAbsent}),
              StatusIs(absl::StatusCode::kAlreadyExists, ::testing::_));
  Fail(Fault::kSlowDown, 1000, "POST");
  EXPECT_THAT(make()->Put(kPath, "x"),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("s3://bucket/a+b"), HasSubstr("role"))));
}

TEST_F(ObjectClientTest, ConditionsHold) {
  const PutCondition absent{PutCondition::Kind::kAbsent};
  ASSERT_OK_AND_ASSIGN(const std::string etag,
                       client_->Put(kPath, "1", absent));
  EXPECT_THAT(client_->Put(kPath, "2", absent),
              StatusIs(absl::StatusCode::kAlreadyExists, ::testing::_));
  ASSERT_OK(client_->Put(kPath, "3", {PutCondition::Kind::kMatches, etag}));
  EXPECT_THAT(client_->Put(kPath, "4", {PutCondition::Kind::kMatches, etag}),
              StatusIs(absl::StatusCode::kAborted, ::testing::_));
  EXPECT_EQ(Read(1), "3");
  ASSERT_OK(client_->Delete(kPath));
  EXPECT_THAT(client_->Put(kPath, "5", {PutCondition::Kind::kMatches, etag}),
              StatusIs(absl::StatusCode::kAborted, ::testing::_));
}

// A put that took effect but whose answer was lost succeeds, although its own
// first attempt blocks the retry; a real rival still makes a put fail.
TEST_F(ObjectClientTest, ALostAnswerIsNoRivals) {
  Fail(Fault::kLost, 1, "PUT");
  ASSERT_OK_AND_ASSIGN(
      const std::string etag,
      client_->Put(kPath, "mine", {PutCondition::Kind::kAbsent}));
  Fail(Fault::kLost, 1, "PUT");
  ASSERT_OK(
      client_->Put(kPath, "mine too", {PutCondition::Kind::kMatches, etag}));
  Fail(Fault::kReset, 1, "PUT");
  EXPECT_THAT(client_->Put(kPath, "other", {PutCondition::Kind::kAbsent}),
              StatusIs(absl::StatusCode::kAlreadyExists, ::testing::_));
  EXPECT_EQ(Read(8), "mine too");
}

TEST_F(ObjectClientTest, UploadsComeToTheirEnd) {
  for (const Fault fault : {Fault::kLost, Fault::kLateError}) {
    ASSERT_OK_AND_ASSIGN(const std::string id, client_->BeginUpload(kPath));
    ASSERT_OK_AND_ASSIGN(const std::string etag,
                         client_->PutPart(kPath, id, 1, "bytes"));
    Fail(fault, 2, "POST");
    ASSERT_OK(client_->CompleteUpload(kPath, id, {etag}, 5));
    EXPECT_EQ(Read(5), "bytes");
  }
  EXPECT_THAT(client_->CompleteUpload(kPath, "unknown", {"\"x\""}, 5),
              StatusIs(absl::StatusCode::kNotFound, ::testing::_));
}

TEST_F(ObjectClientTest, AnUploadThatIsGivenUpIsGone) {
  ASSERT_OK_AND_ASSIGN(const std::string id, client_->BeginUpload(kPath));
  Fail(Fault::kLost, 1, "DELETE");
  EXPECT_OK(client_->AbortUpload(kPath, id));
  EXPECT_EQ(store_.OpenUploads(), 0u);
}

TEST_F(ObjectClientTest, ListsInPages) {
  for (int i = 0; i < 10; ++i) {
    store_.Set(absl::StrCat("bucket/x/", i, "/y"), "");
  }
  store_.Set("bucket/x/file", "");
  ASSERT_OK_AND_ASSIGN(ObjectList list, client_->List("bucket", "x/", "/"));
  EXPECT_EQ(list.prefixes.size(), 10u);
  EXPECT_THAT(list.keys, ::testing::ElementsAre("x/file"));
  ASSERT_OK_AND_ASSIGN(list, client_->List("bucket", "x/", ""));
  EXPECT_EQ(list.keys.size(), 11u);
}

TEST_F(ObjectClientTest, WhateverAStoreAnswersIsAnErrorThatCanBeTold) {
  const auto answer = [](int code, const std::string& headers,
                         const std::string& body) {
    return absl::StrCat("HTTP/1.1 ", code,
                        " x\r\nContent-Length: ", body.size(), "\r\n", headers,
                        "\r\n", body);
  };
  std::string umlauts = "x";  // so that a cut falls within an umlaut
  while (umlauts.size() < 1000) umlauts += "ü";
  const std::string list = "<ListBucketResult><IsTruncated>true</IsTruncated>";
  for (const std::string& text : {
           std::string("no HTTP\r\n\r\n"),
           std::string("HTTP/1.1 200 x\r\nContent-Length: -1\r\n\r\n"),
           std::string("HTTP/1.1 206 x\r\nContent-Length: "
                       "99999999999999999999\r\n\r\n"),
           answer(200, "", ""),
           answer(206, "Content-Range: bytes \xff\x80\r\n", "x"),
           answer(206, "Content-Range: bytes 0-0/1\r\n", "xyz"),
           answer(200, "", list + "</ListBucketResult>"),
           answer(200, "", list),
           answer(200, "", "<!DOCTYPE a [<!ENTITY e 'eeee'>]><a>&e;</a>"),
           answer(301, "Location: http://127.0.0.1:1/\r\n", ""),
           answer(400, "", "<Error><Code>\xff</Code></Error>"),
           answer(403, "",
                  absl::StrCat("<Error><Code>", umlauts, "</Code><Message>",
                               umlauts, "</Message></Error>")),
       }) {
    SCOPED_TRACE(text.substr(0, 200));
    store_.SetMadeUp(text);
    store_.SetOnRequest([](const std::string&) { return Fault::kMadeUp; });
    std::string bytes(2, ' ');
    for (const absl::Status& status :
         {client_->Get(kPath, 0, "", absl::MakeSpan(bytes)),
          client_->Head(kPath).status(), client_->Put(kPath, "x").status(),
          client_->List("bucket", "", "").status(),
          client_->BeginUpload(kPath).status()}) {
      EXPECT_FALSE(status.ok());
      EXPECT_THAT(status.message(), HasSubstr("s3://bucket"));
      EXPECT_TRUE(IsUtf8(status.message())) << status.message();
    }
  }
}

TEST(ObjectStoreOptionsTest, PlainHttpIsForThisMachine) {
  const Environment none = [](const char*) { return std::string(); };
  const auto create = [&](const std::string& endpoint, bool insecure = false) {
    return ObjectClient::Create({.endpoint = endpoint, .insecure = insecure},
                                none)
        .status();
  };
  for (const char* endpoint :
       {"", "https://s3.example.org", "http://127.0.0.1:9000",
        "http://localhost:9000/", "http://[::1]:9000"}) {
    EXPECT_OK(create(endpoint));
  }
  for (const char* endpoint :
       {"http://s3.example.org", "http://127.example.org", "http://10.0.0.1",
        "http://localhost.example.org:80", "ftp://127.0.0.1", "127.0.0.1:9000",
        "https://user:secret@example.org"}) {
    EXPECT_THAT(create(endpoint),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         Not(HasSubstr("secret"))))
        << endpoint;
  }
  EXPECT_OK(create("http://10.0.0.1", /*insecure=*/true));
}

TEST(ObjectStoreOptionsTest, DelaysDoubleUpToTheirMost) {
  const ObjectStoreOptions options;
  EXPECT_EQ(DelayBefore(1, options, 0.0), absl::Milliseconds(50));
  EXPECT_EQ(DelayBefore(3, options, 0.0), absl::Milliseconds(200));
  EXPECT_EQ(DelayBefore(7, options, 1.0), absl::Seconds(5));
}

}  // namespace
}  // namespace gshard
