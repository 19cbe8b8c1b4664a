#include "services/rpc/connection_meter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

// What comes with a message besides it: HTTP/2's and TLS's headers, and the
// client's windows and pings for the answer.
int64_t BytesAround(int64_t message) { return 128 + message / 64; }

}  // namespace

absl::Status ConnectionMeter::Open(Id connection, const std::string& host,
                                   Time now) {
  if (connections() >= limits_.connections) {
    return absl::ResourceExhaustedError(
        absl::StrCat("expected at most ", limits_.connections, " connections"));
  }
  int64_t& of_host = hosts_[host];
  if (of_host >= limits_.peer_connections) {
    return absl::ResourceExhaustedError(
        absl::StrCat("expected at most ", limits_.peer_connections,
                     " connections from one host"));
  }
  ++of_host;
  Connection& opened = connections_[connection];
  opened.host = host;
  opened.looked_at = now;
  return absl::OkStatus();
}

void ConnectionMeter::Close(Id connection) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  Forget(found->second);
  const auto host = hosts_.find(found->second.host);
  if (--host->second == 0) hosts_.erase(host);
  connections_.erase(found);
}

void ConnectionMeter::Begin(Id call, const Call& what, Time now) {
  calls_[call] = {.what = what, .begun = now};
  const auto found = connections_.find(what.connection);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  connection.happened = true;
  connection.credit += what.header_bytes;
  connection.allowed += 2 * what.max_message;
  ++connection.awaited;
}

void ConnectionMeter::Deliver(Id call, int64_t bytes) {
  const auto found = calls_.find(call);
  if (found == calls_.end()) return;
  const auto connection = connections_.find(found->second.what.connection);
  if (connection != connections_.end()) {
    connection->second.happened = true;
    connection->second.credit += bytes + BytesAround(bytes);
  }
  if (found->second.what.one_message) End(call);
}

void ConnectionMeter::End(Id call) {
  const auto found = calls_.find(call);
  if (found == calls_.end()) return;
  const Call what = found->second.what;
  calls_.erase(found);
  const auto leaving = leaving_.find(what.connection);
  if (leaving != leaving_.end() && --leaving->second.awaited == 0) {
    leaving_bytes_ -= leaving->second.held;
    leaving_.erase(leaving);
  }
  const auto connection = connections_.find(what.connection);
  if (connection == connections_.end()) return;
  connection->second.happened = true;
  connection->second.allowed -= 2 * what.max_message;
  --connection->second.awaited;
}

void ConnectionMeter::Refuse(Id connection) {
  const auto found = connections_.find(connection);
  if (found != connections_.end()) found->second.happened = true;
}

void ConnectionMeter::Trust(Id connection) {
  const auto found = connections_.find(connection);
  if (found != connections_.end()) Forget(found->second);
}

bool ConnectionMeter::Receive(Id id, int64_t bytes, Time now) {
  const auto found = connections_.find(id);
  if (found == connections_.end() || !found->second.metered) return false;
  Connection& connection = found->second;
  const bool happened = connection.happened || bytes != connection.received;
  const std::chrono::duration<double> passed = now - connection.looked_at;
  connection.looked_at = now;
  connection.received = bytes;
  // What comes now was not there to be forgiven.
  connection.credit +=
      std::min(connection.held,
               static_cast<int64_t>(passed.count() * kForgivenPerSecond));
  // A call or message ends what could be unfinished headers: HTTP/2 lets
  // nothing come between their frames. Then nothing is left to be held.
  if (connection.happened && connection.awaited == 0) connection.credit = bytes;
  // Nobody forgives in advance.
  connection.credit = std::min(connection.credit, bytes);
  connection.happened = false;
  SetHeld(connection, bytes - connection.credit);
  return happened;
}

ConnectionMeter::Verdict ConnectionMeter::Judge(Time now) {
  Verdict verdict;
  const auto end = [&](Id id) {
    Connection& connection = connections_.at(id);
    verdict.connections.push_back({.connection = id,
                                   .host = connection.host,
                                   .held = connection.held,
                                   .allowed = connection.allowed});
    if (connection.awaited > 0) {
      leaving_[id] = {connection.host, connection.held, connection.awaited};
      leaving_bytes_ += connection.held;
    }
    Forget(connection);
  };
  for (auto& [id, connection] : connections_) {
    if (connection.held <= connection.allowed) {
      connection.over_since.reset();
    } else if (!connection.over_since.has_value()) {
      connection.over_since = now;
    } else if (now - *connection.over_since > kPatience) {
      end(id);
    }
  }
  while (held_ + leaving_bytes_ > limits_.held_bytes) {
    const Id largest = Largest();
    // What is little is let be while others leave.
    if (held(largest) <= kSlack && held_ <= limits_.held_bytes) break;
    end(largest);
  }
  for (const auto& [id, call] : calls_) {
    if (now - call.begun <= limits_.request_time) break;  // the oldest first
    if (call.what.one_message) verdict.late.push_back(id);
  }
  for (const Id id : verdict.late) End(id);
  return verdict;
}

bool ConnectionMeter::trusted(Id connection) const {
  const auto found = connections_.find(connection);
  return found != connections_.end() && !found->second.metered;
}

int64_t ConnectionMeter::held(Id connection) const {
  const auto found = connections_.find(connection);
  return found == connections_.end() ? 0 : found->second.held;
}

void ConnectionMeter::SetHeld(Connection& connection, int64_t held) {
  held_ += held - connection.held;
  connection.held = held;
}

void ConnectionMeter::Forget(Connection& connection) {
  SetHeld(connection, 0);
  connection.metered = false;
}

ConnectionMeter::Id ConnectionMeter::Largest() const {
  std::map<std::string, int64_t> by_host;
  for (const auto& [id, connection] : connections_) {
    by_host[connection.host] += connection.held;
  }
  for (const auto& [id, leaving] : leaving_) {
    by_host[leaving.host] += leaving.held;
  }
  // A host that has nothing but what leaves is no reason to end another's, as
  // long as what is held is not too much by itself.
  const bool may_wait = held_ <= limits_.held_bytes;
  Id largest = 0;
  int64_t of_host = -1;
  for (const auto& [host, held] : by_host) {
    if (held <= of_host) continue;
    Id of_this = 0;
    int64_t most_of_this = 0;
    for (const auto& [id, connection] : connections_) {
      if (connection.host != host || connection.held <= most_of_this) continue;
      of_this = id;
      most_of_this = connection.held;
    }
    if (of_this == 0 && !may_wait) continue;
    largest = of_this;
    of_host = held;
  }
  return largest;
}

}  // namespace gshard
