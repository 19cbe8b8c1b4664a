#include "services/coordinator/coordinator_service.h"

#include <deque>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/mutex.h"
#include "services/base/status_macros.h"
#include "services/rpc/security/audit.h"
#include "services/rpc/server/call_info.h"
#include "services/rpc/server/server_stream.h"
#include "services/rpc/wire/status.h"
#include "services/rpc/wire/tensor_pieces.h"

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
class WatchReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit WatchReactor(std::shared_ptr<ProgressFeed> feed)
      : feed_(std::move(feed)) {
    id_ = feed_->Listen(
        [this](const v1::JobProgress* progress) { OnProgress(progress); });
  }

  void OnWriteDone(bool ok) override {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok) End(grpc::Status::CANCELLED);
    Go();
  }

  void OnCancel() override {
    MutexLock lock(mutex_);
    End(grpc::Status::CANCELLED);
    Go();
  }

  void OnDone() override {
    feed_->Remove(id_);
    delete this;
  }

 private:
  // Maximum lines queued for a slow reader; older ones are dropped.
  static constexpr size_t kMaxWaiting = 64;

  void OnProgress(const v1::JobProgress* progress) {
    MutexLock lock(mutex_);
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

  void End(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    waiting_.clear();
    end_ = status;
  }

  void Go() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!waiting_.empty()) {
      writing_ = true;
      message_ = SerializeRaw(waiting_.front());
      waiting_.pop_front();
      StartWrite(&message_);
    } else if (end_.has_value()) {
      finished_ = true;
      Finish(*end_);
    }
  }

  const std::shared_ptr<ProgressFeed> feed_;
  int64_t id_ = 0;
  Mutex mutex_;
  std::deque<v1::JobProgress> waiting_ ABSL_GUARDED_BY(mutex_);
  grpc::ByteBuffer message_;  // being written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  // Once all waiting_ are written.
  std::optional<grpc::Status> end_ ABSL_GUARDED_BY(mutex_);
};

class FailedWatch final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit FailedWatch(const absl::Status& status) {
    Finish(ToGrpcStatus(status));
  }
  void OnDone() override { delete this; }
};

// One upload of gradients. Everything is validated before it takes effect.
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

  void OnComplete(Done done) override {
    if (collector_ == nullptr) {
      return done(absl::InvalidArgumentError("expected frames, got none"));
    }
    absl::StatusOr<NamedTensors> gradients = collector_->Take();
    if (!gradients.ok()) return done(gradients.status());
    dense_->Push(step_, microbatch_, attempt_, *std::move(gradients),
                 [done = std::move(done)](const absl::Status& status) {
                   if (!status.ok()) return done(status);
                   done(v1::PushGradientsResponse());
                 });
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

}  // namespace

template <typename Request, typename Response,
          void (Coordinator::*kMethod)(const Request&, const Requester&,
                                       Coordinator::Done<Response>)>
grpc::ServerUnaryReactor* CoordinatorServiceImpl::Serve(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeUnary<Request, Response>(
      context, *request, response, [&](const Request& parsed, auto done) {
        const CallInfo info = CallInfoOf(*context);
        (coordinator_->*kMethod)(parsed, {info.caller, info.request_id},
                                 std::move(done));
      });
}

CoordinatorServiceImpl::CoordinatorServiceImpl(Coordinator* coordinator,
                                               FrameLimits limits)
    : coordinator_(coordinator), limits_(limits) {
  const auto late = [this](const char* method, auto serve) {
    DeferRead(MethodIndex(method), serve);
  };
  using Impl = CoordinatorServiceImpl;
  late("gshard.v1.CoordinatorService.SubmitJob",
       &Impl::Serve<v1::SubmitJobRequest, v1::SubmitJobResponse,
                    &Coordinator::SubmitJob>);
  late("gshard.v1.CoordinatorService.WatchJob", &Impl::WatchJob);
  late("gshard.v1.CoordinatorService.CancelJob",
       &Impl::Serve<v1::CancelJobRequest, v1::CancelJobResponse,
                    &Coordinator::CancelJob>);
  late("gshard.v1.CoordinatorService.ListJobs", &Impl::ListJobs);
  late("gshard.v1.CoordinatorService.Describe", &Impl::Describe);
  late("gshard.v1.CoordinatorService.LoadModel",
       &Impl::Serve<v1::LoadModelRequest, v1::LoadModelResponse,
                    &Coordinator::LoadModel>);
  late("gshard.v1.CoordinatorService.UnloadModel",
       &Impl::Serve<v1::UnloadModelRequest, v1::UnloadModelResponse,
                    &Coordinator::UnloadModel>);
  late("gshard.v1.CoordinatorService.PullParameters", &Impl::PullParameters);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>*
CoordinatorServiceImpl::Join(grpc::CallbackServerContext* context) {
  return ServeStream<v1::JoinRequest, v1::JoinResponse>(
      context, [this](auto sender) {
        return std::make_unique<JoinHandler>(&coordinator_->members(),
                                             std::move(sender));
      });
}

grpc::ServerUnaryReactor* CoordinatorServiceImpl::ListJobs(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeUnary<v1::ListJobsRequest, v1::ListJobsResponse>(
      context, *request, response,
      [&](const v1::ListJobsRequest& parsed, auto done) {
        done(coordinator_->ListJobs(parsed, CallInfoOf(*context).caller));
      });
}

grpc::ServerUnaryReactor* CoordinatorServiceImpl::Describe(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return ServeUnary<v1::DescribeRequest, v1::DescribeResponse>(
      context, *request, response,
      [&](const v1::DescribeRequest& parsed, auto done) {
        done(coordinator_->Describe(parsed, CallInfoOf(*context).caller));
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* CoordinatorServiceImpl::WatchJob(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const auto feed = [&]() -> absl::StatusOr<std::shared_ptr<ProgressFeed>> {
    ASSIGN_OR_RETURN(const v1::WatchJobRequest watch,
                     ParseRaw<v1::WatchJobRequest>(*request));
    return coordinator_->WatchJob(watch.job(), CallInfoOf(*context).caller);
  }();
  if (!feed.ok()) return new FailedWatch(feed.status());
  return new WatchReactor(*feed);
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
