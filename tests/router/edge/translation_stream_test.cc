// TranslateStream over a unix socket, with a fake model.

#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/edge/translation_service.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/server/server.h"
#include "services/rpc/wire/status.h"
#include "tests/router/fake_model.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Stream = grpc::ClientReaderWriter<v1::TranslateStreamRequest,
                                        v1::TranslateStreamResponse>;

class TranslationStreamTest : public ::testing::Test {
 protected:
  static constexpr int64_t kMostOwed = 3;
  static constexpr int64_t kMostStreams = 3;

  TranslationStreamTest() {
    EXPECT_OK(models_.Add(model_));
    server_.AddService(&service_, v1::TranslationService::service_full_name());
    EXPECT_OK(server_.Start());
    channel_ = *CreateChannel(server_.address());
    stub_ = v1::TranslationService::NewStub(channel_);
  }
  ~TranslationStreamTest() override {
    model_->Release();
    server_.Drain(std::chrono::seconds(30));
  }

  static v1::TranslateStreamRequest Message(uint64_t id,
                                            const std::string& text,
                                            int64_t timeout_ms = 0) {
    v1::TranslateStreamRequest message;
    message.set_id(id);
    message.set_timeout_ms(timeout_ms);
    v1::Sentence* const sentence = message.mutable_request()->add_sentences();
    sentence->set_text(text);
    sentence->set_source_language("de");
    return message;
  }

  // The next answer, as "1: 13 12" or "2: <code>".
  static std::string Next(Stream& stream) {
    v1::TranslateStreamResponse answer;
    if (!stream.Read(&answer)) return "end";
    const absl::Status status = FromProtoStatus(answer.status());
    if (!status.ok()) {
      return absl::StrCat(answer.id(), ": ",
                          absl::StatusCodeToString(status.code()));
    }
    return absl::StrCat(answer.id(), ": ",
                        answer.response().results(0).hypotheses(0).text());
  }

  void WaitUntilNoCallLives() {
    while (service_.live_calls() > 0) std::this_thread::yield();
    EXPECT_EQ(batcher_.requests(), 0);
  }

  const std::shared_ptr<FakeModel> model_ =
      std::make_shared<FakeModel>("tiny@1");
  ModelTable models_;
  Batcher batcher_{{}};
  Metrics metrics_{"router", "1"};
  TranslationService service_{
      &models_,
      &batcher_,
      RouterMetrics(metrics_),
      {.max_stream_sentences = kMostOwed, .max_caller_streams = kMostStreams}};
  ServerShell server_{{.address = absl::StrCat("unix:", ::testing::TempDir(),
                                               "/stream.", getpid())}};
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::TranslationService::Stub> stub_;
};

TEST_F(TranslationStreamTest, ACallerMayHaveSoManyOpen) {
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<decltype(stub_->TranslateStream(nullptr))> open;
  const auto begin = [&] {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    return stub_->TranslateStream(contexts.back().get());
  };
  // A stream that answers has begun.
  const auto answers = [this](auto& stream) {
    return stream.Write(Message(1, "a")) && Next(stream) == "1: 11";
  };
  for (int i = 0; i < kMostStreams; ++i) {
    open.push_back(begin());
    EXPECT_TRUE(answers(*open.back()));
  }
  v1::TranslateStreamResponse answer;
  for (int i = 0; i < 3; ++i) {
    const auto refused = begin();
    EXPECT_FALSE(refused->Read(&answer));
    EXPECT_THAT(FromGrpcStatus(refused->Finish()),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("at most 3 open streams")));
  }
  // Open streams continue, and closing one makes room for another.
  EXPECT_TRUE(answers(*open.front()));
  EXPECT_TRUE(open.back()->WritesDone());
  EXPECT_TRUE(open.back()->Finish().ok());
  open.pop_back();
  while (service_.live_calls() > kMostStreams - 1) std::this_thread::yield();
  open.push_back(begin());
  EXPECT_TRUE(answers(*open.back()));
  for (const auto& stream : open) {
    EXPECT_TRUE(stream->WritesDone());
    EXPECT_TRUE(stream->Finish().ok());
  }
  WaitUntilNoCallLives();
}

TEST_F(TranslationStreamTest, AnswersWhatIsDoneAndEndsWhenAllIs) {
  model_->Hold();
  grpc::ClientContext context;
  const auto stream = stub_->TranslateStream(&context);
  EXPECT_TRUE(stream->Write(Message(7, "a bb")));
  model_->WaitForSteps(1);
  // Errors belong to one message and overtake answers that take longer.
  EXPECT_TRUE(stream->Write(Message(8, "")));
  EXPECT_EQ(Next(*stream), "8: INVALID_ARGUMENT");
  EXPECT_TRUE(stream->Write(Message(7, "c", -1)));
  EXPECT_EQ(Next(*stream), "7: INVALID_ARGUMENT");
  EXPECT_TRUE(stream->WritesDone());
  model_->Release();
  EXPECT_EQ(Next(*stream), "7: 12 11");
  EXPECT_EQ(Next(*stream), "end");
  EXPECT_TRUE(stream->Finish().ok());
  WaitUntilNoCallLives();
}

TEST_F(TranslationStreamTest, ItsRequestsTakeTimeApartFromThatOfCalls) {
  {
    grpc::ClientContext context;
    const auto stream = stub_->TranslateStream(&context);
    EXPECT_TRUE(stream->Write(Message(1, "a bb")));
    EXPECT_TRUE(stream->WritesDone());
    EXPECT_EQ(Next(*stream), "1: 12 11");
    EXPECT_TRUE(stream->Finish().ok());
  }
  const std::string text = metrics_.Serialize();
  EXPECT_THAT(text,
              HasSubstr("gshard_translate_requests_total{code=\"OK\",model="
                        "\"tiny\"} 1"));
  EXPECT_THAT(text,
              HasSubstr("gshard_stream_request_duration_seconds_count{model="
                        "\"tiny\"} 1"));
  EXPECT_THAT(text, HasSubstr("gshard_translate_duration_seconds_count{model="
                              "\"\"} 0"));
  WaitUntilNoCallLives();
}

TEST_F(TranslationStreamTest, ReadsNoMoreThanItMayOwe) {
  model_->Hold();
  grpc::ClientContext context;
  const auto stream = stub_->TranslateStream(&context);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(stream->Write(Message(i, "a")));
  }
  EXPECT_TRUE(stream->WritesDone());
  model_->WaitForSteps(1);
  while (batcher_.requests() < kMostOwed) std::this_thread::yield();
  // By now one more would have been read.
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  EXPECT_EQ(batcher_.requests(), kMostOwed);
  model_->Release();
  for (int i = 0; i < 20; ++i) EXPECT_THAT(Next(*stream), HasSubstr(": 11"));
  EXPECT_EQ(Next(*stream), "end");
  EXPECT_TRUE(stream->Finish().ok());
}

// A client that does not read its answers is not served: its further messages
// stay unread, and its writes block.
TEST_F(TranslationStreamTest, AnswersThatAreNotTakenStopTheReads) {
  // 16 KiB each, like their answers.
  constexpr size_t kMessages = 10'000;
  std::string text;
  for (int word = 0; word < 8; ++word) text += std::string(250, 'a') + " ";
  v1::TranslateStreamRequest message = Message(1, text);
  for (int sentence = 1; sentence < 8; ++sentence) {
    *message.mutable_request()->add_sentences() =
        message.request().sentences(0);
  }
  message.mutable_request()->mutable_options()->set_beam_size(32);
  message.mutable_request()->mutable_options()->set_n_best(32);
  grpc::ClientContext context;
  const auto stream = stub_->TranslateStream(&context);
  std::atomic<size_t> written = 0;
  std::thread writer([&] {
    while (written < kMessages && stream->Write(message)) ++written;
  });
  // Waits until no write has completed for 200 ms.
  size_t before = 0;
  for (int still = 0; still < 20 && written < kMessages;) {
    std::promise<void> never;
    never.get_future().wait_for(std::chrono::milliseconds(10));
    still = written == before && written > 0 ? still + 1 : 0;
    before = written;
  }
  // Only what fits the connection's buffers has been written.
  EXPECT_LT(written, kMessages / 2);
  EXPECT_LE(model_->steps().size(), 8 * (written + 1));
  EXPECT_EQ(batcher_.requests(), 0);
  EXPECT_EQ(batcher_.running_sentences(), 0);
  context.TryCancel();
  writer.join();
  EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
  WaitUntilNoCallLives();
}

TEST_F(TranslationStreamTest, ALostClientStopsItsWork) {
  model_->Hold();
  grpc::ClientContext context;
  const auto stream = stub_->TranslateStream(&context);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(stream->Write(Message(i, "a")));
  model_->WaitForSteps(1);
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::CANCELLED);
  model_->WaitForEnds(1);  // although the model is held
  WaitUntilNoCallLives();
  while (batcher_.running_sentences() > 0) std::this_thread::yield();
}

TEST_F(TranslationStreamTest, TheLogSaysWhyAMessageFailed) {
  ::testing::internal::CaptureStderr();
  model_->Fail(absl::InternalError("the kernel set no result"));
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "order-9");
  const auto stream = stub_->TranslateStream(&context);
  stream->Write(Message(7, "aa bbb"));
  EXPECT_EQ(Next(*stream), "7: INTERNAL");
  stream->Write(Message(8, ""));  // the caller's error
  EXPECT_EQ(Next(*stream), "8: INVALID_ARGUMENT");
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines,
              AllOf(HasSubstr("\"message\":\"a message of a stream failed\""),
                    HasSubstr("\"code\":\"INTERNAL\""),
                    HasSubstr("\"request_id\":\"order-9\""),
                    HasSubstr("\"message_id\":7,"
                              "\"reason\":\"the kernel set no result\""),
                    Not(HasSubstr("\"message_id\":8"))));
}

TEST_F(TranslationStreamTest, CountsWhatBecameOfTheAdmitted) {
  grpc::ClientContext context;
  const auto stream = stub_->TranslateStream(&context);
  EXPECT_TRUE(stream->Write(Message(1, "a")));
  EXPECT_EQ(Next(*stream), "1: 11");
  EXPECT_TRUE(stream->Write(Message(2, "")));  // is not admitted
  EXPECT_EQ(Next(*stream), "2: INVALID_ARGUMENT");
  EXPECT_TRUE(stream->WritesDone());
  EXPECT_TRUE(stream->Finish().ok());
  const std::string admitted = "gshard_admitted_requests_total{code=";
  EXPECT_THAT(metrics_.Serialize(),
              AllOf(HasSubstr(admitted + "\"OK\"} 1\n"),
                    HasSubstr(admitted + "\"INVALID_ARGUMENT\"} 0\n")));
}

TEST_F(TranslationStreamTest, MessagesHaveDeadlinesOfTheirOwn) {
  model_->Hold();
  grpc::ClientContext context;
  const auto stream = stub_->TranslateStream(&context);
  EXPECT_TRUE(stream->Write(Message(1, "a", /*timeout_ms=*/5)));
  EXPECT_EQ(Next(*stream), "1: DEADLINE_EXCEEDED");
  model_->Release();
  EXPECT_TRUE(stream->Write(Message(2, "a", /*timeout_ms=*/60'000)));
  EXPECT_EQ(Next(*stream), "2: 11");
  EXPECT_TRUE(stream->WritesDone());
  EXPECT_TRUE(stream->Finish().ok());
}

// max_request_time limits every request, with any deadline or none.
TEST_F(TranslationStreamTest, NobodyGetsMoreTimeThanTheRouterGives) {
  model_->Hold();
  TranslationService service(
      &models_, &batcher_, {},
      {.max_request_time = std::chrono::milliseconds(20)});
  ServerShell server({.address = absl::StrCat("unix:", ::testing::TempDir(),
                                              "/clamp.", getpid())});
  server.AddService(&service, v1::TranslationService::service_full_name());
  ASSERT_OK(server.Start());
  const auto stub =
      v1::TranslationService::NewStub(*CreateChannel(server.address()));
  for (const bool deadline : {false, true}) {
    grpc::ClientContext call_context, stream_context;
    if (deadline) SetDeadline(call_context, std::chrono::hours(1));
    v1::TranslateResponse response;
    const grpc::Status status =
        stub->Translate(&call_context, Message(1, "a").request(), &response);
    EXPECT_THAT(FromGrpcStatus(status),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr("was not done in time")));
    const auto stream = stub->TranslateStream(&stream_context);
    EXPECT_TRUE(stream->Write(Message(1, "a", deadline ? 3'600'000 : 0)));
    EXPECT_EQ(Next(*stream), "1: DEADLINE_EXCEEDED");
    EXPECT_TRUE(stream->WritesDone());
    EXPECT_TRUE(stream->Finish().ok());
  }
  model_->Release();
  server.Drain(std::chrono::seconds(30));
}

TEST_F(TranslationStreamTest, WhatIsTooLargeIsAnsweredByItself) {
  v1::TranslateStreamRequest bytes = Message(2, std::string(5 << 20, 'a'));
  v1::TranslateStreamRequest fields = Message(3, "a");
  for (int i = 0; i < 70'000; ++i) {
    fields.mutable_request()->mutable_sentences(0)->add_keep();
  }
  model_->Hold();
  grpc::ClientContext context;
  const auto stream = stub_->TranslateStream(&context);
  EXPECT_TRUE(stream->Write(Message(1, "a")));
  EXPECT_TRUE(stream->Write(bytes));
  EXPECT_EQ(Next(*stream), "2: RESOURCE_EXHAUSTED");
  EXPECT_TRUE(stream->Write(fields));
  EXPECT_EQ(Next(*stream), "3: RESOURCE_EXHAUSTED");
  model_->Release();
  EXPECT_EQ(Next(*stream), "1: 11");
  EXPECT_TRUE(stream->Write(Message(4, "a")));
  EXPECT_EQ(Next(*stream), "4: 11");
  EXPECT_TRUE(stream->WritesDone());
  EXPECT_EQ(Next(*stream), "end");
  EXPECT_TRUE(stream->Finish().ok());
  WaitUntilNoCallLives();
}

TEST_F(TranslationStreamTest, WhatCannotBeDecodedEndsTheStream) {
  for (const auto& [bytes, message] :
       std::vector<std::pair<std::string, std::string>>{
           {"\x12\x04\x0A\x02\x0A\x7F", "not a valid"},
           // request { sentences { text: "\xFF" } }
           {std::string("\x12\x05\x0A\x03\x0A\x01\xFF"),
            "request: sentences[0].text: expected UTF-8"}}) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    auto call = stub.PrepareCall(
        &context, "/gshard.v1.TranslationService/TranslateStream", &queue);
    const auto wait = [&queue] {
      void* tag;
      bool ok;
      EXPECT_TRUE(queue.Next(&tag, &ok));
    };
    call->StartCall(nullptr);
    wait();
    const grpc::Slice slice(bytes);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    wait();
    grpc::Status status;
    call->Finish(&status, nullptr);
    wait();
    EXPECT_THAT(
        FromGrpcStatus(status),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
    queue.Shutdown();
  }
  WaitUntilNoCallLives();
}

TEST_F(TranslationStreamTest, DrainingAnswersWhatWasRead) {
  model_->Hold();
  grpc::ClientContext context, late_context;
  const auto stream = stub_->TranslateStream(&context);
  EXPECT_TRUE(stream->Write(Message(1, "a")));
  model_->WaitForSteps(1);
  service_.DrainStreams();
  model_->Release();
  EXPECT_EQ(Next(*stream), "1: 11");
  EXPECT_EQ(Next(*stream), "end");
  EXPECT_EQ(stream->Finish().error_code(), grpc::UNAVAILABLE);
  const auto late = stub_->TranslateStream(&late_context);
  EXPECT_EQ(Next(*late), "end");
  EXPECT_EQ(late->Finish().error_code(), grpc::UNAVAILABLE);
  WaitUntilNoCallLives();
}

// What a router that shuts down no longer translates is no failure, as with
// other calls.
TEST_F(TranslationStreamTest, WhatADrainLeavesIsNotLoggedAsAFailure) {
  model_->Hold();
  ::testing::internal::CaptureStderr();
  grpc::ClientContext context;
  const auto stream = stub_->TranslateStream(&context);
  EXPECT_TRUE(stream->Write(Message(1, "a")));
  model_->WaitForSteps(1);
  service_.Finish(std::chrono::milliseconds(0));
  EXPECT_EQ(Next(*stream), "1: UNAVAILABLE");
  EXPECT_EQ(Next(*stream), "end");
  EXPECT_EQ(stream->Finish().error_code(), grpc::UNAVAILABLE);
  WaitUntilNoCallLives();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              Not(HasSubstr("a message of a stream failed")));
}

// Messages that arrive while the router begins to drain are answered or not
// accepted at all.
TEST_F(TranslationStreamTest, WhatComesWhileDrainingIsAnsweredOrNotTaken) {
  for (int trial = 0; trial < 20; ++trial) {
    SCOPED_TRACE(::testing::Message() << "trial " << trial);
    TranslationService service(&models_, &batcher_, {}, {});
    ServerShell server({.address = absl::StrCat("unix:", ::testing::TempDir(),
                                                "/drain.", getpid())});
    server.AddService(&service, v1::TranslationService::service_full_name());
    ASSERT_OK(server.Start());
    const auto stub =
        v1::TranslationService::NewStub(*CreateChannel(server.address()));
    const size_t before = model_->steps().size();
    grpc::ClientContext context;
    const auto stream = stub->TranslateStream(&context);
    ASSERT_TRUE(stream->Write(Message(1, "a")));
    EXPECT_EQ(Next(*stream), "1: 11");
    std::thread writer([&] { stream->Write(Message(2, "a")); });
    for (int i = 0; i < 6 * trial; ++i) std::this_thread::yield();
    service.DrainStreams();
    size_t answers = 1;
    while (Next(*stream) != "end") ++answers;
    writer.join();
    EXPECT_EQ(stream->Finish().error_code(), grpc::UNAVAILABLE);
    while (service.live_calls() > 0) std::this_thread::yield();
    EXPECT_EQ(batcher_.requests(), 0);
    EXPECT_EQ(model_->steps().size() - before, answers);
    server.Drain(std::chrono::seconds(30));
  }
}

}  // namespace
}  // namespace gshard
