#include "services/rpc/process/member_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/base/thread_priority.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/client/client_stream.h"
#include "services/rpc/wire/status.h"
#include "services/rpc/wire/trace_scope.h"

namespace gshard {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kJoin[] = "/gshard.v1.CoordinatorService/Join";

// How long the coordinator may take to end a stream after the member has
// finished it.
constexpr std::chrono::milliseconds kLeaveTimeout{2'000};

v1::JoinRequest ReplyRequest(uint64_t command_id, v1::CommandReply reply) {
  v1::JoinRequest request;
  reply.set_command_id(command_id);
  *request.mutable_reply() = std::move(reply);
  return request;
}

bool IsRefusal(const absl::Status& status) {
  return status.code() == absl::StatusCode::kInvalidArgument ||
         status.code() == absl::StatusCode::kFailedPrecondition;
}

// A span without a trace if the command has none.
OpenSpan SpanOf(const v1::Command& command, const Tracer& tracer) {
  if (ParseTraceparent(command.traceparent()).trace_id.empty()) {
    return OpenSpan();
  }
  OpenSpan span = tracer.Serve(command.traceparent(), "", ActionName(command));
  span.Set("gshard.session", SessionOf(command));
  return span;
}

}  // namespace

std::string ActionName(const v1::Command& command) {
  const auto* const field =
      v1::Command::descriptor()->FindFieldByNumber(command.action_case());
  return field == nullptr ? "a command" : field->name();
}

const std::string& SessionOf(const v1::Command& command) {
  static const std::string* const kNone = new std::string();
  switch (command.action_case()) {
    case v1::Command::kLoadSession:
      return command.load_session().session();
    case v1::Command::kUnloadSession:
      return command.unload_session().session();
    case v1::Command::kAbortSession:
      return command.abort_session().session();
    case v1::Command::kAssignMicrobatch:
      return command.assign_microbatch().session();
    case v1::Command::kPrepareStep:
      return command.prepare_step().session();
    case v1::Command::kCommitStep:
      return command.commit_step().session();
    case v1::Command::kWriteCheckpoint:
      return command.write_checkpoint().session();
    case v1::Command::kUpdatePlacement:
      return command.update_placement().session();
    case v1::Command::kConnectRouters:
      return command.connect_routers().session();
    case v1::Command::ACTION_NOT_SET:
      break;
  }
  return *kNone;
}

bool IsOfJob(const v1::Command& command) {
  switch (command.action_case()) {
    case v1::Command::kLoadSession:
      return command.load_session().training();
    case v1::Command::kAssignMicrobatch:
    case v1::Command::kPrepareStep:
    case v1::Command::kCommitStep:
    case v1::Command::kWriteCheckpoint:
    case v1::Command::kConnectRouters:
      return true;
    default:
      return false;
  }
}

v1::CommandReply ReplyWith(const absl::Status& status) {
  v1::CommandReply reply;
  *reply.mutable_status() = ToProtoStatus(status);
  return reply;
}

struct MemberClient::Stream {
  std::shared_ptr<StreamSender<v1::JoinRequest>> sender;
  bool accepted ABSL_GUARDED_BY(&MemberClient::mutex_) = false;
  bool told_leaving ABSL_GUARDED_BY(&MemberClient::mutex_) = false;
  bool let_go ABSL_GUARDED_BY(&MemberClient::mutex_) = false;
  std::chrono::milliseconds heartbeat_interval
      ABSL_GUARDED_BY(&MemberClient::mutex_){0};
  std::chrono::milliseconds lease ABSL_GUARDED_BY(&MemberClient::mutex_){0};
  std::optional<absl::Status> ended ABSL_GUARDED_BY(&MemberClient::mutex_);
  // The reason if the member itself ended the stream.
  absl::Status error ABSL_GUARDED_BY(&MemberClient::mutex_);
};

class MemberClient::StreamReader final
    : public StreamHandler<v1::JoinResponse> {
 public:
  StreamReader(MemberClient* client, std::shared_ptr<Stream> stream)
      : client_(client), stream_(std::move(stream)) {}

  void OnMessage(v1::JoinResponse message) override {
    client_->OnMessage(stream_, std::move(message));
  }
  void OnEnd(const absl::Status& status) override {
    MutexLock lock(client_->mutex_);
    stream_->ended = status;
    client_->joined_ = false;
    client_->changed_.NotifyAll();
  }

 private:
  MemberClient* const client_;
  const std::shared_ptr<Stream> stream_;
};

MemberClient::MemberClient(MemberOptions options, MemberHandler* handler)
    : options_(std::move(options)), handler_(handler) {}

MemberClient::~MemberClient() { Stop(); }

absl::Status MemberClient::Start() {
  RETURN_IF_ERROR(Connect());
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

absl::Status MemberClient::Connect() {
  if (options_.channel != nullptr) {
    channel_ = options_.channel;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(channel_, CreateChannel(options_.coordinator,
                                           {.security = options_.security,
                                            .silence = options_.silence}));
  return absl::OkStatus();
}

bool MemberClient::joined() const {
  MutexLock lock(mutex_);
  return joined_;
}

void MemberClient::SayLeaving() {
  MutexLock lock(mutex_);
  leaving_ = true;
  changed_.NotifyAll();
}

absl::Status MemberClient::AwaitMayLeave(std::chrono::milliseconds timeout) {
  MutexLock lock(mutex_);
  if (!joined_) return absl::OkStatus();
  leaving_ = true;
  changed_.NotifyAll();
  if (changed_.WaitFor(lock, timeout,
                       [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                         return may_leave_ || stopping_;
                       })) {
    return absl::OkStatus();
  }
  return absl::DeadlineExceededError(
      absl::StrCat("the coordinator has not let this member go in ",
                   timeout.count(), " ms"));
}

void MemberClient::Stop() {
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.NotifyAll();
    thread.swap(thread_);
  }
  if (thread.joinable()) thread.join();
}

void MemberClient::Run() {
  std::chrono::milliseconds backoff = options_.min_backoff;
  absl::Status logged;
  while (true) {
    bool accepted = false;
    bool let_go = false;
    const absl::Status end = RunStream(&accepted, &let_go);
    MutexLock lock(mutex_);
    if (stopping_) return;
    lock.Unlock();
    if (accepted) {
      backoff = options_.min_backoff;
      handler_->OnLost();
      // A coordinator that shuts down lets its members go.
      Log(let_go ? LogSeverity::kInfo : LogSeverity::kWarning,
          "lost the coordinator", {{"status", end}});
    } else if (IsRefusal(end)) {
      LogError("the coordinator refuses this member", {{"status", end}});
      handler_->OnRefused(end);
      lock.Lock();
      may_leave_ = true;
      changed_.NotifyAll();
      return;
    } else if (end != logged) {
      LogWarning("cannot join the coordinator", {{"status", end}});
      logged = end;
    }
    lock.Lock();
    changed_.WaitFor(
        lock, backoff,
        [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_; });
    if (stopping_) return;
    if (!accepted) backoff = std::min(2 * backoff, options_.max_backoff);
    lock.Unlock();
    // Succeeds, as it has before.
    (void)Connect();
  }
}

absl::Status MemberClient::RunStream(bool* accepted, bool* let_go) {
  const auto stream = std::make_shared<Stream>();
  OpenStream<v1::JoinRequest, v1::JoinResponse>(
      channel_, kJoin, [&](auto sender) {
        stream->sender = std::move(sender);
        return std::make_unique<StreamReader>(this, stream);
      });
  v1::JoinRequest request;
  v1::RegisterMember& member = *request.mutable_register_();
  member.set_role(options_.role);
  member.set_name(options_.name);
  member.set_address(options_.address);
  member.set_protocol_version(options_.versions.newest);
  member.set_oldest_protocol_version(options_.versions.oldest);
  member.set_build_version(options_.build_version);
  member.set_memory_bytes(options_.memory_bytes);
  member.set_device(options_.device);
  member.set_failure_domain(options_.failure_domain);
  (void)stream->sender->Send(std::move(request));  // OnEnd() reports failures

  MutexLock lock(mutex_);
  const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || stream->ended.has_value();
  };
  if (!changed_.WaitFor(lock, options_.accept_timeout,
                        [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                          return over() || stream->accepted;
                        })) {
    stream->error = absl::DeadlineExceededError(
        "the coordinator has not accepted the member in time");
    stream->sender->Cancel();
  }
  Clock::time_point sent = Clock::now();
  Clock::time_point next = sent + stream->heartbeat_interval;
  const auto is_news = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return leaving_ && !stream->told_leaving;
  };
  while (stream->accepted && !over()) {
    changed_.WaitUntil(lock, next, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return over() || is_news();
    });
    if (over()) break;
    const bool leaving = stream->told_leaving = leaving_;
    lock.Unlock();
    v1::JoinRequest heartbeat;
    *heartbeat.mutable_heartbeat() = handler_->Load();
    heartbeat.mutable_heartbeat()->set_leaving(leaving);
    const bool ok = stream->sender->Send(std::move(heartbeat)).ok();
    lock.Lock();
    const Clock::time_point now = Clock::now();
    next = now + stream->heartbeat_interval;
    if (ok) {
      sent = now;
    } else if (now - sent >= stream->lease) {
      stream->error = absl::DeadlineExceededError(
          "no heartbeat could be sent during the lease");
      stream->sender->Cancel();
      break;
    }
  }

  // The handler must finish this stream's work before the next stream begins.
  // New commands may arrive until the stream has ended.
  const bool leaving = stopping_ && !stream->ended.has_value();
  lock.Unlock();
  if (leaving) stream->sender->Finish();
  for (const std::string& session : lanes_.DropAll()) {
    handler_->Interrupt(session);
  }
  lock.Lock();
  const auto ended = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stream->ended.has_value();
  };
  if (!changed_.WaitFor(lock, kLeaveTimeout, ended)) {
    stream->sender->Cancel();
    changed_.Wait(lock, ended);
  }
  // Only now, since the coordinator's answer may have crossed the deadline.
  *accepted = stream->accepted;
  *let_go = stream->let_go;
  const absl::Status end = stream->error.ok() ? *stream->ended : stream->error;
  lock.Unlock();
  for (const std::string& session : lanes_.DropAll()) {
    handler_->Interrupt(session);
  }
  lanes_.WaitUntilIdle();
  return end;
}

void MemberClient::OnMessage(const std::shared_ptr<Stream>& stream,
                             v1::JoinResponse message) {
  if (message.has_command()) {
    {
      MutexLock lock(mutex_);
      if (!stream->accepted) return;  // a bug of the coordinator; not answered
    }
    return OnCommand(stream, std::move(*message.mutable_command()));
  }
  if (message.has_may_leave()) {
    LogInfo("the coordinator lets this member go",
            {{"reason", message.may_leave().reason()}});
    MutexLock lock(mutex_);
    stream->let_go = may_leave_ = true;
    changed_.NotifyAll();
    return;
  }
  if (!message.has_accepted()) return;
  // Must precede the commands that follow on this thread.
  handler_->OnAccepted(message.accepted());
  LogInfo("joined the coordinator",
          {{"lease_ms", message.accepted().lease_ms()},
           {"protocol_version", message.accepted().protocol_version()}});
  MutexLock lock(mutex_);
  stream->accepted = true;
  stream->heartbeat_interval = std::chrono::milliseconds(std::clamp<int64_t>(
      message.accepted().heartbeat_interval_ms(), 1, 60'000));
  stream->lease = std::chrono::milliseconds(
      std::clamp<int64_t>(message.accepted().lease_ms(), 1, 3'600'000));
  joined_ = true;
  may_leave_ = !message.accepted().answers_leaving();
  changed_.NotifyAll();
}

void MemberClient::OnCommand(const std::shared_ptr<Stream>& stream,
                             v1::Command command) {
  const auto shared = std::make_shared<const v1::Command>(std::move(command));
  // A reply that cannot be sent is lost together with its stream.
  const auto reply = [stream, shared](v1::CommandReply outcome) {
    (void)stream->sender->Send(
        ReplyRequest(shared->command_id(), std::move(outcome)));
  };
  const std::string& session = SessionOf(*shared);
  if (session.empty()) {
    return reply(ReplyWith(absl::InvalidArgumentError(
        "expected a command with a known action and a session")));
  }
  if (shared->has_abort_session()) {
    lanes_.Drop(session);
    handler_->Interrupt(session);
  }
  const auto dropped = [reply] {
    reply(ReplyWith(absl::CancelledError(
        "the session was aborted before the command began")));
  };
  lanes_.Add(
      {session, 0},
      {.run =
           [this, shared, reply, dropped] {
             // Only this session uses the threads of its lanes, so the niceness
             // may stay.
             const int niceness =
                 IsOfJob(*shared) ? options_.training_niceness : 0;
             BeNice(niceness);
             const auto span =
                 std::make_shared<OpenSpan>(SpanOf(*shared, options_.tracer));
             const auto end = [reply, span](v1::CommandReply outcome) {
               span->End(FromProtoStatus(outcome.status()));
               reply(std::move(outcome));
             };
             const TraceScope scope(span->context());
             auto rest = handler_->Begin(*shared);
             if (!rest) return end(handler_->Handle(*shared));
             const Lane lane = {SessionOf(*shared), shared->action_case()};
             lanes_.Add(lane, {.run =
                                   [end, niceness, rest = std::move(rest)] {
                                     BeNice(niceness);
                                     end(rest());
                                   },
                               .dropped = dropped});
           },
       .dropped = dropped});
}

}  // namespace gshard
