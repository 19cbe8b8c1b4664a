#include "services/base/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "services/base/log_style.h"

namespace gshard {
namespace {

using ::nlohmann::json;
using ::testing::MatchesRegex;
using ::testing::SizeIs;

// Returns the lines that `log` writes, each parsed as strict JSON.
template <typename F>
std::vector<json> Lines(F log) {
  ::testing::internal::CaptureStderr();
  log();
  std::istringstream text(::testing::internal::GetCapturedStderr());
  std::vector<json> lines;
  for (std::string line; std::getline(text, line);) {
    json parsed = json::parse(line, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(parsed.is_object()) << "not a JSON object: " << line;
    if (parsed.is_object()) lines.push_back(std::move(parsed));
  }
  return lines;
}

json Line(LogFields fields) {
  const std::vector<json> lines = Lines([&] { LogInfo("test", fields); });
  EXPECT_THAT(lines, SizeIs(1));
  return lines.empty() ? json::object() : lines[0];
}

TEST(LogTest, WritesOneObjectALineWithTimeSeverityAndMessage) {
  const std::vector<json> lines = Lines([] {
    LogInfo("step committed", {{"step", 12}, {"loss", 3.25}});
    LogWarning("slow");
    LogError("gone");
  });
  ASSERT_THAT(lines, SizeIs(3));
  EXPECT_EQ(lines[0]["message"], "step committed");
  EXPECT_EQ(lines[0]["severity"], "INFO");
  EXPECT_EQ(lines[0]["step"], 12);
  EXPECT_EQ(lines[0]["loss"], 3.25);
  EXPECT_THAT(lines[0]["time"].get<std::string>(),
              MatchesRegex("[0-9-]+T[0-9]+:[0-9]+:[0-9]+\\.[0-9]+Z"));
  EXPECT_EQ(lines[1]["severity"], "WARNING");
  EXPECT_EQ(lines[2]["severity"], "ERROR");
}

TEST(LogTest, LinesForAPersonArePlain) {
  ::testing::internal::CaptureStderr();
  SetLogStyle(LogStyle::kPlain);
  LogWarning("slow", {{"file", "/a\x1b[2J"}, {"seconds", 3}});
  LogError("gone");
  SetLogStyle(LogStyle::kJson);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "gshard: warning: slow: file=\"/a\\u001b[2J\", seconds=3\n"
            "gshard: error: gone\n");
}

TEST(LogTest, KeepsTheTypeOfEveryField) {
  const json line = Line({{"text", "x"},
                          {"yes", true},
                          {"least", std::numeric_limits<int64_t>::min()},
                          {"size", size_t{7}},
                          {"status", absl::NotFoundError("no expert 9")}});
  EXPECT_EQ(line["text"], "x");
  EXPECT_EQ(line["yes"], true);
  EXPECT_EQ(line["least"], std::numeric_limits<int64_t>::min());
  EXPECT_EQ(line["size"], 7);
  EXPECT_EQ(line["status"], "NOT_FOUND: no expert 9");
}

TEST(LogTest, EscapesWhateverTextHolds) {
  std::string text = "\"\\\n\r\t\x01/é€😀";
  text += '\0';
  EXPECT_EQ(Line({{"text", text}})["text"], text);
  EXPECT_EQ(Line({{"a\"b", 1}})["a\"b"], 1);
}

// Error messages bring bytes of callers into the log. JSON is UTF-8, so invalid
// sequences are replaced with U+FFFD.
TEST(LogTest, ReplacesBytesThatAreNotUtf8) {
  const std::string replaced = "a\xEF\xBF\xBDz";
  EXPECT_EQ(Line({{"text", "a\xFFz"}})["text"], replaced);
  EXPECT_EQ(Line({{"text", "a\xC0\xAFz"}})["text"],  // overlong
            "a\xEF\xBF\xBD\xEF\xBF\xBDz");
  EXPECT_EQ(Line({{"text", "ab\xE2\x82"}})["text"],  // cut short
            "ab\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_TRUE(Line({{"text", "\xED\xA0\x80"}}).is_object());      // a surrogate
  EXPECT_TRUE(Line({{"text", "\xF4\x90\x80\x80"}}).is_object());  // too large
}

TEST(LogTest, NumbersThatJsonCannotSayAreNull) {
  const json line = Line({{"nan", std::numeric_limits<double>::quiet_NaN()},
                          {"infinite", std::numeric_limits<double>::infinity()},
                          {"tiny", 1e-300}});
  EXPECT_TRUE(line["nan"].is_null());
  EXPECT_TRUE(line["infinite"].is_null());
  EXPECT_EQ(line["tiny"], 1e-300);
}

TEST(LogTest, LinesBelowTheThresholdAreNotWritten) {
  EXPECT_THAT(Lines([] { Log(LogSeverity::kDebug, "detail", {}); }), SizeIs(0));
  SetLogThreshold(LogSeverity::kError);
  const std::vector<json> lines = Lines([] {
    LogInfo("a");
    LogWarning("b");
    LogError("c");
  });
  SetLogThreshold(LogSeverity::kInfo);
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0]["message"], "c");
}

TEST(LogTest, LinesOfManyThreadsStayWhole) {
  const std::vector<json> lines = Lines([] {
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([t] {
        for (int i = 0; i < 50; ++i) {
          LogInfo("thread", {{"thread", t}, {"pad", std::string(200, 'x')}});
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  EXPECT_THAT(lines, SizeIs(200));
}

// In a process of its own, since they cannot be removed.
TEST(LogDeathTest, ProcessFieldsStandInEveryLaterLine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto log = [] {
    SetLogField({"role", "router"});
    SetLogField({"index", 3});
    LogInfo("test", {{"step", 1}});
    exit(0);
  };
  EXPECT_EXIT(log(), ::testing::ExitedWithCode(0),
              "\"test\",\"role\":\"router\",\"index\":3,\"step\":1");
}

}  // namespace
}  // namespace gshard
