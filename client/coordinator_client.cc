#include "client/coordinator_client.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "services/base/status_macros.h"
#include "services/coordinator/store/progress_feed.h"
#include "services/rpc/security/security.h"
#include "services/rpc/wire/status.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Pause before reconnecting; doubles with each failed attempt.
constexpr milliseconds kMinReconnectPause{200};
constexpr milliseconds kMaxReconnectPause{5'000};
constexpr milliseconds kReconnectTime{60'000};

// The least time between two channels.
constexpr milliseconds kConnectPause{1'000};

// Whether a failed call had a connection: then the address is right. gRPC tells
// this in no other way.
bool HadConnection(const grpc::ClientContext& context) {
  return absl::StrContains(context.debug_error_string(), "received from peer");
}

}  // namespace

absl::StatusOr<std::unique_ptr<CoordinatorClient>> CoordinatorClient::Create(
    const std::string& address, const SecurityOptions& options) {
  ASSIGN_OR_RETURN(auto security, Security::CreateForClient(options));
  std::unique_ptr<CoordinatorClient> client(
      new CoordinatorClient(address, {.security = std::move(security)}));
  RETURN_IF_ERROR(client->Connect());
  return client;
}

absl::Status CoordinatorClient::Connect() {
  MutexLock lock(mutex_);
  const steady_clock::time_point now = steady_clock::now();
  if (now < next_connect_) return absl::OkStatus();
  next_connect_ = now + kConnectPause;
  ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel,
                   CreateChannel(address_, options_));
  stub_ = v1::CoordinatorService::NewStub(std::move(channel));
  return absl::OkStatus();
}

std::shared_ptr<CoordinatorClient::Stub> CoordinatorClient::stub() {
  MutexLock lock(mutex_);
  return stub_;
}

absl::Status CoordinatorClient::Error(const grpc::ClientContext& context,
                                      const grpc::Status& status) {
  const absl::Status error = FromGrpcStatus(status);
  if (!absl::IsUnavailable(error) && !absl::IsDeadlineExceeded(error)) {
    return error;
  }
  const char* hint = "";
  if (!HadConnection(context)) {
    // A name that has had no address for a while gRPC resolves again at growing
    // intervals of up to 2 minutes. Succeeds, as it has before.
    if (absl::IsUnavailable(error)) (void)Connect();
    if (!absl::StartsWith(address_, "unix:")) {
      hint = "; is the address right, and does it serve TLS (--tls_ca)?";
    } else if (absl::IsUnavailable(error)) {
      hint = "; does `gshard up` run?";
    }
  }
  return absl::Status(error.code(), absl::StrCat("coordinator at ", address_,
                                                 ": ", error.message(), hint));
}

absl::StatusOr<v1::DescribeResponse> CoordinatorClient::Describe(
    bool include_experts, milliseconds timeout) {
  grpc::ClientContext context;
  SetDeadline(context, timeout);
  v1::DescribeRequest request;
  request.set_include_experts(include_experts);
  v1::DescribeResponse response;
  const grpc::Status status = stub()->Describe(&context, request, &response);
  if (!status.ok()) return Error(context, status);
  return response;
}

absl::StatusOr<v1::SubmitJobResponse> CoordinatorClient::SubmitJob(
    const v1::SubmitJobRequest& request, milliseconds timeout) {
  grpc::ClientContext context;
  SetDeadline(context, timeout);
  v1::SubmitJobResponse response;
  const grpc::Status status = stub()->SubmitJob(&context, request, &response);
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
      !request.validate_only()) {
    return absl::DeadlineExceededError(absl::StrCat(
        "coordinator at ", address_, ": the job is not accepted after ",
        absl::FormatDuration(absl::FromChrono(timeout)),
        "; it may be yet: see `gshard jobs`"));
  }
  if (!status.ok()) return Error(context, status);
  return response;
}

absl::Status CoordinatorClient::CancelJob(const std::string& job) {
  // No deadline: its members may have to finish what they load.
  grpc::ClientContext context;
  v1::CancelJobRequest request;
  request.set_job(job);
  v1::CancelJobResponse response;
  const grpc::Status status = stub()->CancelJob(&context, request, &response);
  return status.ok() ? absl::OkStatus() : Error(context, status);
}

absl::StatusOr<v1::ListJobsResponse> CoordinatorClient::ListJobs(
    const std::string& job, bool history) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::ListJobsRequest request;
  request.set_job(job);
  request.set_include_history(history);
  v1::ListJobsResponse response;
  const grpc::Status status = stub()->ListJobs(&context, request, &response);
  if (!status.ok()) return Error(context, status);
  return response;
}

absl::StatusOr<std::string> CoordinatorClient::LoadModel(
    const v1::LoadModelRequest& request, milliseconds timeout) {
  grpc::ClientContext context;
  SetDeadline(context, timeout);
  RETURN_IF_ERROR(BeginWait(&context));
  v1::LoadModelResponse response;
  const grpc::Status status = stub()->LoadModel(&context, request, &response);
  EndWait(&context);
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return absl::DeadlineExceededError(absl::StrCat(
        "coordinator at ", address_, ": the model is not loaded after ",
        absl::FormatDuration(absl::FromChrono(timeout)),
        "; it goes on loading, if it has begun: see `gshard describe`"));
  }
  if (!status.ok()) return Error(context, status);
  return response.session();
}

absl::Status CoordinatorClient::UnloadModel(const std::string& session) {
  grpc::ClientContext context;
  SetDeadline(context);
  v1::UnloadModelRequest request;
  request.set_session(session);
  v1::UnloadModelResponse response;
  const grpc::Status status = stub()->UnloadModel(&context, request, &response);
  return status.ok() ? absl::OkStatus() : Error(context, status);
}

absl::Status CoordinatorClient::WatchOnce(
    const std::string& job,
    const std::function<void(const v1::JobProgress&)>& progress,
    v1::JobProgress* last) {
  // No deadline: a job may take weeks. The channel detects a silent
  // coordinator.
  grpc::ClientContext context;
  RETURN_IF_ERROR(BeginWait(&context));
  v1::WatchJobRequest request;
  request.set_job(job);
  const auto reader = stub()->WatchJob(&context, request);
  v1::JobProgress line;
  while (reader->Read(&line)) {
    *last = line;
    progress(line);
  }
  const grpc::Status status = reader->Finish();
  EndWait(&context);
  return status.ok() ? absl::OkStatus() : Error(context, status);
}

absl::StatusOr<v1::JobProgress> CoordinatorClient::WatchJob(
    const std::string& job, bool submitted,
    const std::function<void(const v1::JobProgress&)>& progress,
    const std::function<void(milliseconds left, const absl::Status& why)>&
        waits) {
  v1::JobProgress last;
  bool is_known = submitted;
  milliseconds pause = kMinReconnectPause;
  std::optional<steady_clock::time_point> lost_since;
  while (true) {
    const absl::Status status = WatchOnce(
        job,
        [&](const v1::JobProgress& line) {
          is_known = true;
          lost_since.reset();
          pause = kMinReconnectPause;
          progress(line);
        },
        &last);
    if (status.ok() && IsOver(last.state())) return last;
    if (is_known && absl::IsNotFound(status)) {
      return absl::UnavailableError(absl::StrCat(
          "job ", job,
          ": the coordinator was started again without its state "
          "(see --state_directory) and does not know the job; submit it again "
          "with --resume"));
    }
    const absl::Status why = status.ok()
                                 ? absl::UnavailableError(absl::StrCat(
                                       "job ", job,
                                       ": the coordinator ended the watch "
                                       "before the job was over"))
                                 : status;
    const steady_clock::time_point now = steady_clock::now();
    const bool is_first = !lost_since.has_value();
    if (is_first) lost_since = now;
    const bool lost = absl::IsUnavailable(why) ||
                      absl::IsCancelled(why);  // unless by Interrupt()
    if (!lost || now - *lost_since > kReconnectTime) return why;
    if (is_first && !IsInterrupted()) waits(kReconnectTime, why);
    MutexLock lock(mutex_);
    changed_.WaitFor(lock, pause, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return interrupted_;
    });
    if (interrupted_) return absl::CancelledError("interrupted");
    pause = std::min(2 * pause, kMaxReconnectPause);
  }
}

absl::Status CoordinatorClient::BeginWait(grpc::ClientContext* context) {
  MutexLock lock(mutex_);
  if (interrupted_) return absl::CancelledError("interrupted");
  waiting_.insert(context);
  return absl::OkStatus();
}

void CoordinatorClient::EndWait(grpc::ClientContext* context) {
  MutexLock lock(mutex_);
  waiting_.erase(context);
}

bool CoordinatorClient::IsInterrupted() {
  MutexLock lock(mutex_);
  return interrupted_;
}

void CoordinatorClient::Interrupt() {
  MutexLock lock(mutex_);
  interrupted_ = true;
  for (grpc::ClientContext* context : waiting_) context->TryCancel();
  changed_.NotifyAll();
}

absl::StatusOr<std::vector<std::string>> RouterAddresses(
    const v1::DescribeResponse& system) {
  std::vector<std::string> addresses;
  for (const v1::Member& member : system.members()) {
    // One that leaves soon accepts no more calls.
    if (member.role() == v1::MEMBER_ROLE_ROUTER &&
        !member.heartbeat().leaving()) {
      addresses.push_back(member.address());
    }
  }
  if (addresses.empty()) {
    return absl::FailedPreconditionError(
        "the system has no router; see `gshard describe`");
  }
  return addresses;
}

}  // namespace gshard
