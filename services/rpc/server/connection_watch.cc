#include "services/rpc/server/connection_watch.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <malloc.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/log_budget.h"

namespace gshard {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLookInterval{4};
constexpr milliseconds kBusyLookInterval{1};  // while much is held
// epoll does not tell of what gRPC has read before it is asked; so all
// connections are looked at now and then for as long as there is news of any.
constexpr milliseconds kSweepInterval{250};
constexpr milliseconds kNewcomerInterval{10};  // while some may not begin yet
constexpr int kIdleSweeps = 8;
// Looks without news after which a connection is left to epoll.
constexpr int kQuietLooks = 8;
// After the end of a connection what it held is given back, a few times: gRPC
// frees it at its leisure, and malloc would keep it.
constexpr milliseconds kTrimInterval{100};
constexpr milliseconds kTrimTime{300};
constexpr int64_t kLinesPerSecond = 5;

// What epoll's data say besides connections.
constexpr uint64_t kWakeId = 0;
constexpr uint64_t kFirstListenerId = 1;
constexpr uint64_t kFirstConnectionId = 1 << 16;

struct Peer {
  std::string host;
  std::string name;  // as grpc::ServerContext::peer() says
};

Peer PeerOf(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return {text, absl::StrCat("ipv4:", text, ":", ntohs(v4.sin_port))};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  const int port = ntohs(v6.sin6_port);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text, sizeof(text));
    return {text, absl::StrCat("ipv4:", text, ":", port)};
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  std::string host = text;
  // One customer has at least 64 bits of them.
  in6_addr network = v6.sin6_addr;
  std::memset(&network.s6_addr[8], 0, 8);
  inet_ntop(AF_INET6, &network, text, sizeof(text));
  if (v6.sin6_scope_id != 0) {
    absl::StrAppend(&host, "%25", v6.sin6_scope_id);
  }
  return {text, absl::StrCat("ipv6:%5B", host, "%5D:", port)};
}

// Ends a connection, and forgets what the kernel has of it: after shutdown()
// gRPC would still read that.
void Abort(int descriptor) {
  const sockaddr nobody = {.sa_family = AF_UNSPEC, .sa_data = {}};
  if (connect(descriptor, &nobody, sizeof(nobody)) != 0) {
    shutdown(descriptor, SHUT_RDWR);
  }
}

// What the kernel receives ahead of gRPC. It would let that grow to megabytes,
// which gRPC takes at once while nobody looks; strangers have less, until they
// are known for members.
void LimitBuffer(int descriptor) {
  constexpr int kBytes = 128 << 10;
  (void)setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &kBytes, sizeof(kBytes));
}
void UnlimitBuffer(int descriptor) {
  constexpr int kUnlocked = 0;  // the kernel chooses again
  (void)setsockopt(descriptor, SOL_SOCKET, SO_BUF_LOCK, &kUnlocked,
                   sizeof(kUnlocked));
}

// A connection takes two descriptors.
void AllowDescriptors() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

// That ever came.
int64_t BytesReceived(int descriptor) {
  tcp_info info = {};
  socklen_t size = sizeof(info);
  if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
    return 0;
  }
  return static_cast<int64_t>(info.tcpi_bytes_received);
}

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
  AllowDescriptors();
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
    Abort(descriptor);
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
  std::vector<Id> left;  // no more come
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
  UnlimitBuffer(connections_.at(found->second).descriptor);
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
    if (count > 0) idle_sweeps_ = 0;
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
    }
    const Clock::time_point now = Clock::now();
    BeginNewcomers(now);
    if (now >= next_look_ && !active_.empty()) Look(now);
    if (now >= next_sweep_) Sweep(now);
    if (now >= trim_at_) {
      malloc_trim(0);
      trim_at_ = now - last_end_ < kTrimTime ? now + kTrimInterval
                                             : Clock::time_point::max();
    }
  }
}

int ConnectionWatch::WaitMillis(Clock::time_point now) {
  MutexLock lock(mutex_);
  Clock::time_point next = trim_at_;
  if (!newcomers_.empty()) next = std::min(next, now + kNewcomerInterval);
  if (!active_.empty()) next = std::min(next, next_look_);
  if (idle_sweeps_ < kIdleSweeps || meter_.open_calls() > 0) {
    next = std::min(next, next_sweep_);
  }
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
    // The connection waits in the kernel until there are descriptors again.
    std::this_thread::sleep_for(kLookInterval);
    return;
  }
  const Peer peer = PeerOf(address);
  const Id id = next_id_++;
  const Clock::time_point now = Clock::now();
  absl::Status opened = meter_.Open(id, peer.host, now);
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
  LimitBuffer(accepted);
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
  // The port may be another connection's by now.
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
  next_look_ = now + look_interval_;
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
  next_sweep_ = now + kSweepInterval;
  ++idle_sweeps_;
  {
    MutexLock lock(mutex_);
    for (const auto& [id, connection] : connections_) {
      if (active_.count(id) > 0 || !LookAt(id, now)) continue;
      active_[id] = 0;
      idle_sweeps_ = 0;
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
    look_interval_ = meter_.held() > limits_.held_bytes / 4 ? kBusyLookInterval
                                                            : kLookInterval;
    verdict = meter_.Judge(now);
    for (const auto& ended : verdict.connections) {
      const auto found = connections_.find(ended.connection);
      if (found == connections_.end()) continue;
      Abort(found->second.descriptor);
    }
    for (const Id call : verdict.late) {
      grpc_call* const ended = Release(call);
      if (ended != nullptr) late.push_back(ended);
    }
  }
  for (const auto& ended : verdict.connections) {
    last_end_ = now;
    trim_at_ = std::min(trim_at_, now + kTrimInterval);
    ended_connections_.Increment();
    if (const auto left_out = budget.Take()) {
      LogWarning("ended a connection for what it has sent of messages",
                 {{"host", ended.host},
                  {"bytes", ended.held},
                  {"allowed", ended.allowed},
                  {"lines_left_out", *left_out}});
    }
  }
  // Not with the lock: gRPC may tell of the call's end on this thread.
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
