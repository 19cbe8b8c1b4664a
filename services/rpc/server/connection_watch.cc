#include "services/rpc/server/connection_watch.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/log_budget.h"
#include "services/rpc/server/connection_socket.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;

// Looks in a row without news after which a connection is left to epoll.
constexpr int kQuietLooks = 8;
// Pause before the next accept if the process has no descriptors left.
constexpr milliseconds kDescriptorWait{4};
constexpr int64_t kLinesPerSecond = 5;

// Values of epoll's data that are no connections.
constexpr uint64_t kWakeId = 0;
constexpr uint64_t kFirstListenerId = 1;
constexpr uint64_t kFirstConnectionId = 1 << 16;

}  // namespace

ConnectionWatch::ConnectionWatch(const MeterLimits& limits)
    : limits_(limits), meter_(limits), next_id_(kFirstConnectionId) {}

ConnectionWatch::~ConnectionWatch() { Stop(); }

void ConnectionWatch::AddMetrics(Metrics& metrics) {
  const auto gauge = [&](const char* name, const char* help,
                         int64_t (ConnectionMeter::*value)() const) {
    metrics.AddCallbackGauge(
        name, help, [watch = weak_from_this(), value]() -> double {
          const auto alive = watch.lock();
          if (alive == nullptr) return 0;
          MutexLock lock(alive->mutex_);
          return static_cast<double>((alive->meter_.*value)());
        });
  };
  gauge("gshard_server_connections", "Open TCP connections.",
        &ConnectionMeter::connections);
  gauge("gshard_server_held_bytes",
        "Bytes received of messages that are not complete, of callers that are "
        "not members.",
        &ConnectionMeter::held);
  refused_connections_ = metrics.AddCounter(
      "gshard_server_connections_refused_total",
      "Connections beyond what the server or one host may have.");
  ended_connections_ = metrics.AddCounter(
      "gshard_server_connections_ended_total",
      "Connections shut down for what the server held for them.");
  late_calls_ = metrics.AddCounter(
      "gshard_server_calls_late_total",
      "Calls ended because their request did not come in time.");
}

absl::Status ConnectionWatch::Start(std::vector<int> listeners,
                                    HandOver hand_over) {
  RaiseDescriptorLimit();  // each connection takes two
  hand_over_ = std::move(hand_over);
  {
    MutexLock lock(mutex_);
    listeners_ = listeners;
  }
  epoll_ = epoll_create1(EPOLL_CLOEXEC);
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_ < 0 || wake_ < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot watch connections: ", strerror(errno)));
  }
  epoll_event event = {.events = EPOLLIN, .data = {.u64 = kWakeId}};
  epoll_ctl(epoll_, EPOLL_CTL_ADD, wake_, &event);
  for (size_t i = 0; i < listeners.size(); ++i) {
    event.data.u64 = kFirstListenerId + i;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, listeners[i], &event);
  }
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

void ConnectionWatch::StopAccepting() {
  MutexLock accept_lock(accept_mutex_);
  MutexLock lock(mutex_);
  for (const int listener : listeners_) close(listener);
  listeners_.clear();
  for (const auto& [id, descriptor] : newcomers_) {
    AbortConnection(descriptor);
    close(descriptor);
  }
  newcomers_.clear();
}

void ConnectionWatch::Stop() {
  StopAccepting();
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) {
    Wake();
    thread_.join();
  }
  std::vector<Id> left;  // the thread has ended, so no more are added
  {
    MutexLock lock(mutex_);
    for (const auto& [id, connection] : connections_) left.push_back(id);
  }
  for (const Id id : left) Close(id);
  for (int* const descriptor : {&epoll_, &wake_}) {
    if (*descriptor >= 0) close(std::exchange(*descriptor, -1));
  }
}

uint64_t ConnectionWatch::Begin(const std::string& peer,
                                const ConnectionMeter::Call& what,
                                grpc_call* call) {
  MutexLock lock(mutex_);
  const Id id = next_id_++;
  ConnectionMeter::Call begun = what;
  const auto found = by_peer_.find(peer);
  if (found != by_peer_.end()) {
    begun.connection = found->second;
    Connection& connection = connections_.at(found->second);
    if (connection.context == nullptr) {
      connection.context = grpc_call_auth_context(call);
      by_context_[connection.context] = found->second;
    }
  }
  meter_.Begin(id, begun, Clock::now());
  if (what.one_message || what.brief) {
    grpc_call_ref(call);
    calls_[id] = call;
  }
  if (asleep_) {
    asleep_ = false;
    Wake();
  }
  return id;
}

grpc_call* ConnectionWatch::Release(Id call) {
  const auto found = calls_.find(call);
  if (found == calls_.end()) return nullptr;
  grpc_call* const released = found->second;
  calls_.erase(found);
  return released;
}

void ConnectionWatch::Tell(Id call, const std::function<void()>& news) {
  grpc_call* without_time = nullptr;
  {
    MutexLock lock(mutex_);
    news();
    if (!meter_.has_time(call)) without_time = Release(call);
  }
  if (without_time != nullptr) grpc_call_unref(without_time);
}

void ConnectionWatch::Deliver(uint64_t call, int64_t bytes) {
  Tell(call, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    meter_.Deliver(call, bytes);
  });
}
void ConnectionWatch::StopReading(uint64_t call) {
  Tell(call, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    meter_.StopReading(call);
  });
}
void ConnectionWatch::End(uint64_t call) {
  Tell(call, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { meter_.End(call); });
}

void ConnectionWatch::Trust(const std::string& peer) {
  MutexLock lock(mutex_);
  const auto found = by_peer_.find(peer);
  if (found == by_peer_.end() || meter_.trusted(found->second)) return;
  meter_.Trust(found->second);
  UnlimitReceiveBuffer(connections_.at(found->second).descriptor);
}

bool ConnectionWatch::Knows(const grpc_auth_context* context) const {
  MutexLock lock(mutex_);
  return listeners_.empty() || by_context_.contains(context);
}

void ConnectionWatch::Refuse(const grpc_auth_context* context, int64_t bytes) {
  MutexLock lock(mutex_);
  const auto found = by_context_.find(context);
  if (found != by_context_.end()) meter_.Refuse(found->second, bytes);
}

int64_t ConnectionWatch::BriefCalls(const grpc_auth_context* context) const {
  MutexLock lock(mutex_);
  const auto found = by_context_.find(context);
  return found == by_context_.end() ? 0 : meter_.brief_calls(found->second);
}

void ConnectionWatch::Run() {
  std::vector<epoll_event> events(64);
  for (;;) {
    const int wait = WaitMillis(Clock::now());
    const int count = epoll_wait(epoll_, events.data(),
                                 static_cast<int>(events.size()), wait);
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<size_t>(i)];
      const Id id = event.data.u64;
      if (id == kWakeId) {
        uint64_t value;
        (void)!read(wake_, &value, sizeof(value));
      } else if (id < kFirstConnectionId) {
        Accept(id - kFirstListenerId);
      } else if ((event.events & (EPOLLHUP | EPOLLERR | EPOLLRDHUP)) != 0) {
        Close(id);
      } else {
        active_[id] = 0;
      }
    }
    if (count > 0) schedule_.OnNews();
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
    }
    const Clock::time_point now = Clock::now();
    BeginNewcomers(now);
    if (!active_.empty() && schedule_.TakeLook(now)) Look(now);
    if (schedule_.TakeSweep(now)) Sweep(now);
    if (schedule_.TakeTrim(now)) malloc_trim(0);
  }
}

int ConnectionWatch::WaitMillis(Clock::time_point now) {
  MutexLock lock(mutex_);
  const Clock::time_point next =
      schedule_.Next({.active = !active_.empty(),
                      .newcomers = !newcomers_.empty(),
                      .calls = meter_.open_calls() > 0},
                     now);
  asleep_ = next == Clock::time_point::max();
  if (asleep_) return -1;
  const auto left = std::chrono::ceil<milliseconds>(next - now);
  return static_cast<int>(std::max<int64_t>(0, left.count()));
}

void ConnectionWatch::Accept(size_t index) {
  static LogBudget& budget = *new LogBudget(kLinesPerSecond);
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  MutexLock accept_lock(accept_mutex_);
  MutexLock lock(mutex_);
  if (index >= listeners_.size()) return;
  const int accepted =
      accept4(listeners_[index], reinterpret_cast<sockaddr*>(&address), &size,
              SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (accepted < 0) {
    const bool none = errno == EAGAIN || errno == ECONNABORTED;
    lock.Unlock();
    if (none || errno == EINTR) return;
    if (const auto left_out = budget.Take()) {
      LogWarning("cannot accept a connection",
                 {{"reason", strerror(errno)}, {"lines_left_out", *left_out}});
    }
    // The connection waits in the kernel until there are free descriptors.
    std::this_thread::sleep_for(kDescriptorWait);
    return;
  }
  const Peer peer = PeerOf(address);
  const Id id = next_id_++;
  const Clock::time_point now = Clock::now();
  absl::Status opened =
      meter_.Open(id, peer.host, now, IsOwnConnection(accepted, address));
  const int duplicate = fcntl(accepted, F_DUPFD_CLOEXEC, 0);
  if (opened.ok() && duplicate < 0) {
    opened = absl::ResourceExhaustedError(strerror(errno));
    meter_.Close(id);
  }
  if (!opened.ok()) {
    lock.Unlock();
    if (duplicate >= 0) close(duplicate);
    close(accepted);
    refused_connections_.Increment();
    if (const auto left_out = budget.Take()) {
      LogWarning("refused a connection", {{"host", peer.host},
                                          {"status", opened},
                                          {"lines_left_out", *left_out}});
    }
    return;
  }
  connections_[id] = {.descriptor = duplicate, .peer = peer.name};
  by_peer_[peer.name] = id;
  const bool begins = meter_.MayBegin(id, now);
  if (!begins) newcomers_[id] = accepted;
  LimitReceiveBuffer(accepted);  // until it is known to be a member's
  Arm(EPOLL_CTL_ADD, id, duplicate, /*news=*/true);
  lock.Unlock();
  if (begins) hand_over_(accepted);
}

void ConnectionWatch::BeginNewcomers(Clock::time_point now) {
  std::vector<int> begin;
  MutexLock accept_lock(accept_mutex_);
  {
    MutexLock lock(mutex_);
    std::erase_if(newcomers_, [&](const auto& newcomer)
                                  ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                                    if (!meter_.MayBegin(newcomer.first, now))
                                      return false;
                                    begin.push_back(newcomer.second);
                                    return true;
                                  });
  }
  for (const int descriptor : begin) hand_over_(descriptor);
}

void ConnectionWatch::Close(Id id) {
  MutexLock lock(mutex_);
  active_.erase(id);
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  const Connection& connection = found->second;
  meter_.Close(id);
  const auto peer = by_peer_.find(connection.peer);
  // Another connection may have the same port by now.
  if (peer != by_peer_.end() && peer->second == id) by_peer_.erase(peer);
  if (connection.context != nullptr) {
    by_context_.erase(connection.context);
    grpc_auth_context_release(connection.context);
  }
  if (epoll_ >= 0) {
    epoll_ctl(epoll_, EPOLL_CTL_DEL, connection.descriptor, nullptr);
  }
  close(connection.descriptor);
  connections_.erase(found);
  const auto newcomer = newcomers_.find(id);
  if (newcomer == newcomers_.end()) return;
  close(newcomer->second);
  newcomers_.erase(newcomer);
}

bool ConnectionWatch::LookAt(Id id, Clock::time_point now) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || meter_.trusted(id)) return false;
  return meter_.Receive(id, BytesReceived(found->second.descriptor), now);
}

void ConnectionWatch::Look(Clock::time_point now) {
  for (auto at = active_.begin(); at != active_.end();) {
    MutexLock lock(mutex_);
    at->second = LookAt(at->first, now) ? 0 : at->second + 1;
    if (at->second < kQuietLooks) {
      ++at;
      continue;
    }
    const auto found = connections_.find(at->first);
    if (found != connections_.end()) {
      Arm(EPOLL_CTL_MOD, at->first, found->second.descriptor,
          !meter_.trusted(at->first));
    }
    at = active_.erase(at);
  }
  Judge(now);
}

void ConnectionWatch::Sweep(Clock::time_point now) {
  {
    MutexLock lock(mutex_);
    for (const auto& [id, connection] : connections_) {
      if (active_.count(id) > 0 || !LookAt(id, now)) continue;
      active_[id] = 0;
      schedule_.OnNews();
    }
  }
  Judge(now);
}

void ConnectionWatch::Judge(Clock::time_point now) {
  static LogBudget& budget = *new LogBudget(kLinesPerSecond);
  ConnectionMeter::Verdict verdict;
  std::vector<grpc_call*> late;
  {
    MutexLock lock(mutex_);
    schedule_.SetBusy(meter_.held() > limits_.held_bytes / 4);
    verdict = meter_.Judge(now);
    for (const auto& ended : verdict.connections) {
      const auto found = connections_.find(ended.connection);
      if (found == connections_.end()) continue;
      AbortConnection(found->second.descriptor);
    }
    for (const Id call : verdict.late) {
      grpc_call* const ended = Release(call);
      if (ended != nullptr) late.push_back(ended);
    }
  }
  for (const auto& ended : verdict.connections) {
    schedule_.OnShutdown(now);
    ended_connections_.Increment();
    if (const auto left_out = budget.Take()) {
      LogWarning("ended a connection for what it has sent of messages",
                 {{"host", ended.host},
                  {"bytes", ended.held},
                  {"allowed", ended.allowed},
                  {"lines_left_out", *left_out}});
    }
  }
  // Without the lock: gRPC may report the end of the call on this thread.
  for (grpc_call* const call : late) {
    late_calls_.Increment();
    grpc_call_cancel_with_status(
        call, GRPC_STATUS_DEADLINE_EXCEEDED,
        "the request did not come, or its answer was not taken, in "
        "time",
        nullptr);
    grpc_call_unref(call);
  }
}

void ConnectionWatch::Arm(int operation, Id id, int descriptor,
                          bool news) const {
  epoll_event event = {.events = EPOLLONESHOT, .data = {.u64 = id}};
  if (news) event.events |= EPOLLIN;
  if (newcomers_.contains(id)) event.events |= EPOLLRDHUP;
  epoll_ctl(epoll_, operation, descriptor, &event);
}

void ConnectionWatch::Wake() const {
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
}

}  // namespace gshard
