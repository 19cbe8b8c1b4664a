// Streams whose frames go through shared memory: that they use it, how they
// fall back to the stream, and peers that corrupt or abandon the memory.
// wire/stream_test.cc tests their contract as streams, together with other
// transports.

#include "services/rpc/shared/shared_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "proto/gshard/v1/expert.grpc.pb.h"
#include "services/base/random.h"
#include "services/rpc/client/client_stream.h"
#include "services/rpc/server/server.h"
#include "services/rpc/server/server_stream.h"
#include "services/rpc/shared/frame_writer.h"
#include "services/rpc/shared/shared_bell.h"
#include "services/rpc/shared/shared_memory.h"
#include "services/rpc/shared/shared_ring.h"
#include "services/rpc/wire/status.h"
#include "tests/integration/temporary_directory.h"
#include "tests/services/rpc/stream_log.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr char kRun[] = "/gshard.v1.ExpertWorkerService/Run";
constexpr milliseconds kLong{600'000};

SharingOptions Sharing(int64_t bytes = int64_t{1} << 20,
                       milliseconds patience = kLong) {
  return {.account = bytes, .ring_bytes = kMinRingBytes, .patience = patience};
}

ExpertFrame MakeFrame(uint64_t call_id, Dims dims = {4, 3}) {
  ExpertFrame frame;
  frame.header.set_kind(v1::ExpertFrameHeader::RUN);
  frame.header.set_call_id(call_id);
  frame.Add("rows", RandomTensor(std::move(dims), call_id));
  return frame;
}

void Echo(const FrameLog::Sender& sender, const ExpertFrame& frame) {
  ExpertFrame reply = frame;
  reply.header.clear_offer();  // in case the offer was not understood
  EXPECT_OK(sender->Send(std::move(reply)));
}

void ExpectFrame(const ExpertFrame& frame, uint64_t call_id) {
  EXPECT_EQ(frame.header.call_id(), call_id);
  ASSERT_EQ(frame.tensors.size(), 1u);
  EXPECT_TRUE(TensorEqual(
      frame.tensors[0], RandomTensor(Dims(frame.tensors[0].dims()), call_id)));
}

// A server whose streams are served by `factory`.
class TestServer {
 public:
  explicit TestServer(FrameHandlerFactory factory,
                      const std::string& address = "")
      : service_(std::move(factory)),
        server_({.address = address.empty() ? "unix:" + directory_.path() + "/s"
                                            : address}) {
    server_.AddService(&service_, v1::ExpertWorkerService::service_full_name());
    EXPECT_OK(server_.Start());
    auto channel = CreateChannel(server_.address());
    EXPECT_OK(channel);
    channel_ = *std::move(channel);
  }

  // Opens a stream; the handlers of `factory` log its sender.
  void Open(const FrameHandlerFactory& factory) {
    OpenStream<ExpertFrame, ExpertFrame>(channel_, kRun, factory);
  }

 private:
  class Service final
      : public v1::ExpertWorkerService::WithRawCallbackMethod_Run<
            v1::ExpertWorkerService::Service> {
   public:
    explicit Service(FrameHandlerFactory factory)
        : factory_(std::move(factory)) {}
    grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Run(
        grpc::CallbackServerContext* context) override {
      return ServeStream<ExpertFrame, ExpertFrame>(context, factory_);
    }

   private:
    const FrameHandlerFactory factory_;
  };

  const TemporaryDirectory directory_;
  Service service_;
  ServerShell server_;
  std::shared_ptr<grpc::Channel> channel_;
};

// Counts frames that arrive over the stream itself.
class CountingHandler final : public StreamHandler<ExpertFrame> {
 public:
  CountingHandler(std::shared_ptr<std::atomic<int>> count,
                  std::unique_ptr<StreamHandler<ExpertFrame>> handler)
      : count_(std::move(count)), handler_(std::move(handler)) {}
  void OnMessage(ExpertFrame frame) override {
    ++*count_;
    handler_->OnMessage(std::move(frame));
  }
  void OnEnd(const absl::Status& status) override { handler_->OnEnd(status); }

 private:
  const std::shared_ptr<std::atomic<int>> count_;
  const std::unique_ptr<StreamHandler<ExpertFrame>> handler_;
};

FrameHandlerFactory Counting(std::shared_ptr<std::atomic<int>> count,
                             FrameHandlerFactory factory) {
  return [=](auto sender) {
    return std::make_unique<CountingHandler>(count, factory(sender));
  };
}

// Exchanges frames, some of them larger than a ring.
void ExchangeFrames(FrameLog& client, int frames) {
  const auto sender = client.WaitForSender();
  for (int i = 1; i <= frames; ++i) {
    const int64_t rows = i % 5 == 0 ? 1000 : i;
    ASSERT_OK(sender->Send(MakeFrame(i, {rows, 256})));
    ExpectFrame(client.WaitForMessage(), i);
  }
  sender->Finish();
  EXPECT_OK(client.WaitForEnd());
}

TEST(SharedStreamTest, FramesGoByTheMemory) {
  for (const char* address : {"", "127.0.0.1:0"}) {
    const SharingOptions mine = Sharing(), theirs = Sharing();
    const auto sent = std::make_shared<std::atomic<int>>(0);
    const auto received = std::make_shared<std::atomic<int>>(0);
    FrameLog server(Echo), client;
    TestServer test(
        Counting(sent, AcceptSharedMemory(server.Factory(), theirs)), address);
    test.Open(Counting(received, OfferSharedMemory(client.Factory(), mine)));
    EXPECT_GT(mine.account.used(), 0);
    ExchangeFrames(client, 20);
    EXPECT_OK(server.WaitForEnd());
    // The client sends the first frame and the SHARED notice over the stream,
    // the server only its SHARED notice.
    EXPECT_EQ(*sent, 2);
    EXPECT_EQ(*received, 1);
    // The memory is freed with the stream, though the sender still exists.
    EXPECT_EQ(mine.account.used(), 0);
    EXPECT_EQ(theirs.account.used(), 0);
    EXPECT_FALSE(client.WaitForSender()->Send(MakeFrame(1)).ok());
  }
}

TEST(SharedStreamTest, WithoutMemoryFramesGoByTheStream) {
  struct Case {
    const char* name;
    int64_t clients;
    int64_t servers;
  };
  for (const Case& test_case :
       {Case{"the client shares nothing", 0, 1 << 20},
        Case{"the client has no room", 1 << 10, 1 << 20},
        Case{"the server shares nothing, or does not know of it", 1 << 20, 0},
        Case{"the server has no room", 1 << 20, 1 << 10}}) {
    SCOPED_TRACE(test_case.name);
    const SharingOptions mine = Sharing(test_case.clients);
    const SharingOptions theirs = Sharing(test_case.servers);
    const auto sent = std::make_shared<std::atomic<int>>(0);
    FrameLog server(Echo), client;
    TestServer test(
        Counting(sent, AcceptSharedMemory(server.Factory(), theirs)));
    test.Open(OfferSharedMemory(client.Factory(), mine));
    ExchangeFrames(client, 20);
    EXPECT_OK(server.WaitForEnd());
    EXPECT_EQ(*sent, 20);
    EXPECT_EQ(mine.account.used(), 0);
    EXPECT_EQ(theirs.account.used(), 0);
  }
}

TEST(SharedStreamTest, AnOfferThatCannotBeTakenIsRefusedAndNoMore) {
  FrameLog server(Echo), client;
  TestServer test(AcceptSharedMemory(server.Factory(), Sharing()));
  test.Open(client.Factory());
  const auto sender = client.WaitForSender();
  ExpertFrame first = MakeFrame(1);
  auto& offer = *first.header.mutable_offer();
  offer.set_process(getpid());
  offer.set_file_descriptor(0);
  offer.set_key(std::string(16, 'k'));
  offer.set_ring_bytes(kMinRingBytes);
  ASSERT_OK(sender->Send(std::move(first)));
  const ExpertFrame answer = client.WaitForMessage();
  EXPECT_EQ(answer.header.kind(), v1::ExpertFrameHeader::SHARED);
  EXPECT_THAT(FromProtoStatus(answer.header.status()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("memory")));
  ExpectFrame(client.WaitForMessage(), 1);
  ASSERT_OK(sender->Send(MakeFrame(2)));
  ExpectFrame(client.WaitForMessage(), 2);
  sender->Finish();
  EXPECT_OK(client.WaitForEnd());
}

// A stream between a production endpoint and a hostile peer that accesses the
// memory directly.
class HostilePeerTest : public ::testing::TestWithParam<bool> {
 protected:
  // Whether the peer is the server.
  static bool serves() { return GetParam(); }

  void Start(const SharingOptions& sharing,
             FrameLog::Reaction reaction = nullptr,
             const StreamOptions& options = {}) {
    account_ = std::make_unique<MemoryAccount>(sharing.account);
    honest_ = std::make_unique<FrameLog>(std::move(reaction));
    peer_ = std::make_unique<FrameLog>();
    if (serves()) {
      server_ = std::make_unique<TestServer>(peer_->Factory());
      server_->Open(OfferSharedMemory(honest_->Factory(), sharing, options));
      ASSERT_OK(honest_->WaitForSender()->Send(MakeFrame(1)));
      const ExpertFrame first = peer_->WaitForMessage();
      auto memory = SharedMemory::Open(first.header.offer(), peers_account_);
      ASSERT_OK(memory);
      memory_ = *std::move(memory);
      SendShared();
      EXPECT_EQ(peer_->WaitForMessage().header.kind(),
                v1::ExpertFrameHeader::SHARED);
    } else {
      server_ = std::make_unique<TestServer>(
          AcceptSharedMemory(honest_->Factory(), sharing, options));
      server_->Open(peer_->Factory());
      auto memory = SharedMemory::Create(sharing.ring_bytes, peers_account_);
      ASSERT_OK(memory);
      memory_ = *std::move(memory);
      ExpertFrame first = MakeFrame(1);
      *first.header.mutable_offer() = memory_->offer();
      ASSERT_OK(peer_->WaitForSender()->Send(std::move(first)));
      EXPECT_EQ(peer_->WaitForMessage().header.kind(),
                v1::ExpertFrameHeader::SHARED);
      SendShared();
      honest_->WaitForMessage();
    }
    ring_ = std::make_unique<SharedRingWriter>(*memory_);
  }

  void SendShared() {
    ExpertFrame shared;
    shared.header.set_kind(v1::ExpertFrameHeader::SHARED);
    ASSERT_OK(peer_->WaitForSender()->Send(std::move(shared)));
  }

  SharedMemory::Words& peers_words() const {
    return memory_->words(memory_->party());
  }
  SharedMemory::Words& honest_words() const {
    return memory_->words(serves() ? SharedMemory::kOfferer
                                   : SharedMemory::kOpener);
  }

  void Put(const FramePrefix& prefix, const std::string& rest = "") {
    ring_->Put(&prefix, sizeof(prefix));
    ring_->Put(rest.data(), rest.size());
    ring_->Flush();
  }

  // Expects the honest side to end the stream for this reason and free the
  // memory.
  void ExpectEnd(absl::StatusCode code, const std::string& why) {
    EXPECT_THAT(honest_->WaitForEnd(), StatusIs(code, HasSubstr(why)));
    EXPECT_FALSE(peer_->WaitForEnd().ok());
    EXPECT_EQ(account_->used(), 0);
    EXPECT_THAT(honest_->WaitForSender()->Send(MakeFrame(1)),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ended")));
  }

  const MemoryAccount peers_account_ = int64_t{1} << 20;
  std::unique_ptr<MemoryAccount> account_;
  std::unique_ptr<FrameLog> honest_, peer_;
  std::unique_ptr<SharedMemory> memory_;
  std::unique_ptr<SharedRingWriter> ring_;
  std::unique_ptr<TestServer> server_;  // destroyed first
};

INSTANTIATE_TEST_SUITE_P(Peers, HostilePeerTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "Server" : "Client";
                         });

TEST_P(HostilePeerTest, WhatIsNoFrameEndsTheStreamWithTheReason) {
  using Code = absl::StatusCode;
  ExpertFrame frame = MakeFrame(2, {4});
  const std::string header = frame.header.SerializeAsString();
  const auto bytes = static_cast<uint32_t>(header.size());
  struct Case {
    FramePrefix prefix;
    std::string rest;
    Code code;
    const char* why;
  };
  for (const Case& test_case : std::vector<Case>{
           {{.what = 77}, "", Code::kInvalidArgument, "the prefix of a frame"},
           {{.what = FramePrefix::kFrame, .header_bytes = UINT32_MAX},
            "",
            Code::kResourceExhausted,
            "header may have at most"},
           {{.what = FramePrefix::kFrame,
           .header_bytes = 5,
           .payload_bytes = UINT64_MAX},
            "",
            Code::kResourceExhausted,
            "a frame may have at most"},
           {{.what = FramePrefix::kFrame, .header_bytes = 5},
            "\xff\xff\xff\xff\xff",
            Code::kInvalidArgument,
            "the header is not a"},
           {{.what = FramePrefix::kFrame,
           .header_bytes = bytes,
           .payload_bytes = 8},
            header,
            Code::kInvalidArgument,
            "the payload has 8 bytes"}}) {
    SCOPED_TRACE(test_case.why);
    Start(Sharing());
    Put(test_case.prefix, test_case.rest);
    ExpectEnd(test_case.code, test_case.why);
  }
}

TEST_P(HostilePeerTest, AFrameThatMemoryCannotHoldEndsTheStream) {
  StreamOptions options;
  options.frame_limits.max_bytes = SIZE_MAX;
  Start(Sharing(), nullptr, options);
  v1::ExpertFrameHeader header;
  v1::TensorHeader& tensor = *header.add_tensors();
  tensor.set_element_type(v1::ELEMENT_TYPE_FLOAT32);
  tensor.add_dims(int64_t{1} << 60);
  const std::string text = header.SerializeAsString();
  Put({.what = FramePrefix::kFrame,
       .header_bytes = static_cast<uint32_t>(text.size()),
       .payload_bytes = uint64_t{1} << 62},
      text);
  ExpectEnd(absl::StatusCode::kResourceExhausted, "there is no memory for");
}

TEST_P(HostilePeerTest, CountsThatCannotBeEndTheStream) {
  Start(Sharing());
  peers_words().written = uint64_t{1} << 40;
  RingBell(honest_words());
  ExpectEnd(absl::StatusCode::kInvalidArgument, "says to have written");
  Start(Sharing());
  peers_words().read = uint64_t{1} << 40;
  (void)honest_->WaitForSender()->Send(MakeFrame(1));
  ExpectEnd(absl::StatusCode::kInvalidArgument, "says to have read");
}

TEST_P(HostilePeerTest, FramesCannotComeBothWays) {
  Start(Sharing());
  ASSERT_OK(peer_->WaitForSender()->Send(MakeFrame(2)));
  ExpectEnd(absl::StatusCode::kInvalidArgument, "came by the stream");
}

TEST_P(HostilePeerTest, WhoTakesNothingIsLost) {
  Start(Sharing(int64_t{1} << 20, milliseconds(100)));
  // More than a ring holds.
  ASSERT_OK(honest_->WaitForSender()->Send(MakeFrame(2, {1000, 1000})));
  ExpectEnd(absl::StatusCode::kUnavailable, "has taken nothing for 100 ms");
}

TEST_P(HostilePeerTest, WhatWaitsForAPeerIsBounded) {
  StreamOptions options;
  options.max_queued_bytes = 1 << 20;
  Start(Sharing(), nullptr, options);
  const auto sender = honest_->WaitForSender();
  ASSERT_OK(sender->Send(MakeFrame(2, {1000, 1000})));
  EXPECT_THAT(sender->Send(MakeFrame(3)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("the peer is too slow")));
  sender->Cancel();
  EXPECT_THAT(honest_->WaitForEnd(),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("")));
}

// The stream ends even if the peer keeps resetting the bell that wakes it.
TEST_P(HostilePeerTest, EndsThoughThePeerTurnsBackItsBell) {
  Start(Sharing());
  std::atomic<bool> done = false;
  std::thread turning([&] {
    while (!done) honest_words().bell = 0;
  });
  peer_->WaitForSender()->Cancel();
  EXPECT_FALSE(honest_->WaitForEnd().ok());
  done = true;
  turning.join();
}

TEST_P(HostilePeerTest, WhoeverScribblesEndsItsStreamAtMost) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Start(Sharing(), [](const auto& sender, const ExpertFrame& frame) {
      (void)sender->Send(frame);
    });
    const absl::Span<char> ring = memory_->ring(memory_->party());
    std::atomic<uint64_t>* const counts[] = {
        &peers_words().written, &peers_words().read, &honest_words().written,
        &honest_words().read};
    std::atomic<uint32_t>* const bells[] = {
        &peers_words().bell, &peers_words().wants, &honest_words().bell,
        &honest_words().wants};
    for (uint64_t i = 0; i < 2000; ++i) {
      const uint64_t key = FoldIn(seed, i);
      // Half of the numbers are small, near the valid ones.
      const uint64_t number = RandomBelow(
          key, 0, i % 2 == 0 ? 256 : uint64_t{1} << RandomBelow(key, 1, 63));
      if (i % 3 == 0) *counts[RandomBelow(key, 2, 4)] = number;
      if (i % 3 == 1) *bells[RandomBelow(key, 2, 4)] = number;
      if (i % 3 == 2) ring[number % ring.size()] = static_cast<char>(key);
      RingBell(honest_words());
    }
    peer_->WaitForSender()->Cancel();
    EXPECT_FALSE(honest_->WaitForEnd().ok());
    EXPECT_EQ(account_->used(), 0);
  }
}

}  // namespace
}  // namespace gshard
