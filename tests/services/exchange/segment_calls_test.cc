#include "services/exchange/segment_calls.h"

#include "tests/services/exchange/call_program.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;

TEST(SegmentCallsTest, AreReadOnceByName) {
  ASSERT_OK_AND_ASSIGN(const Program program, CallProgram());
  ASSERT_OK_AND_ASSIGN(const SegmentCalls calls, ReadSegmentCalls({&program}));
  ASSERT_EQ(calls.size(), 1u);
  const SegmentCall& call = calls.at("p/1");
  EXPECT_THAT(call.names, ::testing::ElementsAre("call/v3", "call/v7"));
  EXPECT_EQ(ReplyDims(call, 0, 7), (Dims{7, 2}));
}

TEST(SegmentCallsTest, RefusesWhatCannotBeMadeWithoutWorkers) {
  ASSERT_OK_AND_ASSIGN(const Program program, CallProgram(Dim::Symbol("M")));
  EXPECT_THAT(ReadSegmentCalls({&program}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("a reply of segment p/1 has no width")));
}

TEST(SegmentCallsTest, RefusesASegmentThatIsCalledTwice) {
  ASSERT_OK_AND_ASSIGN(const Program program, CallProgram());
  EXPECT_THAT(ReadSegmentCalls({&program, &program}),
              StatusIs(absl::StatusCode::kInternal,
                       HasSubstr("segment p/1 is called twice")));
}

}  // namespace
}  // namespace gshard
