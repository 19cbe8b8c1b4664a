#include "services/rpc/process/span_collector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <fstream>
#include <string>

#include "tests/integration/temporary_directory.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kEndpoint[] = "OTEL_EXPORTER_OTLP_ENDPOINT";
constexpr char kHeaders[] = "OTEL_EXPORTER_OTLP_HEADERS";

class SpanCollectorTest : public ::testing::Test {
 protected:
  ~SpanCollectorTest() override {
    ::unsetenv(kEndpoint);
    ::unsetenv(kHeaders);
  }

  std::string File(const std::string& text) {
    const std::string path = directory_.path() + "/headers";
    std::ofstream(path) << text;
    ::chmod(path.c_str(), 0600);
    return path;
  }

  TemporaryDirectory directory_;
  ProcessOptions options_;
};

TEST_F(SpanCollectorTest, FlagsComeBeforeTheEnvironment) {
  ::setenv(kHeaders, "from=environment", 1);
  ASSERT_OK_AND_ASSIGN(SpanCollector collector, SpanCollectorOf(options_));
  EXPECT_EQ(collector.endpoint, "");
  EXPECT_THAT(collector.headers, IsEmpty());

  ::setenv(kEndpoint, "https://environment:4318/", 1);
  ASSERT_OK_AND_ASSIGN(collector, SpanCollectorOf(options_));
  EXPECT_EQ(collector.endpoint, "https://environment:4318");
  EXPECT_THAT(collector.headers, ElementsAre("from: environment"));

  options_.trace.otlp_endpoint = "https://flag:4318/otlp/";
  options_.trace.otlp_headers_file = File("from=file\nkey=b\n");
  ASSERT_OK_AND_ASSIGN(collector, SpanCollectorOf(options_));
  EXPECT_EQ(collector.endpoint, "https://flag:4318/otlp");
  EXPECT_THAT(collector.headers, ElementsAre("from: file", "key: b"));
}

TEST_F(SpanCollectorTest, HeadersGoWhereNobodyElseReadsThem) {
  options_.trace.otlp_headers_file = File("key=s3cret");
  for (const char* endpoint : {"https://host:4318", "http://localhost:4318",
                               "http://127.0.0.1:4318"}) {
    options_.trace.otlp_endpoint = endpoint;
    EXPECT_OK(SpanCollectorOf(options_));
  }
  options_.trace.otlp_endpoint = "http://host:4318";
  EXPECT_THAT(
      SpanCollectorOf(options_),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("or --insecure"), Not(HasSubstr("s3cret")))));
  options_.security.insecure = true;
  EXPECT_OK(SpanCollectorOf(options_));
  options_.security.insecure = false;
  options_.trace.otlp_headers_file = File("");
  EXPECT_OK(SpanCollectorOf(options_));
}

TEST_F(SpanCollectorTest, WrongHeadersKeepAProcessFromStarting) {
  options_.trace.otlp_endpoint = "https://host:4318";
  options_.trace.otlp_headers_file = directory_.path() + "/none";
  EXPECT_THAT(SpanCollectorOf(options_),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/none")));
  options_.trace.otlp_headers_file = File("s3cret");
  EXPECT_THAT(
      SpanCollectorOf(options_),
      StatusIs(absl::StatusCode::kInvalidArgument, Not(HasSubstr("s3cret"))));
}

TEST_F(SpanCollectorTest, SaysThatOthersCanReadTheFile) {
  options_.trace.otlp_endpoint = "https://host:4318";
  options_.trace.otlp_headers_file = File("key=s3cret");
  ::testing::internal::CaptureStderr();
  ASSERT_OK(SpanCollectorOf(options_));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::chmod(options_.trace.otlp_headers_file.c_str(), 0604);
  ::testing::internal::CaptureStderr();
  ASSERT_OK(SpanCollectorOf(options_));
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      AllOf(HasSubstr("can be read by other users"), Not(HasSubstr("s3cret"))));
}

}  // namespace
}  // namespace gshard
