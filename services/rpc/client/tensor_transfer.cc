#include "services/rpc/client/tensor_transfer.h"

#include <functional>
#include <stop_token>
#include <utility>

#include "services/base/mutex.h"
#include "services/base/status_macros.h"
#include "services/rpc/client/client_stream.h"

namespace gshard {
namespace {

// The result of a stream, for which a blocking call waits.
struct Outcome {
  Mutex mutex;
  CondVar changed;
  bool over ABSL_GUARDED_BY(mutex) = false;
  absl::Status status ABSL_GUARDED_BY(mutex);
};

// Passes messages to `on_message` and cancels the stream on its first error.
template <typename Out, typename In>
class BlockingHandler final : public StreamHandler<In> {
 public:
  BlockingHandler(Outcome* outcome, std::shared_ptr<StreamSender<Out>> sender,
                  std::function<absl::Status(In)> on_message)
      : outcome_(outcome),
        sender_(std::move(sender)),
        on_message_(std::move(on_message)) {}

  void OnMessage(In message) override {
    if (!error_.ok()) return;
    error_ = on_message_(std::move(message));
    if (!error_.ok()) sender_->Cancel();
  }

  void OnEnd(const absl::Status& status) override {
    // Notify under the lock: the waiter destroys `outcome_` next.
    MutexLock lock(outcome_->mutex);
    outcome_->status = error_.ok() ? status : error_;
    outcome_->over = true;
    outcome_->changed.NotifyAll();
  }

 private:
  Outcome* const outcome_;
  const std::shared_ptr<StreamSender<Out>> sender_;
  const std::function<absl::Status(In)> on_message_;
  absl::Status error_;
};

// Sends all of `messages` and waits for the end of the call.
template <typename Out, typename In>
absl::Status Call(const std::shared_ptr<grpc::Channel>& channel,
                  const std::string& method, std::vector<Out> messages,
                  std::function<absl::Status(In)> on_message,
                  std::chrono::milliseconds timeout, std::stop_token stop) {
  Outcome outcome;
  StreamOptions options;
  // No limit: frames reference memory that the caller keeps anyway.
  options.max_queued_bytes = SIZE_MAX;
  const auto sender = OpenStream<Out, In>(
      channel, method,
      [&](std::shared_ptr<StreamSender<Out>> sender) {
        return std::make_unique<BlockingHandler<Out, In>>(
            &outcome, std::move(sender), on_message);
      },
      options, timeout);
  const std::stop_callback cancel(std::move(stop),
                                  [&sender] { sender->Cancel(); });
  for (Out& message : messages) {
    // The reason is reported at the end of the stream.
    if (!sender->Send(std::move(message)).ok()) break;
  }
  sender->Finish();
  MutexLock lock(outcome.mutex);
  outcome.changed.Wait(lock, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                                 outcome.mutex) { return outcome.over; });
  return outcome.status;
}

}  // namespace

absl::Status PushGradients(const std::shared_ptr<grpc::Channel>& channel,
                           const v1::TensorFrameHeader& header,
                           const NamedTensors& gradients,
                           std::chrono::milliseconds timeout,
                           std::stop_token stop) {
  return Call<TensorFrame, v1::PushGradientsResponse>(
      channel, "/gshard.v1.CoordinatorService/PushGradients",
      SplitTensors(gradients, header),
      [](const v1::PushGradientsResponse&) { return absl::OkStatus(); },
      timeout, std::move(stop));
}

std::chrono::milliseconds PushTimeout(int64_t bytes) {
  // For two members that cannot reach each other; the loss of a member is
  // reported earlier.
  constexpr std::chrono::minutes kUnreachable{1};
  return kUnreachable +
         std::chrono::milliseconds(bytes / (kMinPushBytesPerSecond / 1000));
}

absl::Status ReplicateGradients(const std::shared_ptr<grpc::Channel>& channel,
                                const v1::TensorFrameHeader& header,
                                const NamedTensors& sums,
                                std::chrono::milliseconds timeout,
                                std::stop_token stop) {
  return Call<TensorFrame, v1::ReplicateGradientsResponse>(
      channel, "/gshard.v1.ExpertWorkerService/ReplicateGradients",
      SplitTensors(sums, header),
      [](const v1::ReplicateGradientsResponse&) { return absl::OkStatus(); },
      timeout, std::move(stop));
}

absl::StatusOr<NamedTensors> PullParameters(
    const std::shared_ptr<grpc::Channel>& channel,
    const v1::PullParametersRequest& request,
    const std::map<std::string, ExpectedTensor>& expected,
    std::chrono::milliseconds timeout, std::stop_token stop) {
  TensorCollector collector(expected);
  RETURN_IF_ERROR((Call<v1::PullParametersRequest, TensorFrame>(
      channel, "/gshard.v1.CoordinatorService/PullParameters", {request},
      [&](TensorFrame frame) { return collector.Add(std::move(frame)); },
      timeout, std::move(stop))));
  return collector.Take();
}

}  // namespace gshard
