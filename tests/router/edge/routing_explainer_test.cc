// ExplainRouting over a unix socket, with a fake model.

#include "router/edge/routing_explainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "router/edge/translation_service.h"
#include "services/base/retry_delay.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/server/server.h"
#include "services/rpc/wire/status.h"
#include "tests/router/fake_model.h"
#include "tests/testing/status_matchers.h"

namespace gshard {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class RoutingExplainerTest : public ::testing::Test {
 protected:
  explicit RoutingExplainerTest(bool debug_calls = true)
      : service_(&models_, &batcher_, {},
                 {.max_request_time = std::chrono::minutes(2),
                  .debug_calls = debug_calls}) {
    models_.Expect({});
    EXPECT_OK(models_.Add(model_));
    server_.AddService(&service_, v1::TranslationService::service_full_name());
    EXPECT_OK(server_.Start());
    stub_ = v1::TranslationService::NewStub(*CreateChannel(server_.address()));
  }
  ~RoutingExplainerTest() override {
    model_->Release();
    server_.Drain(std::chrono::seconds(30));
  }

  static v1::ExplainRoutingRequest Request(const std::string& text,
                                           const std::string& target = "") {
    v1::ExplainRoutingRequest request;
    request.mutable_sentence()->set_text(text);
    request.mutable_sentence()->set_source_language("de");
    request.set_target(target);
    return request;
  }

  absl::StatusOr<v1::ExplainRoutingResponse> Explain(
      const v1::ExplainRoutingRequest& request) {
    grpc::ClientContext context;
    SetDeadline(context, std::chrono::minutes(1));
    v1::ExplainRoutingResponse response;
    const grpc::Status status =
        stub_->ExplainRouting(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return response;
  }

  const std::shared_ptr<FakeModel> model_ =
      std::make_shared<FakeModel>("tiny@1");
  ModelTable models_;
  Batcher batcher_{{}};
  TranslationService service_;
  ServerShell server_{{.address = absl::StrCat("unix:", ::testing::TempDir(),
                                               "/explain.", getpid())}};
  std::unique_ptr<v1::TranslationService::Stub> stub_;
};

TEST_F(RoutingExplainerTest, TellsEveryTokenLayerAndHost) {
  ASSERT_OK_AND_ASSIGN(const v1::ExplainRoutingResponse response,
                       Explain(Request("a bb", "ccc")));
  EXPECT_EQ(response.model(), "tiny@1");
  ASSERT_EQ(response.source_size(), 4);
  EXPECT_EQ(response.source(1).piece(), "<11>");
  ASSERT_EQ(response.target_size(), 1);
  EXPECT_EQ(response.target(0).piece(), "<13>");
  ASSERT_EQ(response.source(3).layers_size(), 1);
  const v1::TokenLayerRouting& layer = response.source(3).layers(0);
  EXPECT_EQ(layer.layer(), "fake");
  ASSERT_EQ(layer.visits_size(), 2);
  EXPECT_EQ(layer.visits(0).weight(), 0.75f);
  EXPECT_FALSE(layer.visits(0).overflowed());
  ASSERT_EQ(layer.visits(0).hosts_size(), 1);
  EXPECT_EQ(layer.visits(0).hosts(0), "w0");
  EXPECT_EQ(layer.visits(1).expert(), 1);
  EXPECT_TRUE(layer.visits(1).overflowed());
  EXPECT_EQ(layer.visits(1).hosts_size(), 0);
}

TEST_F(RoutingExplainerTest, BadInputGetsItsCodeAndField) {
  const auto expect = [&](const v1::ExplainRoutingRequest& request,
                          absl::StatusCode code, const std::string& message) {
    EXPECT_THAT(Explain(request), StatusIs(code, StartsWith(message)));
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  expect(Request(""), kInvalid, "sentence.text: expected 1 to 16384");
  expect(Request(std::string(16385, 'a')), kInvalid, "sentence.text: expected");
  expect(Request("a a a a a a a a a a a"), kInvalid,
         "sentence.text: expected at most 12 tokens, got 13");
  expect(Request("a", "?"), kInvalid, "target: cannot write");
  expect(Request("a", std::string(16385, 'a')), kInvalid,
         "target: expected 0 to 16384");
  expect(Request("a", "a a a a a a a a a a a a"), kInvalid,
         "target: expected fewer than 12 tokens");
  v1::ExplainRoutingRequest request = Request("a");
  request.mutable_sentence()->set_source_language("xx");
  expect(request, kInvalid, "sentence.source_language: expected");
  request = Request("a");
  request.mutable_sentence()->set_target_prefix("b");
  expect(request, kInvalid, "sentence: expected no target_prefix");
  request = Request("a");
  request.mutable_sentence()->add_keep()->set_end(1);
  expect(request, kInvalid, "sentence: expected no target_prefix");
  request = Request("a");
  request.set_model("other");
  expect(request, absl::StatusCode::kNotFound, "model: ");
  EXPECT_OK(Explain(Request("a")));
}

TEST_F(RoutingExplainerTest, OneAtATime) {
  model_->Hold();
  auto first = std::async(std::launch::async,
                          [&] { return Explain(Request("a")).status(); });
  model_->WaitForSteps(1);
  const absl::Status second = Explain(Request("a")).status();
  EXPECT_THAT(second, StatusIs(absl::StatusCode::kResourceExhausted,
                               HasSubstr("another ExplainRouting")));
  EXPECT_TRUE(RetryDelay(second).has_value());
  model_->Release();
  EXPECT_OK(first.get());
  EXPECT_OK(Explain(Request("a")));
}

TEST_F(RoutingExplainerTest, ALostClientStopsItsCall) {
  model_->Hold();
  grpc::ClientContext context;
  v1::ExplainRoutingResponse response;
  std::promise<grpc::Status> over;
  const v1::ExplainRoutingRequest request = Request("a");
  stub_->async()->ExplainRouting(
      &context, &request, &response,
      [&](grpc::Status status) { over.set_value(status); });
  model_->WaitForSteps(1);
  EXPECT_EQ(service_.live_calls(), 1);
  context.TryCancel();
  EXPECT_EQ(over.get_future().get().error_code(), grpc::CANCELLED);
  model_->WaitForEnds(1);  // although the model is held
  while (service_.live_calls() > 0) std::this_thread::yield();
}

class NoDebugCallsTest : public RoutingExplainerTest {
 protected:
  NoDebugCallsTest() : RoutingExplainerTest(false) {}
};

TEST_F(NoDebugCallsTest, AreRefusedWhateverTheySay) {
  for (const char* text : {"a", ""}) {
    EXPECT_THAT(Explain(Request(text)),
                StatusIs(absl::StatusCode::kPermissionDenied,
                         HasSubstr("--enable_debug_calls")));
  }
  EXPECT_EQ(model_->steps().size(), 0u);
  EXPECT_FALSE(TranslationLimits().debug_calls);
}

}  // namespace
}  // namespace gshard
