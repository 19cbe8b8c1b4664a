#include "services/rpc/wire/trace_context.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "services/rpc/wire/trace_scope.h"

namespace gshard {
namespace {

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kSpan[] = "b7ad6b7169203331";

std::string Parent(const std::string& version, const std::string& trace,
                   const std::string& span, const std::string& flags,
                   const std::string& rest = "") {
  return absl::StrCat(version, "-", trace, "-", span, "-", flags, rest);
}

TEST(TraceContextTest, ReadsWhatIsValid) {
  for (const std::string& text :
       {Parent("00", kTrace, kSpan, "01"), Parent("cc", kTrace, kSpan, "01"),
        Parent("cc", kTrace, kSpan, "01", "-what-the-future-will-bring")}) {
    const TraceContext trace = ParseTraceparent(text);
    EXPECT_EQ(trace.trace_id, kTrace) << text;
    EXPECT_EQ(trace.span_id, kSpan);
    EXPECT_EQ(trace.flags, 1);
  }
}

TEST(TraceContextTest, RefusesWhatIsNot) {
  const std::string zeros32(32, '0');
  const std::string zeros16(16, '0');
  for (const std::string& text :
       {std::string(), std::string("00"), Parent("ff", kTrace, kSpan, "01"),
        Parent("00", zeros32, kSpan, "01"), Parent("00", kTrace, zeros16, "01"),
        Parent("00", kTrace, kSpan, "01", "-more"),
        Parent("cc", kTrace, kSpan, "01", ".more"),
        Parent("00", kTrace, kSpan, "0x"), Parent("0x", kTrace, kSpan, "01"),
        Parent("00", std::string(31, 'a') + "G", kSpan, "01"),
        Parent("00", std::string(32, 'A'), kSpan, "01"),
        Parent("00", kTrace, std::string(15, 'a') + "-", "01"),
        Parent("00", std::string(33, 'a'), std::string(15, 'a'), "01"),
        " " + Parent("00", kTrace, kSpan, "01")}) {
    EXPECT_EQ(ParseTraceparent(text), TraceContext()) << text;
  }
}

TEST(TraceContextTest, EachHopHasASpanOfItsOwn) {
  const std::string parent = Parent("00", kTrace, kSpan, "ff");
  const TraceContext hop = ContinueTrace(parent, "vendor=x");
  EXPECT_EQ(hop.trace_id, kTrace);
  EXPECT_NE(hop.span_id, kSpan);
  EXPECT_EQ(hop.state, "vendor=x");
  EXPECT_EQ(hop.Traceparent(), Parent("00", kTrace, hop.span_id, "01"));
  EXPECT_NE(ContinueTrace(parent, "").span_id, hop.span_id);
}

TEST(TraceContextTest, ABadParentBeginsANewTrace) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const TraceContext trace = ContinueTrace("garbage", "vendor=x");
    EXPECT_EQ(ParseTraceparent(trace.Traceparent()), trace);
    EXPECT_EQ(trace.state, "");
    EXPECT_TRUE(seen.insert(trace.trace_id).second);
  }
  EXPECT_EQ(TraceContext().Traceparent(), "");
}

TEST(TraceContextTest, ChecksTheState) {
  for (const std::string& good :
       {std::string("a=1"), std::string("rojo=00f067aa0ba902b7, congo=t61r"),
        std::string("tenant@sys=v!~"), std::string("a=1,,b=2")}) {
    EXPECT_TRUE(IsTracestate(good)) << good;
  }
  std::string many = "a=1";
  for (int i = 0; i < 32; ++i) many += ",b=2";
  for (const std::string& bad :
       {std::string(), std::string(","), std::string("a"), std::string("=1"),
        std::string("A=1"), std::string("a="), std::string("a=b=c"),
        std::string("a=\n"), std::string("a=\xC3\xA4"), many,
        "a=" + std::string(kMaxTracestateBytes, 'x')}) {
    EXPECT_FALSE(IsTracestate(bad)) << bad;
  }
  EXPECT_EQ(ContinueTrace(Parent("00", kTrace, kSpan, "00"), "bad").state, "");
}

TEST(TraceContextTest, ChecksRequestIds) {
  EXPECT_TRUE(IsRequestId("a-B.c_1:2/3"));
  EXPECT_TRUE(IsRequestId(NewRequestId()));
  for (const std::string& bad :
       {std::string(), std::string(129, 'a'), std::string("a b"),
        std::string("a\n"), std::string("a\""), std::string("\xC3\xA4")}) {
    EXPECT_FALSE(IsRequestId(bad)) << bad;
  }
}

TEST(TraceScopeTest, LastsAsLongAsTheObject) {
  EXPECT_TRUE(CurrentTraces().empty());
  const TraceContext outer = NewTrace();
  const TraceContext inner = NewTrace();
  {
    const TraceScope scope(outer);
    EXPECT_EQ(CurrentTraces(), std::vector<TraceContext>{outer});
    {
      const TraceScope batch(
          std::vector<TraceContext>{TraceContext(), inner, outer});
      EXPECT_EQ(CurrentTraces(), (std::vector<TraceContext>{inner, outer}));
    }
    EXPECT_EQ(CurrentTraces(), std::vector<TraceContext>{outer});
  }
  EXPECT_TRUE(CurrentTraces().empty());
  const TraceScope many(std::vector<TraceContext>(100, outer));
  EXPECT_EQ(CurrentTraces().size(), kMaxScopeTraces);
}

TEST(TraceScopeTest, SampledTracesAreLeftOutLast) {
  std::vector<TraceContext> traces(kMaxScopeTraces, NewTrace());
  traces.push_back(NewTrace());
  traces.back().flags = 1;
  const TraceScope scope(traces);
  EXPECT_EQ(CurrentTraces().size(), kMaxScopeTraces);
  EXPECT_EQ(CurrentTraces().front(), traces.back());
}

TEST(TraceScopeTest, MarksLogLines) {
  const TraceContext trace = NewTrace();
  ::testing::internal::CaptureStderr();
  {
    const TraceScope scope(trace);
    LogInfo("inside");
  }
  LogInfo("outside");
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(
      lines.find(absl::StrCat("\"inside\",\"trace_id\":\"", trace.trace_id,
                              "\",\"span_id\":\"", trace.span_id, "\"}")),
      std::string::npos)
      << lines;
  EXPECT_NE(lines.find("\"outside\"}"), std::string::npos) << lines;
}

}  // namespace
}  // namespace gshard
