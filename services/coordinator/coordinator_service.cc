#include "services/coordinator/coordinator_service.h"

#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/status_macros.h"
#include "services/rpc/server_stream.h"
#include "services/rpc/status.h"
#include "services/rpc/tensor_pieces.h"

namespace gshard {
namespace {

// One member's stream.
class JoinHandler final : public StreamHandler<v1::JoinRequest> {
 public:
  using Sender = std::shared_ptr<StreamSender<v1::JoinResponse>>;

  JoinHandler(Members* members, Sender sender)
      : members_(members), sender_(std::move(sender)) {}

  void OnMessage(v1::JoinRequest message) override {
    if (ended_) return;
    const absl::Status status = Take(std::move(message));
    if (status.ok()) return;
    ended_ = true;
    if (key_.has_value()) members_->OnEnd(*key_, status);
    sender_->Finish(status);
  }

  void OnEnd(const absl::Status& status) override {
    if (key_.has_value()) members_->OnEnd(*key_, status);
  }

 private:
  absl::Status Take(v1::JoinRequest message) {
    const bool is_register = message.event_case() == v1::JoinRequest::kRegister;
    if (is_register == key_.has_value()) {
      return absl::InvalidArgumentError(
          "expected 'register' as the first message, and only there");
    }
    switch (message.event_case()) {
      case v1::JoinRequest::kRegister: {
        ASSIGN_OR_RETURN(key_,
                         members_->Register(message.register_(), sender_));
        return absl::OkStatus();
      }
      case v1::JoinRequest::kHeartbeat:
        return members_->OnHeartbeat(*key_, message.heartbeat());
      case v1::JoinRequest::kReply:
        return members_->OnCommandReply(*key_,
                                        std::move(*message.mutable_reply()));
      case v1::JoinRequest::EVENT_NOT_SET:
        break;
    }
    return absl::InvalidArgumentError("event: expected one, got nothing");
  }

  Members* const members_;
  const Sender sender_;
  std::optional<MemberKey> key_;
  bool ended_ = false;
};

// One reader of a job's progress.
class WatchReactor final : public grpc::ServerWriteReactor<v1::JobProgress> {
 public:
  explicit WatchReactor(ProgressFeed* feed) : feed_(feed) {
    id_ = feed_->Listen(
        [this](const v1::JobProgress* progress) { OnProgress(progress); });
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard<std::mutex> lock(mutex_);
    writing_ = false;
    if (!ok) End(grpc::Status::CANCELLED);
    Go();
  }

  void OnCancel() override {
    std::lock_guard<std::mutex> lock(mutex_);
    End(grpc::Status::CANCELLED);
    Go();
  }

  void OnDone() override {
    feed_->Remove(id_);
    delete this;
  }

 private:
  // Lines that wait for a slow reader; older ones are dropped.
  static constexpr size_t kMaxWaiting = 64;

  void OnProgress(const v1::JobProgress* progress) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (end_.has_value()) return;
    if (progress == nullptr) {
      end_ = ToGrpcStatus(
          absl::UnavailableError("the coordinator is shutting down"));
    } else {
      if (waiting_.size() == kMaxWaiting) waiting_.pop_front();
      waiting_.push_back(*progress);
      if (IsOver(progress->state())) end_ = grpc::Status::OK;
    }
    Go();
  }

  void End(const grpc::Status& status) {
    waiting_.clear();
    end_ = status;
  }

  void Go() {
    if (writing_ || finished_) return;
    if (!waiting_.empty()) {
      writing_ = true;
      message_ = std::move(waiting_.front());
      waiting_.pop_front();
      StartWrite(&message_);
    } else if (end_.has_value()) {
      finished_ = true;
      Finish(*end_);
    }
  }

  ProgressFeed* const feed_;
  int64_t id_ = 0;
  std::mutex mutex_;
  std::deque<v1::JobProgress> waiting_;  // guarded by mutex_
  v1::JobProgress message_;              // being written
  bool writing_ = false;                 // guarded by mutex_
  bool finished_ = false;                // guarded by mutex_
  std::optional<grpc::Status> end_;      // once all waiting_ are written
};

class FailedWatch final : public grpc::ServerWriteReactor<v1::JobProgress> {
 public:
  explicit FailedWatch(const absl::Status& status) {
    Finish(ToGrpcStatus(status));
  }
  void OnDone() override { delete this; }
};

// One upload of gradients. All is checked before it counts.
class GradientsHandler final
    : public UploadHandler<TensorFrame, v1::PushGradientsResponse> {
 public:
  explicit GradientsHandler(const Coordinator* coordinator)
      : coordinator_(coordinator) {}

  absl::Status OnMessage(TensorFrame frame) override {
    const v1::TensorFrameHeader& header = frame.header;
    if (collector_ == nullptr) {
      ASSIGN_OR_RETURN(dense_, coordinator_->FindTraining(header.session()));
      RETURN_IF_ERROR(dense_->CheckPush(header.step(), header.microbatch(),
                                        header.attempt()));
      session_ = header.session();
      step_ = header.step();
      microbatch_ = header.microbatch();
      attempt_ = header.attempt();
      collector_ = std::make_unique<TensorCollector>(dense_->expected());
    } else if (header.session() != session_ || header.step() != step_ ||
               header.microbatch() != microbatch_ ||
               header.attempt() != attempt_) {
      return absl::InvalidArgumentError(
          "expected frames of one session, step, microbatch and attempt");
    }
    return collector_->Add(std::move(frame));
  }

  absl::StatusOr<v1::PushGradientsResponse> OnComplete() override {
    if (collector_ == nullptr) {
      return absl::InvalidArgumentError("expected frames, got none");
    }
    ASSIGN_OR_RETURN(NamedTensors gradients, collector_->Take());
    RETURN_IF_ERROR(
        dense_->Push(step_, microbatch_, attempt_, std::move(gradients)));
    return v1::PushGradientsResponse();
  }

 private:
  const Coordinator* const coordinator_;
  std::shared_ptr<DenseParameters> dense_;
  std::unique_ptr<TensorCollector> collector_;
  std::string session_;
  int64_t step_ = 0;
  int32_t microbatch_ = 0;
  int32_t attempt_ = 0;
};

// Ends the call when the coordinator calls back.
template <typename Response>
Coordinator::Done<Response> FinishWith(grpc::ServerUnaryReactor* reactor,
                                       Response* response) {
  return [reactor, response](absl::StatusOr<Response> result) {
    if (result.ok()) *response = *std::move(result);
    reactor->Finish(ToGrpcStatus(result.status()));
  };
}

}  // namespace

grpc::ServerBidiReactor<v1::JoinRequest, v1::JoinResponse>*
CoordinatorServiceImpl::Join(grpc::CallbackServerContext* context) {
  return ServeStream<v1::JoinRequest, v1::JoinResponse>(
      context, [this](auto sender) {
        return std::make_unique<JoinHandler>(&coordinator_->members(),
                                             std::move(sender));
      });
}

grpc::ServerUnaryReactor* CoordinatorServiceImpl::SubmitJob(
    grpc::CallbackServerContext* context, const v1::SubmitJobRequest* request,
    v1::SubmitJobResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  coordinator_->SubmitJob(*request, FinishWith(reactor, response));
  return reactor;
}

grpc::ServerWriteReactor<v1::JobProgress>* CoordinatorServiceImpl::WatchJob(
    grpc::CallbackServerContext*, const v1::WatchJobRequest* request) {
  const absl::StatusOr<ProgressFeed*> feed =
      coordinator_->WatchJob(request->job());
  if (!feed.ok()) return new FailedWatch(feed.status());
  return new WatchReactor(*feed);
}

grpc::ServerUnaryReactor* CoordinatorServiceImpl::CancelJob(
    grpc::CallbackServerContext* context, const v1::CancelJobRequest* request,
    v1::CancelJobResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  coordinator_->CancelJob(*request, FinishWith(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorServiceImpl::ListJobs(
    grpc::CallbackServerContext* context, const v1::ListJobsRequest* request,
    v1::ListJobsResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  FinishWith(reactor, response)(coordinator_->ListJobs(*request));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorServiceImpl::Describe(
    grpc::CallbackServerContext* context, const v1::DescribeRequest* request,
    v1::DescribeResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  *response = coordinator_->Describe(*request);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorServiceImpl::LoadModel(
    grpc::CallbackServerContext* context, const v1::LoadModelRequest* request,
    v1::LoadModelResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  coordinator_->LoadModel(*request, FinishWith(reactor, response));
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorServiceImpl::UnloadModel(
    grpc::CallbackServerContext* context, const v1::UnloadModelRequest* request,
    v1::UnloadModelResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  coordinator_->UnloadModel(*request, FinishWith(reactor, response));
  return reactor;
}

grpc::ServerReadReactor<grpc::ByteBuffer>*
CoordinatorServiceImpl::PushGradients(grpc::CallbackServerContext* context,
                                      grpc::ByteBuffer* response) {
  return ServeUpload<TensorFrame, v1::PushGradientsResponse>(
      context, response, std::make_unique<GradientsHandler>(coordinator_),
      limits_);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>*
CoordinatorServiceImpl::PullParameters(grpc::CallbackServerContext*,
                                       const grpc::ByteBuffer* request) {
  const auto frames =
      [&]() -> absl::StatusOr<std::shared_ptr<std::vector<TensorFrame>>> {
    ASSIGN_OR_RETURN(const v1::PullParametersRequest pull,
                     ParseRaw<v1::PullParametersRequest>(*request));
    ASSIGN_OR_RETURN(const auto dense,
                     coordinator_->FindTraining(pull.session()));
    ASSIGN_OR_RETURN(const NamedTensors tensors, dense->Pull(pull.version()));
    v1::TensorFrameHeader header;
    header.set_session(pull.session());
    header.set_step(pull.version());
    return std::make_shared<std::vector<TensorFrame>>(
        SplitTensors(tensors, header));
  }();
  return ServeDownload<TensorFrame>(
      [frames, next = size_t{
                   0}]() mutable -> absl::StatusOr<std::optional<TensorFrame>> {
        RETURN_IF_ERROR(frames.status());
        if (next == (*frames)->size()) return std::nullopt;
        return std::move((**frames)[next++]);
      });
}

}  // namespace gshard
