#include "services/rpc/client/tensor_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/gshard/v1/coordinator.grpc.pb.h"
#include "services/base/status_macros.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/server/server.h"
#include "services/rpc/server/server_stream.h"
#include "tests/testing/deaf_server.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tensors.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

constexpr milliseconds kLong{60'000};

NamedTensors Example() {
  return {{"embedding", RandomTensor({1000, 700}, 1)},  // 2.8 MB
          {"scale", RandomTensor({64}, 2)},
          {"none", Tensor(ElementType::kFloat32, {0})}};
}

std::map<std::string, ExpectedTensor> Specs() {
  std::map<std::string, ExpectedTensor> specs;
  for (const auto& [name, tensor] : Example()) {
    specs[name] = {tensor.type(), tensor.dims()};
  }
  return specs;
}

void ExpectExample(const NamedTensors& tensors) {
  ASSERT_EQ(tensors.size(), Example().size());
  for (const auto& [name, tensor] : Example()) {
    EXPECT_TRUE(TensorEqual(tensors.at(name), tensor)) << name;
  }
}

using Base = v1::CoordinatorService::WithRawCallbackMethod_PushGradients<
    v1::CoordinatorService::WithRawCallbackMethod_PullParameters<
        v1::CoordinatorService::Service>>;

// Stores pushed tensors; serves Example() as the parameters of session "s".
class TransferService final : public Base {
 public:
  grpc::ServerReadReactor<grpc::ByteBuffer>* PushGradients(
      grpc::CallbackServerContext* context,
      grpc::ByteBuffer* response) override {
    return ServeUpload<TensorFrame, v1::PushGradientsResponse>(
        context, response, std::make_unique<Push>(this));
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* PullParameters(
      grpc::CallbackServerContext*, const grpc::ByteBuffer* raw) override {
    auto frames = std::make_shared<std::vector<TensorFrame>>();
    const auto request = ParseRaw<v1::PullParametersRequest>(*raw);
    absl::Status status = request.status();
    if (status.ok() && request->session() != "s") {
      status = absl::NotFoundError(
          absl::StrCat("no session \"", request->session(), "\""));
    }
    if (status.ok()) *frames = SplitTensors(Example(), {}, 1 << 16);
    return ServeDownload<TensorFrame>(
        [frames, status, next = size_t{0}]() mutable
        -> absl::StatusOr<std::optional<TensorFrame>> {
          RETURN_IF_ERROR(status);
          if (next == frames->size()) return std::nullopt;
          return std::move((*frames)[next++]);
        });
  }

  NamedTensors pushed() {
    std::lock_guard<std::mutex> lock(mutex_);
    return pushed_;
  }
  v1::TensorFrameHeader header() {
    std::lock_guard<std::mutex> lock(mutex_);
    return header_;
  }

 private:
  class Push final
      : public UploadHandler<TensorFrame, v1::PushGradientsResponse> {
   public:
    explicit Push(TransferService* service)
        : service_(service), collector_(Specs()) {}
    absl::Status OnMessage(TensorFrame frame) override {
      {
        std::lock_guard<std::mutex> lock(service_->mutex_);
        service_->header_ = frame.header;
      }
      return collector_.Add(std::move(frame));
    }
    void OnComplete(Done done) override { done(Keep()); }

   private:
    absl::StatusOr<v1::PushGradientsResponse> Keep() {
      ASSIGN_OR_RETURN(NamedTensors pushed, collector_.Take());
      std::lock_guard<std::mutex> lock(service_->mutex_);
      service_->pushed_ = std::move(pushed);
      return v1::PushGradientsResponse();
    }

    TransferService* const service_;
    TensorCollector collector_;
  };

  std::mutex mutex_;
  NamedTensors pushed_;           // guarded by mutex_
  v1::TensorFrameHeader header_;  // guarded by mutex_
};

class TensorTransferTest : public ::testing::Test {
 protected:
  void SetUp() override {
    server_.AddService(&service_, v1::CoordinatorService::service_full_name());
    ASSERT_OK(server_.Start());
    channel_ = server_.InProcessChannel();
    request_.set_session("s");
  }

  TransferService service_;
  ServerShell server_{{}};
  std::shared_ptr<grpc::Channel> channel_;
  v1::PullParametersRequest request_;
};

TEST_F(TensorTransferTest, PushesGradients) {
  v1::TensorFrameHeader header;
  header.set_session("s");
  header.set_microbatch(3);
  ASSERT_OK(PushGradients(channel_, header, Example(), kLong));
  ExpectExample(service_.pushed());
  EXPECT_EQ(service_.header().microbatch(), 3);
}

TEST_F(TensorTransferTest, PushReportsTheServersError) {
  NamedTensors gradients = Example();
  gradients["scale"] = RandomTensor({65}, 2);
  EXPECT_THAT(PushGradients(channel_, {}, gradients, kLong),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected f32[64], got f32[65]")));
  gradients.erase("scale");
  EXPECT_THAT(PushGradients(channel_, {}, gradients, kLong),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"scale\" is missing")));
  EXPECT_TRUE(service_.pushed().empty());
}

TEST_F(TensorTransferTest, PullsParameters) {
  ASSERT_OK_AND_ASSIGN(const NamedTensors tensors,
                       PullParameters(channel_, request_, Specs(), kLong));
  ExpectExample(tensors);
}

TEST_F(TensorTransferTest, PullReportsErrorsOfBothSides) {
  auto specs = Specs();
  specs["bias"] = {ElementType::kFloat32, {2}};
  EXPECT_THAT(PullParameters(channel_, request_, specs, kLong),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("\"bias\" is missing")));
  specs = Specs();
  specs["embedding"].dims = {1000, 701};
  EXPECT_THAT(PullParameters(channel_, request_, specs, kLong),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("expected f32[1000, 701]")));
  request_.set_session("t");
  EXPECT_THAT(
      PullParameters(channel_, request_, Specs(), kLong),
      StatusIs(absl::StatusCode::kNotFound, HasSubstr("no session \"t\"")));
}

TEST_F(TensorTransferTest, AServerThatIsNotThereIsUnavailable) {
  ASSERT_OK_AND_ASSIGN(const auto channel,
                       CreateChannel("unix:/nonexistent/socket"));
  EXPECT_THAT(PushGradients(channel, {}, Example(), kLong),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
  EXPECT_THAT(PullParameters(channel, request_, Specs(), kLong),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("")));
}

TEST(DeafCoordinatorTest, APushEndsInTimeThoughNothingIsTaken) {
  DeafServer server;
  ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(server.address()));
  EXPECT_THAT(PushGradients(channel, {}, Example(), milliseconds(500)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, ::testing::_));
}

TEST(DeafCoordinatorTest, StopEndsTheCallsThatWaitAndAllThatFollow) {
  DeafServer server;
  ASSERT_OK_AND_ASSIGN(const auto channel, CreateChannel(server.address()));
  std::stop_source stop;
  const auto push = [&] {
    return PushGradients(channel, {}, Example(), kLong, stop.get_token());
  };
  const auto pull = [&] {
    return PullParameters(channel, {}, Specs(), kLong, stop.get_token())
        .status();
  };
  std::future<absl::Status> pushed = std::async(std::launch::async, push);
  std::future<absl::Status> pulled = std::async(std::launch::async, pull);
  server.AwaitBytes(1);
  stop.request_stop();
  for (const absl::Status& status :
       {pushed.get(), pulled.get(), push(), pull()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled, ::testing::_));
  }
}

}  // namespace
}  // namespace gshard
