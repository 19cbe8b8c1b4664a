// Streams of frames and of messages, client and server together: the contract
// of every transport.

#include "services/rpc/wire/stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "proto/gshard/v1/expert.grpc.pb.h"
#include "services/rpc/client/client_stream.h"
#include "services/rpc/server/server.h"
#include "services/rpc/server/server_stream.h"
#include "services/rpc/shared/shared_memory.h"
#include "services/rpc/shared/shared_stream.h"
#include "tests/services/rpc/stream_log.h"
#include "tests/testing/deaf_server.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::_;
using ::testing::HasSubstr;

constexpr char kRun[] = "/gshard.v1.ExpertWorkerService/Run";
constexpr char kJoin[] = "/gshard.v1.CoordinatorService/Join";

enum class Transport { kInProcess, kUnixSocket, kSharedMemory, kSharedByTcp };

bool Shares(Transport transport) {
  return transport == Transport::kSharedMemory ||
         transport == Transport::kSharedByTcp;
}

// The memory that each process may share.
SharingOptions Sharing(Transport transport) {
  // Small rings, so that larger frames of these tests pass in parts.
  return {.account = Shares(transport) ? int64_t{1} << 30 : 0,
          .ring_bytes = kMinRingBytes};
}

class RunService final
    : public v1::ExpertWorkerService::WithRawCallbackMethod_Run<
          v1::ExpertWorkerService::Service> {
 public:
  RunService(FrameLog* log, StreamOptions options, SharingOptions sharing)
      : log_(log), options_(options), sharing_(std::move(sharing)) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Run(
      grpc::CallbackServerContext* context) override {
    return ServeStream<ExpertFrame, ExpertFrame>(
        context, AcceptSharedMemory(log_->Factory(), sharing_, options_),
        options_);
  }

 private:
  FrameLog* const log_;
  const StreamOptions options_;
  const SharingOptions sharing_;
};

ExpertFrame MakeFrame(uint64_t call_id, Dims dims = {4, 3}) {
  ExpertFrame frame;
  frame.header.set_call_id(call_id);
  frame.Add("rows", RandomTensor(std::move(dims), call_id));
  return frame;
}

void Echo(const FrameLog::Sender& sender, const ExpertFrame& frame) {
  ExpertFrame reply = frame;
  reply.header.set_kind(v1::ExpertFrameHeader::REPLY);
  EXPECT_OK(sender->Send(std::move(reply)));
}

class StreamTest : public ::testing::TestWithParam<Transport> {
 protected:
  StreamTest() {
    char name[] = "/tmp/gshard_stream_XXXXXX";
    directory_ = mkdtemp(name);
  }
  ~StreamTest() override {
    server_.reset();
    std::filesystem::remove_all(directory_);
  }

  void StartServer(FrameLog* log, const StreamOptions& options = {}) {
    service_ = std::make_unique<RunService>(log, options, sharing_);
    std::string address;
    if (GetParam() == Transport::kSharedByTcp) {
      address = "127.0.0.1:0";
    } else if (GetParam() != Transport::kInProcess) {
      address = "unix:" + directory_ + "/s";
    }
    server_ = std::make_unique<ServerShell>(ServerOptions{.address = address});
    server_->AddService(service_.get(),
                        v1::ExpertWorkerService::service_full_name());
    ASSERT_OK(server_->Start());
    if (address.empty()) {
      channel_ = server_->InProcessChannel();
    } else {
      ASSERT_OK_AND_ASSIGN(channel_, CreateChannel(server_->address()));
    }
  }

  FrameLog::Sender Open(FrameLog* log, const StreamOptions& options = {},
                        std::optional<milliseconds> timeout = std::nullopt) {
    OpenStream<ExpertFrame, ExpertFrame>(
        channel_, kRun, OfferSharedMemory(log->Factory(), sharing_, options),
        options, timeout);
    return log->WaitForSender();
  }

  const SharingOptions sharing_ = Sharing(GetParam());
  std::string directory_;
  std::unique_ptr<RunService> service_;
  std::unique_ptr<ServerShell> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

std::string NameOf(const ::testing::TestParamInfo<Transport>& info) {
  static constexpr const char* kNames[] = {"InProcess", "UnixSocket",
                                           "SharedMemory", "SharedByTcp"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Transports, StreamTest,
                         ::testing::Values(Transport::kInProcess,
                                           Transport::kUnixSocket,
                                           Transport::kSharedMemory,
                                           Transport::kSharedByTcp),
                         NameOf);

TEST_P(StreamTest, CarriesFramesBothWaysAndEndsInOrder) {
  FrameLog server(Echo), client;
  StartServer(&server);
  const auto sender = Open(&client);
  ASSERT_OK(sender->Send(MakeFrame(1)));
  ASSERT_OK(sender->Send(MakeFrame(2, {1000, 1000})));
  ASSERT_OK(sender->Send(MakeFrame(3, {0, 3})));
  sender->Finish();
  for (uint64_t id = 1; id <= 3; ++id) {
    const ExpertFrame reply = client.WaitForMessage();
    EXPECT_EQ(reply.header.call_id(), id);
    ASSERT_EQ(reply.tensors.size(), 1u);
    EXPECT_TRUE(TensorEqual(reply.tensors[0],
                            RandomTensor(Dims(reply.tensors[0].dims()), id)));
  }
  EXPECT_OK(client.WaitForEnd());
  EXPECT_OK(server.WaitForEnd());
  EXPECT_THAT(sender->Send(MakeFrame(4)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ended")));
  sender->Finish();
  sender->Cancel();
}

TEST_P(StreamTest, ManyThreadsMaySend) {
  FrameLog server(Echo), client;
  StartServer(&server);
  const auto sender = Open(&client);
  constexpr int kThreads = 4, kFrames = 100;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kFrames; ++i) {
        EXPECT_OK(sender->Send(MakeFrame(1 + t * kFrames + i)));
      }
    });
  }
  // Replies keep the order of each thread's frames.
  std::vector<uint64_t> next(kThreads, 0);
  for (int i = 0; i < kThreads * kFrames; ++i) {
    const uint64_t id = client.WaitForMessage().header.call_id() - 1;
    EXPECT_EQ(id % kFrames, next[id / kFrames]++);
  }
  for (std::thread& thread : threads) thread.join();
  sender->Finish();
  EXPECT_OK(client.WaitForEnd());
  EXPECT_OK(server.WaitForEnd());
}

TEST_P(StreamTest, TheServerMayEndTheStreamWithAReason) {
  FrameLog server([](const FrameLog::Sender& sender, const ExpertFrame& f) {
    Echo(sender, f);  // still delivered
    sender->Finish(absl::NotFoundError("no session \"x\""));
    EXPECT_FALSE(sender->Send(MakeFrame(9)).ok());
  });
  FrameLog client;
  StartServer(&server);
  const auto sender = Open(&client);
  ASSERT_OK(sender->Send(MakeFrame(1)));
  EXPECT_EQ(client.WaitForMessage().header.call_id(), 1u);
  EXPECT_THAT(client.WaitForEnd(), StatusIs(absl::StatusCode::kNotFound,
                                            HasSubstr("no session \"x\"")));
  EXPECT_THAT(server.WaitForEnd(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("session")));
  EXPECT_THAT(sender->Send(MakeFrame(2)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ended")));
}

TEST_P(StreamTest, TheClientMayCancel) {
  FrameLog server, client;
  StartServer(&server);
  const auto sender = Open(&client);
  ASSERT_OK(sender->Send(MakeFrame(1)));
  server.WaitForMessage();
  sender->Cancel();
  EXPECT_THAT(client.WaitForEnd(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
  EXPECT_THAT(server.WaitForEnd(), StatusIs(absl::StatusCode::kCancelled,
                                            HasSubstr("client cancelled")));
}

TEST_P(StreamTest, TheServerMayCancel) {
  FrameLog server, client;
  StartServer(&server);
  const auto sender = Open(&client);
  ASSERT_OK(sender->Send(MakeFrame(1)));
  server.WaitForSender()->Cancel();
  EXPECT_THAT(client.WaitForEnd(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
  EXPECT_THAT(server.WaitForEnd(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
}

TEST_P(StreamTest, AFrameThatCannotBeDecodedEndsTheStreamWithTheReason) {
  FrameLog server;
  StartServer(&server);
  StreamLog<v1::ExpertFrame, v1::ExpertFrame> client;
  const auto sender = OpenStream<v1::ExpertFrame, v1::ExpertFrame>(
      channel_, kRun, client.Factory());
  v1::ExpertFrame bad;
  bad.set_payload("abc");
  ASSERT_OK(sender->Send(bad));
  for (const absl::Status& status :
       {client.WaitForEnd(), server.WaitForEnd()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("the payload has 3 bytes")));
  }
}

// The client ends a stream with a frame that it cannot decode, here one over
// its limits.
TEST_P(StreamTest, TheClientDoesNotTrustTheServerEither) {
  FrameLog server(Echo), client;
  StartServer(&server);
  StreamOptions options;
  options.frame_limits.max_bytes = 100;
  const auto sender = Open(&client, options);
  ASSERT_OK(sender->Send(MakeFrame(1, {100})));
  EXPECT_THAT(client.WaitForEnd(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("at most 100 bytes")));
  EXPECT_THAT(server.WaitForEnd(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
}

TEST_P(StreamTest, TheEndOfTheServerEndsTheStream) {
  FrameLog server(Echo), client;
  StartServer(&server);
  const auto sender = Open(&client);
  ASSERT_OK(sender->Send(MakeFrame(1)));
  client.WaitForMessage();
  server_->Drain(milliseconds(0));
  const absl::StatusCode code = client.WaitForEnd().code();
  EXPECT_TRUE(code == absl::StatusCode::kCancelled ||
              code == absl::StatusCode::kUnavailable)
      << absl::StatusCodeToString(code);
  EXPECT_THAT(server.WaitForEnd(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
}

TEST_P(StreamTest, ATimeoutEndsTheStream) {
  FrameLog server, client;
  StartServer(&server);
  Open(&client, {}, milliseconds(20));
  EXPECT_THAT(client.WaitForEnd(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("")));
}

// Streams end cleanly at any moment, from either side, while both send.
TEST_P(StreamTest, EndsAtAnyMoment) {
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(::testing::Message() << "round " << round);
    FrameLog server(
        [round](const FrameLog::Sender& sender, const ExpertFrame& frame) {
          (void)sender->Send(MakeFrame(frame.header.call_id()));
          if (frame.header.call_id() < 8) return;
          if (round % 4 == 0) sender->Finish(absl::AbortedError("enough"));
          if (round % 4 == 1) sender->Cancel();
        });
    FrameLog client;
    if (round == 0) {
      StartServer(&server);
    } else {
      server_.reset();
      StartServer(&server);
    }
    const auto sender = Open(&client);
    std::thread other([&] {
      for (int i = 0; i < 20; ++i) (void)sender->Send(MakeFrame(i));
    });
    for (int i = 0; i < 20; ++i) (void)sender->Send(MakeFrame(i));
    if (round % 4 == 2) sender->Cancel();
    if (round % 4 == 3) server_->Drain(milliseconds(0));
    other.join();
    EXPECT_FALSE(client.WaitForEnd().ok());
    // Instead of waiting for the server's end: a call that was cancelled before
    // the server saw it has no handler.
    server_->Drain(milliseconds(0));
  }
}

TEST(ClientStreamTest, AServerThatIsNotThereIsUnavailable) {
  ASSERT_OK_AND_ASSIGN(const auto channel,
                       CreateChannel("unix:/nonexistent/socket"));
  FrameLog client;
  const auto sender =
      OpenStream<ExpertFrame, ExpertFrame>(channel, kRun, client.Factory());
  (void)sender->Send(MakeFrame(1));
  EXPECT_THAT(client.WaitForEnd(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
}

// A service whose stream carries plain messages.
class JoinService final
    : public v1::CoordinatorService::WithRawCallbackMethod_Join<
          v1::CoordinatorService::Service> {
 public:
  explicit JoinService(StreamLog<v1::JoinRequest, v1::JoinResponse>* log)
      : log_(log) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Join(
      grpc::CallbackServerContext* context) override {
    return ServeStream<v1::JoinRequest, v1::JoinResponse>(context,
                                                          log_->Factory());
  }

 private:
  StreamLog<v1::JoinRequest, v1::JoinResponse>* const log_;
};

TEST(MessageStreamTest, CarriesMessages) {
  StreamLog<v1::JoinRequest, v1::JoinResponse> coordinator(
      [](const auto& sender, const v1::JoinRequest& request) {
        v1::JoinResponse response;
        response.mutable_accepted()->set_lease_ms(
            request.heartbeat().in_flight());
        EXPECT_OK(sender->Send(std::move(response)));
      });
  JoinService service(&coordinator);
  ServerShell server({});
  server.AddService(&service, v1::CoordinatorService::service_full_name());
  ASSERT_OK(server.Start());
  StreamLog<v1::JoinResponse, v1::JoinRequest> member;
  const auto channel = server.InProcessChannel();
  const auto sender = OpenStream<v1::JoinRequest, v1::JoinResponse>(
      channel, kJoin, member.Factory());
  for (int i = 0; i < 3; ++i) {
    v1::JoinRequest request;
    request.mutable_heartbeat()->set_in_flight(i);
    ASSERT_OK(sender->Send(std::move(request)));
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(member.WaitForMessage().accepted().lease_ms(), i);
  }
  sender->Finish();
  EXPECT_OK(member.WaitForEnd());
  EXPECT_OK(coordinator.WaitForEnd());
}

// A stream ends by cancellation or timeout although the peer reads nothing, and
// gRPC releases the stream only when the peer has taken the data or the
// connection is lost.
TEST(MessageStreamTest, EndsThoughThePeerTakesNothing) {
  DeafServer server;
  for (const bool cancelled : {true, false}) {
    ASSERT_OK_AND_ASSIGN(auto channel, CreateChannel(server.address()));
    FrameLog log;
    const auto sender = OpenStream<ExpertFrame, ExpertFrame>(
        channel, kRun, log.Factory(), {},
        cancelled ? std::nullopt : std::optional(milliseconds(500)));
    ExpertFrame frame;
    frame.Add("rows", RandomTensor({1000, 1000}, 1));
    ASSERT_OK(sender->Send(frame));
    server.AwaitBytes(1 << 15, /*connections=*/cancelled ? 1 : 2);
    if (cancelled) sender->Cancel();
    EXPECT_THAT(log.WaitForEnd(),
                StatusIs(cancelled ? absl::StatusCode::kCancelled
                                   : absl::StatusCode::kDeadlineExceeded,
                         _));
    EXPECT_THAT(sender->Send(frame),
                StatusIs(absl::StatusCode::kUnavailable, _));
    // Releases the last other reference, so that the connection ends with the
    // stream.
    channel = nullptr;
  }
}

TEST(MessageStreamTest, WhatIsNoMessageEndsTheStreamWithTheReason) {
  StreamLog<v1::JoinRequest, v1::JoinResponse> coordinator;
  JoinService service(&coordinator);
  ServerShell server({});
  server.AddService(&service, v1::CoordinatorService::service_full_name());
  ASSERT_OK(server.Start());
  StreamLog<v1::JoinResponse, v1::Segment> member;
  const auto channel = server.InProcessChannel();
  const auto sender = OpenStream<v1::Segment, v1::JoinResponse>(
      channel, kJoin, member.Factory());
  v1::Segment bad;  // its field 1 is bytes where JoinRequest has a message
  bad.set_name("\x0F");
  ASSERT_OK(sender->Send(bad));
  for (const absl::Status& status :
       {member.WaitForEnd(), coordinator.WaitForEnd()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 HasSubstr("gshard.v1.JoinRequest")));
  }
}

}  // namespace
}  // namespace gshard
