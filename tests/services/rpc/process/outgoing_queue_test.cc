#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "proto/gshard/v1/status.pb.h"
#include "services/rpc/wire/stream.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A peer that accepts messages only when the test says so.
class FakeWriter final : public OutgoingQueue<v1::Status>::Writer {
 public:
  void Write(const grpc::ByteBuffer* message) override {
    EXPECT_EQ(closed, 0);
    written.push_back(ParseRaw<v1::Status>(*message)->code());
  }
  void Close(const absl::Status&) override { ++closed; }
  void CancelCall() override {}

  std::vector<int> written;
  int closed = 0;
};

v1::Status Message(int code) {
  v1::Status message;
  message.set_code(code);
  message.set_message(std::string(100, 'm'));
  return message;
}

TEST(OutgoingQueueTest, ASlowPeerFillsTheQueueAndNotTheMemory) {
  FakeWriter writer;
  OutgoingQueue<v1::Status> queue(&writer, /*max_bytes=*/250);
  ASSERT_OK(queue.Send(Message(1)));
  ASSERT_OK(queue.Send(Message(2)));
  EXPECT_THAT(queue.Send(Message(3)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("208 bytes wait for it, at most 250 may")));
  EXPECT_THAT(writer.written, ElementsAre(1));
  queue.OnWriteDone(true);
  ASSERT_OK(queue.Send(Message(4)));
  queue.Finish(absl::OkStatus());
  EXPECT_THAT(queue.Send(Message(5)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ended")));
  queue.OnWriteDone(true);
  EXPECT_EQ(writer.closed, 0);
  queue.OnWriteDone(true);
  EXPECT_THAT(writer.written, ElementsAre(1, 2, 4));
  EXPECT_EQ(writer.closed, 1);
}

TEST(OutgoingQueueTest, OneMessageMayBeOfAnySize) {
  FakeWriter writer;
  OutgoingQueue<v1::Status> queue(&writer, /*max_bytes=*/10);
  EXPECT_OK(queue.Send(Message(1)));
  EXPECT_FALSE(queue.Send(Message(2)).ok());
}

TEST(OutgoingQueueTest, AbortDropsAllButTheMessageUnderWay) {
  FakeWriter writer;
  OutgoingQueue<v1::Status> queue(&writer, /*max_bytes=*/1000);
  for (int code : {1, 2, 3}) ASSERT_OK(queue.Send(Message(code)));
  queue.Abort(absl::CancelledError(""));
  EXPECT_EQ(writer.closed, 0);
  queue.OnWriteDone(false);
  EXPECT_THAT(writer.written, ElementsAre(1));
  EXPECT_EQ(writer.closed, 1);
}

}  // namespace
}  // namespace gshard
