// TranslationService over gRPC, with a fake model.

#include "router/edge/translation_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/retry_delay.h"
#include "services/metrics/metrics.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/server/server.h"
#include "services/rpc/wire/status.h"
#include "tests/router/fake_model.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TranslationServiceTest : public ::testing::Test {
 protected:
  TranslationServiceTest() {
    models_.Expect({});
    EXPECT_OK(models_.Add(model_));
    server_.AddService(&service_, v1::TranslationService::service_full_name());
    EXPECT_OK(server_.Start());
    stub_ = v1::TranslationService::NewStub(server_.InProcessChannel());
  }
  ~TranslationServiceTest() override {
    model_->Release();
    server_.Drain(std::chrono::seconds(30));
  }

  static v1::TranslateRequest Request(const std::vector<std::string>& texts) {
    v1::TranslateRequest request;
    for (const std::string& text : texts) {
      v1::Sentence* const sentence = request.add_sentences();
      sentence->set_text(text);
      sentence->set_source_language("de");
    }
    return request;
  }

  absl::StatusOr<v1::TranslateResponse> Translate(
      const v1::TranslateRequest& request) {
    grpc::ClientContext context;
    v1::TranslateResponse response;
    const grpc::Status status = stub_->Translate(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }

  // gRPC releases a call shortly after the client has its answer.
  void WaitUntilNoCallLives() {
    while (service_.live_calls() > 0) std::this_thread::yield();
  }

  const std::shared_ptr<FakeModel> model_ =
      std::make_shared<FakeModel>("tiny@1");
  Metrics metrics_{"router", "test"};
  const RouterMetrics router_metrics_{metrics_};
  ModelTable models_;
  Batcher batcher_{{}, router_metrics_};
  TranslationService service_{&models_, &batcher_, router_metrics_};
  ServerShell server_{{}};
  std::unique_ptr<v1::TranslationService::Stub> stub_;
};

TEST_F(TranslationServiceTest, AnswersEverySentenceInOrder) {
  v1::TranslateRequest request = Request({"a bb ccc", "dddd"});
  request.mutable_options()->set_n_best(2);
  const auto response = Translate(request);
  ASSERT_OK(response);
  EXPECT_EQ(response->model(), "tiny@1");
  ASSERT_EQ(response->results_size(), 2);
  const v1::TranslationResult& first = response->results(0);
  EXPECT_EQ(first.source_token_count(), 4);
  ASSERT_EQ(first.hypotheses_size(), 2);
  EXPECT_EQ(first.hypotheses(0).text(), "13 12 11");
  EXPECT_EQ(first.hypotheses(0).score(), -0.5);
  EXPECT_EQ(first.hypotheses(1).score(), -1);
  EXPECT_EQ(response->results(1).hypotheses(0).text(), "14");
  EXPECT_EQ(response->results(1).source_token_count(), 2);
  WaitUntilNoCallLives();
}

TEST_F(TranslationServiceTest, BadInputGetsItsCodeAndField) {
  EXPECT_THAT(Translate(Request({})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("sentences: expected 1 to 64")));
  EXPECT_THAT(Translate(Request({"fine", ""})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("sentences[1].text: expected 1 to 16384")));
  EXPECT_THAT(Translate(Request({"fine", "bad \xFF"})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("sentences[1].text: expected UTF-8")));
  EXPECT_THAT(Translate(Request(std::vector<std::string>(65, "a"))),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("expected at most 64, got 65")));
  v1::TranslateRequest unknown = Request({"fine"});
  unknown.set_model("other");
  EXPECT_THAT(Translate(unknown),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("tiny@1")));
  WaitUntilNoCallLives();
  EXPECT_OK(Translate(Request({"still there"})));
}

TEST_F(TranslationServiceTest, ListsItsModels) {
  const auto german = std::make_shared<FakeModel>("german@2", "de");
  german->SetFull(false);
  ASSERT_OK(models_.Add(german));
  grpc::ClientContext context;
  v1::ListModelsResponse response;
  ASSERT_TRUE(stub_->ListModels(&context, {}, &response).ok());
  ASSERT_EQ(response.models_size(), 2);
  EXPECT_EQ(response.models(0).model(), "german@2");
  EXPECT_TRUE(response.models(0).current());
  EXPECT_FALSE(response.models(0).full());
  EXPECT_EQ(response.models(0).default_source_language(), "de");
  const v1::ServedModel& tiny = response.models(1);
  EXPECT_EQ(tiny.model(), "tiny@1");
  EXPECT_TRUE(tiny.full());
  EXPECT_THAT(tiny.source_languages(), ElementsAre("de", "fr"));
  EXPECT_EQ(tiny.default_source_language(), "");
  EXPECT_EQ(tiny.max_length(), FakeModel::kPositions);
}

TEST_F(TranslationServiceTest, FailureOfTheModelIsTheCallsOnly) {
  model_->Fail(absl::UnavailableError("expert worker 'w0': lost"));
  EXPECT_THAT(Translate(Request({"a"})),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("'w0'")));
  model_->Fail(absl::OkStatus());
  EXPECT_OK(Translate(Request({"a"})));
}

TEST_F(TranslationServiceTest, CancelledCallLeavesNothing) {
  model_->Hold();
  grpc::ClientContext running_context, waiting_context;
  v1::TranslateResponse running_response, waiting_response;
  std::promise<grpc::Status> running, waiting;
  const v1::TranslateRequest request = Request({"a b", "c"});
  stub_->async()->Translate(
      &running_context, &request, &running_response,
      [&](grpc::Status status) { running.set_value(status); });
  model_->WaitForSteps(1);
  stub_->async()->Translate(
      &waiting_context, &request, &waiting_response,
      [&](grpc::Status status) { waiting.set_value(status); });
  while (batcher_.queued_sentences() < 2) std::this_thread::yield();
  EXPECT_EQ(service_.live_calls(), 2);

  waiting_context.TryCancel();
  running_context.TryCancel();
  EXPECT_EQ(running.get_future().get().error_code(), grpc::CANCELLED);
  EXPECT_EQ(waiting.get_future().get().error_code(), grpc::CANCELLED);
  WaitUntilNoCallLives();
  model_->WaitForEnds(1);  // although the model is held
  EXPECT_EQ(batcher_.requests(), 0);
  EXPECT_EQ(batcher_.queued_sentences(), 0);
  EXPECT_EQ(batcher_.queued_tokens(), 0);
  while (batcher_.running_sentences() > 0) std::this_thread::yield();
  // No call still holds the model.
  models_.Remove("tiny@1", /*wait=*/true);
}

TEST_F(TranslationServiceTest, DeadlineOfTheClientStopsTheWork) {
  model_->Hold();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(100));
  v1::TranslateResponse response;
  EXPECT_EQ(stub_->Translate(&context, Request({"a"}), &response).error_code(),
            grpc::DEADLINE_EXCEEDED);
  WaitUntilNoCallLives();
  EXPECT_EQ(batcher_.requests(), 0);
}

// max_request_time limits a call with any deadline or none.
TEST_F(TranslationServiceTest, DeadlinesAreClamped) {
  model_->Hold();
  TranslationService service{
      &models_,
      &batcher_,
      {},
      {.max_request_time = std::chrono::milliseconds(50)}};
  ServerShell server{{.address = absl::StrCat("unix:", ::testing::TempDir(),
                                              "/clamp.", getpid())}};
  server.AddService(&service, v1::TranslationService::service_full_name());
  ASSERT_OK(server.Start());
  const auto stub =
      v1::TranslationService::NewStub(*CreateChannel(server.address()));
  for (const bool unlimited : {true, false}) {
    grpc::ClientContext context;
    if (!unlimited) SetDeadline(context, std::chrono::hours(1));
    v1::TranslateResponse response;
    EXPECT_THAT(
        FromGrpcStatus(stub->Translate(&context, Request({"a"}), &response)),
        StatusIs(absl::StatusCode::kDeadlineExceeded,
                 HasSubstr("was not done in time")));
  }
  for (const int64_t timeout_ms : {0, 3'600'000}) {
    grpc::ClientContext context;
    const auto stream = stub->TranslateStream(&context);
    v1::TranslateStreamRequest message;
    message.set_timeout_ms(timeout_ms);
    *message.mutable_request() = Request({"a"});
    EXPECT_TRUE(stream->Write(message));
    v1::TranslateStreamResponse answer;
    ASSERT_TRUE(stream->Read(&answer));
    EXPECT_THAT(FromProtoStatus(answer.status()),
                StatusIs(absl::StatusCode::kDeadlineExceeded,
                         HasSubstr("was not done in time")));
    stream->WritesDone();
    EXPECT_TRUE(stream->Finish().ok());
  }
  server.Drain(std::chrono::seconds(30));
}

// Forwards calls and counts the handlers that have returned.
class Watched final
    : public v1::TranslationService::WithRawCallbackMethod_Translate<
          v1::TranslationService::Service> {
 public:
  explicit Watched(TranslationService* service) : service_(service) {}

  grpc::ServerUnaryReactor* Translate(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override {
    auto* const reactor = service_->Translate(context, request, response);
    ++returned_;
    return reactor;
  }

  int returned() const { return returned_; }

 private:
  TranslationService* const service_;
  std::atomic<int> returned_ = 0;
};

// Yields until `condition` holds; false after a minute.
template <typename Condition>
bool Eventually(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// Concurrent calls and their answers.
class Calls {
 public:
  Calls(v1::TranslationService::Stub& stub, const v1::TranslateRequest& request,
        size_t count)
      : calls_(count) {
    for (Call& call : calls_) {
      stub.async()->Translate(
          &call.context, &request, &call.response,
          [&call](grpc::Status status) { call.status.set_value(status); });
    }
  }

  std::vector<grpc::StatusCode> Wait() {
    std::vector<grpc::StatusCode> codes;
    for (Call& call : calls_) {
      codes.push_back(call.status.get_future().get().error_code());
    }
    return codes;
  }

 private:
  struct Call {
    grpc::ClientContext context;
    v1::TranslateResponse response;
    std::promise<grpc::Status> status;
  };
  std::vector<Call> calls_;
};

// Forwards one call, with its request in memory of which is known when it is
// freed. Holds the request until then, as gRPC does.
class Tracked final
    : public v1::TranslationService::WithRawCallbackMethod_Translate<
          v1::TranslationService::Service> {
 public:
  explicit Tracked(TranslationService* service) : service_(service) {}

  grpc::ServerUnaryReactor* Translate(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override {
    grpc::Slice bytes;
    EXPECT_TRUE(request->DumpToSingleSlice(&bytes).ok());
    bytes_.assign(bytes.begin(), bytes.end());
    const grpc::Slice tracked(
        bytes_.data(), bytes_.size(),
        [](void* self) { static_cast<Tracked*>(self)->freed_ = true; }, this);
    request_ = grpc::ByteBuffer(&tracked, 1);
    return service_->Translate(context, &request_, response);
  }

  bool freed() const { return freed_; }

 private:
  TranslationService* const service_;
  std::string bytes_;
  std::atomic<bool> freed_ = false;
  grpc::ByteBuffer request_;
};

TEST_F(TranslationServiceTest, ARequestsBytesAreNotKeptUntilItIsAnswered) {
  Tracked tracked(&service_);
  ServerShell server{{.address = absl::StrCat("unix:", ::testing::TempDir(),
                                              "/tracked.", getpid())}};
  server.AddService(&tracked, v1::TranslationService::service_full_name());
  ASSERT_OK(server.Start());
  const auto stub =
      v1::TranslationService::NewStub(*CreateChannel(server.address()));
  model_->Hold();
  const v1::TranslateRequest request = Request({"a"});
  Calls calls(*stub, request, 1);
  model_->WaitForSteps(1);
  EXPECT_TRUE(Eventually([&] { return tracked.freed(); }));
  model_->Release();
  EXPECT_THAT(calls.Wait(), Each(grpc::OK));
  server.Drain(std::chrono::seconds(30));
}

TEST_F(TranslationServiceTest, GrpcsThreadsDoNotPrepareRequests) {
  Watched watched(&service_);
  ServerShell server{{.address = absl::StrCat("unix:", ::testing::TempDir(),
                                              "/watched.", getpid())}};
  server.AddService(&watched, v1::TranslationService::service_full_name());
  ASSERT_OK(server.Start());
  const auto stub =
      v1::TranslationService::NewStub(*CreateChannel(server.address()));
  model_->HoldEncoding();
  constexpr size_t kCalls = 16;
  const v1::TranslateRequest request = Request({"a", "b"});
  Calls calls(*stub, request, kCalls);
  EXPECT_TRUE(Eventually([&] { return watched.returned() == kCalls; }));
  model_->WaitForEncodings(1);
  EXPECT_EQ(model_->encodings(), 1u);  // one thread prepares requests
  model_->ReleaseEncoding();
  EXPECT_THAT(calls.Wait(), Each(grpc::OK));
  server.Drain(std::chrono::seconds(30));
}

TEST_F(TranslationServiceTest, ACallersRequestsAreRefusedByTheirBytes) {
  const v1::TranslateRequest request = Request({"a"});
  const auto bytes = static_cast<int64_t>(request.ByteSizeLong());
  TranslationService service{
      &models_, &batcher_, {}, {.preparer = {.max_bytes = 2 * bytes}}};
  ServerShell server{{.address = absl::StrCat("unix:", ::testing::TempDir(),
                                              "/bytes.", getpid())}};
  server.AddService(&service, v1::TranslationService::service_full_name());
  ASSERT_OK(server.Start());
  const auto stub =
      v1::TranslationService::NewStub(*CreateChannel(server.address()));
  model_->HoldEncoding();
  Calls first(*stub, request, 1);
  model_->WaitForEncodings(1);
  // A second request of this caller would leave too little for others.
  grpc::ClientContext context;
  SetDeadline(context, std::chrono::seconds(30));
  v1::TranslateResponse response;
  const absl::Status refused =
      FromGrpcStatus(stub->Translate(&context, request, &response));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("the rest is for others")));
  EXPECT_TRUE(RetryDelay(refused).has_value());
  // On a stream, only the request is refused.
  grpc::ClientContext stream_context;
  SetDeadline(stream_context, std::chrono::seconds(30));
  const auto stream = stub->TranslateStream(&stream_context);
  v1::TranslateStreamRequest message;
  *message.mutable_request() = request;
  for (uint64_t id = 7; id < 9; ++id) {
    message.set_id(id);
    EXPECT_TRUE(stream->Write(message));
    v1::TranslateStreamResponse answer;
    ASSERT_TRUE(stream->Read(&answer));
    EXPECT_EQ(answer.id(), id);
    EXPECT_THAT(
        FromProtoStatus(answer.status()),
        StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("this has")));
  }
  EXPECT_EQ(model_->encodings(), 1u);
  model_->ReleaseEncoding();
  EXPECT_THAT(first.Wait(), Each(grpc::OK));
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  server.Drain(std::chrono::seconds(30));
}

TEST_F(TranslationServiceTest, WhoIsCancelledBeforeItIsPreparedLeavesNothing) {
  model_->HoldEncoding();
  const v1::TranslateRequest request = Request({"a"});
  Calls first(*stub_, request, 1);
  model_->WaitForEncodings(1);
  grpc::ClientContext context;
  v1::TranslateResponse response;
  std::promise<grpc::Status> status;
  stub_->async()->Translate(&context, &request, &response,
                            [&](grpc::Status end) { status.set_value(end); });
  EXPECT_TRUE(Eventually([&] { return service_.live_calls() == 2; }));
  context.TryCancel();
  EXPECT_EQ(status.get_future().get().error_code(), grpc::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return service_.live_calls() == 1; }));
  model_->ReleaseEncoding();
  EXPECT_THAT(first.Wait(), Each(grpc::OK));
  WaitUntilNoCallLives();
  EXPECT_EQ(model_->encodings(), 1u);
}

TEST_F(TranslationServiceTest, CountsWhatItDoes) {
  EXPECT_THAT(metrics_.Serialize(),
              HasSubstr("gshard_translate_requests_total{code=\"OK\",model="
                        "\"\"} 0"));
  EXPECT_OK(Translate(Request({"a"})));
  EXPECT_FALSE(Translate(Request({})).ok());
  v1::TranslateRequest wide = Request({"a"});
  wide.mutable_options()->set_beam_size(1'000'000);
  EXPECT_FALSE(Translate(wide).ok());
  WaitUntilNoCallLives();
  const std::string text = metrics_.Serialize();
  EXPECT_THAT(text,
              HasSubstr("gshard_translate_requests_total{code=\"OK\",model="
                        "\"tiny\"} 1"));
  // Options are checked when the model is known, the number of sentences
  // before.
  EXPECT_THAT(text, HasSubstr("gshard_translate_requests_total{code=\"INVALID_"
                              "ARGUMENT\",model=\"tiny\"} 1"));
  EXPECT_THAT(text, HasSubstr("gshard_translate_requests_total{code=\"INVALID_"
                              "ARGUMENT\",model=\"\"} 1"));
  EXPECT_THAT(text, HasSubstr("gshard_translate_duration_seconds_count{model="
                              "\"tiny\"} 2"));
  EXPECT_THAT(text,
              HasSubstr("gshard_stream_request_duration_seconds_count{model="
                        "\"\"} 0"));
  EXPECT_THAT(text, HasSubstr("gshard_requests_in_flight 0"));
  EXPECT_THAT(text, HasSubstr("gshard_stage_duration_seconds_count{stage="
                              "\"decode\"} 1"));
  EXPECT_THAT(text, HasSubstr("gshard_queue_duration_seconds_count 1"));
  EXPECT_THAT(text, HasSubstr("gshard_build_info{"));
}

}  // namespace
}  // namespace gshard
