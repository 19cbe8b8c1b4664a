#include "services/coordinator/membership/members.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/rpc/client/channel.h"
#include "services/rpc/process/member_client.h"
#include "services/rpc/wire/status.h"

namespace gshard {
namespace {

absl::Status LostError(const Member& member) {
  return absl::UnavailableError(absl::StrCat(
      MemberRoleName(member.info.role), " '", member.info.id, "' was lost"));
}

// The step of a command; 0 if it has none.
int64_t StepOf(const v1::Command& command) {
  switch (command.action_case()) {
    case v1::Command::kAssignMicrobatch:
      return command.assign_microbatch().step();
    case v1::Command::kPrepareStep:
      return command.prepare_step().step();
    case v1::Command::kCommitStep:
      return command.commit_step().step();
    case v1::Command::kWriteCheckpoint:
      return command.write_checkpoint().step();
    default:
      return 0;
  }
}

// A member without an oldest version supports only one.
ProtocolVersions VersionsOf(const v1::RegisterMember& member) {
  const int32_t oldest = member.oldest_protocol_version();
  return {.oldest = oldest == 0 ? member.protocol_version() : oldest,
          .newest = member.protocol_version()};
}

}  // namespace

TraceContext StepTrace(const std::string& session, int64_t step) {
  TraceContext trace = TraceOf(absl::StrCat(session, " ", step));
  trace.span_id = trace.trace_id.substr(trace.span_id.size());
  return trace;
}

Members::Members(MembersOptions options)
    : options_(std::move(options)),
      membership_({.lease = options_.lease,
                   .allow_mixed_devices = options_.allow_mixed_devices}),
      lease_thread_([this] { WatchLeases(); }) {}

absl::StatusOr<MemberKey> Members::Register(const v1::RegisterMember& request,
                                            std::shared_ptr<Sender> sender) {
  const auto version = CommonVersion(options_.versions, VersionsOf(request));
  if (!version.ok()) {
    return Annotate(version.status(), absl::StrCat("register of build ",
                                                   request.build_version()));
  }
  MemberInfo info{.id = request.name(),
                  .role = MemberRole::kRouter,
                  .address = request.address(),
                  .capacity_bytes = request.memory_bytes(),
                  .failure_domain = request.failure_domain()};
  if (!request.device().empty()) info.device = request.device();
  if (request.role() == v1::MEMBER_ROLE_EXPERT_WORKER) {
    info.role = MemberRole::kExpertWorker;
  } else if (request.role() != v1::MEMBER_ROLE_ROUTER) {
    return absl::InvalidArgumentError(absl::StrCat(
        "register.role: expected a router or an expert worker, got ",
        static_cast<int>(request.role())));
  }
  RETURN_IF_ERROR(
      Annotate(ValidateAddress(request.address()), "register.address"));
  v1::JoinResponse accepted;
  if (info.role == MemberRole::kRouter) {
    for (const std::string& name : options_.models()) {
      accepted.mutable_accepted()->add_models(name);
    }
  }
  std::vector<OnReply> expired;
  MemberKey key;
  {
    MutexLock lock(mutex_);
    if (stopping_) {
      return absl::UnavailableError("the coordinator is shutting down");
    }
    const MonotonicTime now = options_.clock();
    ASSIGN_OR_RETURN(const Member member, membership_.Join(info, now));
    if (connections_.count(info.id) > 0) {  // its expiry is not yet processed
      expired = Drop(info.id, absl::DeadlineExceededError("the lease ran out"));
    }
    accepted.mutable_accepted()->set_lease_ms(
        absl::ToInt64Milliseconds(options_.lease));
    accepted.mutable_accepted()->set_heartbeat_interval_ms(
        std::max<int64_t>(1, absl::ToInt64Milliseconds(options_.lease) / 5));
    accepted.mutable_accepted()->set_protocol_version(*version);
    accepted.mutable_accepted()->set_answers_leaving(true);
    (void)sender->Send(std::move(accepted));
    key = KeyOf(member);
    connections_[info.id] = {.incarnation = member.incarnation,
                             .registered = request,
                             .heartbeat = {},
                             .last_message = now,
                             .sender = std::move(sender),
                             .pending = {}};
    wake_.NotifyOne();
  }
  LogInfo("member joined", {{"member_role", MemberRoleName(info.role)},
                            {"name", info.id},
                            {"address", info.address},
                            {"version", request.build_version()}});
  Fail(std::move(expired), absl::UnavailableError("the lease ran out"));
  options_.on_change();
  return key;
}

Members::Connection* Members::Find(const MemberKey& key) {
  const auto found = connections_.find(key.name);
  if (found == connections_.end() ||
      found->second.incarnation != key.incarnation) {
    return nullptr;
  }
  return &found->second;
}

absl::Status Members::OnHeartbeat(const MemberKey& key,
                                  const v1::Heartbeat& load) {
  {
    MutexLock lock(mutex_);
    Connection* const connection = Find(key);
    const MonotonicTime now = options_.clock();
    if (connection == nullptr ||
        !membership_.Renew(key.name, key.incarnation, now).ok()) {
      return absl::DeadlineExceededError("the lease ran out");
    }
    connection->heartbeat = load;
    connection->last_message = now;
    if (!load.leaving() || !membership_.SetLeaving(key.name, key.incarnation)) {
      return absl::OkStatus();
    }
  }
  LogInfo("member wants to leave", {{"name", key.name}});
  options_.on_change();
  return absl::OkStatus();
}

absl::Status Members::OnCommandReply(const MemberKey& key,
                                     v1::CommandReply reply) {
  Pending answered;
  std::string role;
  {
    MutexLock lock(mutex_);
    Connection* const connection = Find(key);
    const MonotonicTime now = options_.clock();
    if (connection == nullptr ||
        !membership_.Renew(key.name, key.incarnation, now).ok()) {
      return absl::DeadlineExceededError("the lease ran out");
    }
    connection->last_message = now;
    const auto pending = connection->pending.find(reply.command_id());
    if (pending == connection->pending.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("reply.command_id: no command ", reply.command_id(),
                       " waits for a reply"));
    }
    answered = std::move(pending->second);
    connection->pending.erase(pending);
    role = std::string(MemberRoleName(membership_.Find(key.name)->info.role));
  }
  const absl::Status status = FromProtoStatus(reply.status());
  answered.span.End(status);
  if (status.ok()) {
    answered.on_reply(std::move(reply));
  } else {
    answered.on_reply(
        Annotate(status, absl::StrCat(role, " '", key.name, "'")));
  }
  return absl::OkStatus();
}

void Members::OnEnd(const MemberKey& key, const absl::Status& why) {
  std::vector<OnReply> pending;
  Member member;
  {
    MutexLock lock(mutex_);
    if (Find(key) == nullptr) return;
    member = *membership_.Find(key.name);
    (void)membership_.Leave(key.name, key.incarnation);
    pending = Drop(key.name, why);
  }
  LogInfo("member left", {{"member_role", MemberRoleName(member.info.role)},
                          {"name", key.name},
                          {"status", why}});
  Fail(std::move(pending), LostError(member));
  options_.on_change();
}

std::vector<OnReply> Members::Drop(const std::string& name,
                                   const absl::Status& end) {
  Connection& connection = connections_.at(name);
  connection.sender->Finish(end);
  std::vector<OnReply> pending;
  for (auto& [id, command] : connection.pending) {
    pending.push_back(std::move(command.on_reply));
  }
  connections_.erase(name);
  return pending;
}

void Members::Fail(std::vector<OnReply> pending, const absl::Status& why) {
  for (const OnReply& on_reply : pending) on_reply(why);
}

std::vector<Member> Members::List(std::optional<MemberRole> role) const {
  MutexLock lock(mutex_);
  return membership_.List(role);
}

std::vector<Member> Members::Workers() const {
  return Staying(MemberRole::kExpertWorker);
}

std::vector<Member> Members::Routers() const {
  return Staying(MemberRole::kRouter);
}

std::vector<Member> Members::Staying(MemberRole role) const {
  std::vector<Member> staying = List(role);
  std::erase_if(staying, [](const Member& member) { return member.leaving; });
  return staying;
}

void Members::SetServed(const std::map<MemberKey, int64_t>& bytes) {
  bool changed = false;
  {
    MutexLock lock(mutex_);
    for (const Member& member : membership_.List()) {
      const auto found = bytes.find(KeyOf(member));
      changed |=
          membership_.SetServed(member.info.id, member.incarnation,
                                found == bytes.end() ? 0 : found->second);
    }
  }
  if (changed) options_.on_change();
}

void Members::Connection::LetGo(const std::string& reason) {
  if (std::exchange(let_go, true)) return;
  v1::JoinResponse message;
  message.mutable_may_leave()->set_reason(reason);
  (void)sender->Send(std::move(message));
}

void Members::LetGo(const MemberKey& key, const std::string& reason) {
  MutexLock lock(mutex_);
  if (Connection* const connection = Find(key)) connection->LetGo(reason);
}

std::vector<v1::Member> Members::Describe() const {
  MutexLock lock(mutex_);
  const MonotonicTime now = options_.clock();
  std::vector<v1::Member> members;
  for (const Member& member : membership_.List()) {
    const Connection& connection = connections_.at(member.info.id);
    v1::Member& out = members.emplace_back();
    out.set_name(member.info.id);
    out.set_role(connection.registered.role());
    out.set_address(member.info.address);
    out.set_build_version(connection.registered.build_version());
    out.set_device(member.info.device);
    if (member.info.role == MemberRole::kExpertWorker) {
      out.set_failure_domain(member.info.failure_domain);
    }
    out.set_silent_ms(absl::ToInt64Milliseconds(now - connection.last_message));
    out.set_joined_ms(absl::ToInt64Milliseconds(now - member.joined));
    *out.mutable_heartbeat() = connection.heartbeat;
  }
  return members;
}

OpenSpan Members::SpanOf(const v1::Command& command) const {
  const int64_t step = StepOf(command);
  const Tracer& tracer = options_.tracer;
  const TraceContext trace =
      tracer.Sampled(StepTrace(SessionOf(command), step));
  const std::string name = ActionName(command);
  return step > 0 ? tracer.Child(trace, name, SpanKind::kClient)
                  : tracer.Root(NewSpan(trace), name, SpanKind::kClient);
}

void Members::Send(const MemberKey& key, v1::Command command, OnReply on_reply,
                   absl::Duration more) {
  absl::Status status;
  {
    MutexLock lock(mutex_);
    Connection* const connection = Find(key);
    if (connection == nullptr) {
      status = absl::UnavailableError(
          absl::StrCat("member '", key.name, "' was lost"));
    } else {
      const uint64_t id = ++last_command_;
      command.set_command_id(id);
      OpenSpan span = SpanOf(command);
      command.set_traceparent(span.context().Traceparent());
      v1::JoinResponse message;
      *message.mutable_command() = std::move(command);
      // First, since the reply may arrive before Send() returns.
      const v1::Command& sent = message.command();
      const MonotonicTime now = options_.clock();
      const MonotonicTime end =
          connection->EndOfLoad(SessionOf(sent), now) + TimeFor(sent) + more;
      connection->pending[id] = {
          .on_reply = on_reply,
          .what = absl::StrCat(ActionName(sent), " of ", SessionOf(sent)),
          .loads = sent.load_session().session(),
          .time = end - now,
          .end = end,
          .span = std::move(span)};
      status = connection->sender->Send(std::move(message));
      if (!status.ok()) connection->pending.erase(id);
    }
  }
  if (!status.ok()) on_reply(status);
}

const Members::Pending* Members::Connection::Overdue(MonotonicTime now) const {
  for (const auto& [id, command] : pending) {
    if (now >= command.end) return &command;
  }
  return nullptr;
}

MonotonicTime Members::Connection::EndOfLoad(const std::string& session,
                                             MonotonicTime now) const {
  MonotonicTime end = now;
  for (const auto& [id, command] : pending) {
    if (!session.empty() && command.loads == session) {
      end = std::max(end, command.end);
    }
  }
  return end;
}

absl::Duration Members::TimeFor(const v1::Command& command) const {
  if (command.has_load_session() || command.has_write_checkpoint()) {
    return options_.load_timeout;
  }
  // A router has one more queued behind its running microbatch.
  return options_.command_timeout +
         2 * absl::Milliseconds(command.assign_microbatch().timeout_ms());
}

void Members::Expire() {
  struct Expiry {
    Member member;
    absl::Status why;
    std::vector<OnReply> pending;
  };
  std::vector<Expiry> expired;
  {
    MutexLock lock(mutex_);
    const MonotonicTime now = options_.clock();
    const auto expire =
        [&](const Member& member, const std::string& why)
            ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
              const absl::Status end = absl::DeadlineExceededError(why);
              expired.push_back({member, end, Drop(member.info.id, end)});
            };
    for (const Member& member : membership_.Expire(now)) {
      expire(member, "the lease ran out");
    }
    for (const Member& member : membership_.List()) {
      const Pending* const overdue =
          connections_.at(member.info.id).Overdue(now);
      if (overdue == nullptr) continue;
      (void)membership_.Leave(member.info.id, member.incarnation);
      expire(member, absl::StrCat(overdue->what, " has not been done in ",
                                  absl::FormatDuration(overdue->time)));
    }
  }
  for (Expiry& expiry : expired) {
    LogWarning("member expired",
               {{"member_role", MemberRoleName(expiry.member.info.role)},
                {"name", expiry.member.info.id},
                {"status", expiry.why}});
    Fail(std::move(expiry.pending),
         absl::UnavailableError(absl::StrCat(LostError(expiry.member).message(),
                                             ": ", expiry.why.message())));
  }
  if (!expired.empty()) options_.on_change();
}

void Members::WatchLeases() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    const MonotonicTime next = membership_.NextExpiry();
    if (next == MonotonicTime::InfiniteFuture()) {
      wake_.Wait(lock);
      continue;
    }
    // Renewals move `next`; checking a few times per lease is enough.
    const absl::Duration wait =
        std::max(next - options_.clock(), options_.lease / 8);
    wake_.WaitFor(lock, absl::ToChronoNanoseconds(wait));
    lock.Unlock();
    Expire();
    lock.Lock();
  }
}

void Members::Shutdown() {
  std::vector<std::pair<Member, std::vector<OnReply>>> dropped;
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    for (const Member& member : membership_.List()) {
      (void)membership_.Leave(member.info.id, member.incarnation);
      connections_.at(member.info.id).LetGo("the coordinator is shutting down");
      dropped.emplace_back(
          member,
          Drop(member.info.id,
               absl::UnavailableError("the coordinator is shutting down")));
    }
    thread.swap(lease_thread_);
    wake_.NotifyOne();
  }
  if (thread.joinable()) thread.join();
  for (auto& [member, replies] : dropped) {
    Fail(std::move(replies), LostError(member));
  }
}

}  // namespace gshard
