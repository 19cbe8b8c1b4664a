#include "services/rpc/server/connection_meter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace gshard {
namespace {

// The overhead of a message: HTTP/2's and TLS's headers, and the client's
// window updates and pings while it receives the answer.
int64_t BytesAround(int64_t message) { return 128 + message / 64; }

}  // namespace

absl::Status ConnectionMeter::Open(Id connection, const std::string& name,
                                   Time now, bool own) {
  if (connections() >= limits_.connections + (own ? kOwnConnections : 0)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("expected at most ", limits_.connections, " connections"));
  }
  if (hosts_.size() > connections_.size()) {
    std::erase_if(hosts_, [now](const auto& entry) {
      return entry.second.connections == 0 &&
             entry.second.mistrusted_until <= now;
    });
  }
  Host& host = hosts_[name];
  if (host.connections >= limits_.peer_connections) {
    return absl::ResourceExhaustedError(
        absl::StrCat("expected at most ", limits_.peer_connections,
                     " connections from one host"));
  }
  ++host.connections;
  Connection& opened = connections_[connection];
  opened.host = name;
  opened.looked_at = now;
  return absl::OkStatus();
}

bool ConnectionMeter::MayBegin(Id connection, Time now) {
  Host& host = hosts_.at(connections_.at(connection).host);
  if (host.mistrusted_until <= now) return true;
  if (host.next > now) return false;
  host.next = now + kPause;
  return true;
}

void ConnectionMeter::Close(Id connection) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  Forget(found->second);
  --hosts_.at(found->second.host).connections;
  connections_.erase(found);
}

void ConnectionMeter::Begin(Id call, const Call& what, Time now) {
  calls_[call] = {.what = what};
  if (what.one_message || what.brief) begun_[call] = now;
  const auto leaving = leaving_.find(what.connection);
  if (leaving != leaving_.end()) ++leaving->second.open;
  const auto found = connections_.find(what.connection);
  if (found == connections_.end()) return;
  Connection& connection = found->second;
  connection.happened = true;
  connection.credit += what.header_bytes;
  connection.allowed += 2 * what.max_message;
  ++connection.open;
  connection.streams += what.one_message ? 0 : 1;
  connection.brief += what.brief ? 1 : 0;
}

void ConnectionMeter::Deliver(Id call, int64_t bytes) {
  const auto found = calls_.find(call);
  if (found == calls_.end()) return;
  const auto connection = connections_.find(found->second.what.connection);
  if (connection != connections_.end()) {
    connection->second.happened = true;
    connection->second.credit += bytes + BytesAround(bytes);
  }
  if (found->second.what.one_message) StopReading(call);
}

void ConnectionMeter::StopReading(Id call) {
  const auto found = calls_.find(call);
  if (found == calls_.end() || !std::exchange(found->second.reading, false)) {
    return;
  }
  const Call& what = found->second.what;
  if (!what.brief) begun_.erase(call);
  const auto connection = connections_.find(what.connection);
  if (connection == connections_.end()) return;
  connection->second.happened = true;
  connection->second.allowed -= 2 * what.max_message;
}

void ConnectionMeter::End(Id call) {
  StopReading(call);
  const auto found = calls_.find(call);
  if (found == calls_.end()) return;
  const Call what = found->second.what;
  calls_.erase(found);
  begun_.erase(call);
  const auto leaving = leaving_.find(what.connection);
  if (leaving != leaving_.end() && --leaving->second.open == 0) {
    leaving_bytes_ -= leaving->second.held;
    leaving_.erase(leaving);
  }
  const auto connection = connections_.find(what.connection);
  if (connection == connections_.end()) return;
  connection->second.happened = true;
  --connection->second.open;
  connection->second.streams -= what.one_message ? 0 : 1;
  connection->second.brief -= what.brief ? 1 : 0;
}

void ConnectionMeter::Refuse(Id connection, int64_t bytes) {
  const auto found = connections_.find(connection);
  if (found == connections_.end()) return;
  found->second.happened = true;
  found->second.credit += std::min(bytes, found->second.held);
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
  // Limited to what was held before: new bytes cannot be forgiven for past
  // time.
  connection.credit +=
      std::min(connection.held,
               static_cast<int64_t>(passed.count() * kForgivenPerSecond));
  // A call or message completes any unfinished headers, since HTTP/2 allows no
  // other frames between theirs. So nothing is held now, unless a call is open:
  // data for a call whose answer is not read are kept, too.
  if (connection.happened && connection.open == 0) connection.credit = bytes;
  // Nothing is forgiven in advance.
  connection.credit = std::min(connection.credit, bytes);
  connection.happened = false;
  SetHeld(connection,
          std::max<int64_t>(0, bytes - connection.credit -
                                   kStreamWindow * connection.streams));
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
    hosts_.at(connection.host).mistrusted_until = now + kMistrust;
    if (connection.open > 0) {
      leaving_[id] = {connection.host, connection.held, connection.open};
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
    // Spare connections that hold little while ended ones still free memory.
    if (held(largest) <= kSlack && held_ <= limits_.held_bytes) break;
    end(largest);
  }
  for (const auto& [id, begun] : begun_) {
    if (now - begun <= limits_.request_time) break;  // ordered by time
    verdict.late.push_back(id);
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

int64_t ConnectionMeter::brief_calls(Id connection) const {
  const auto found = connections_.find(connection);
  return found == connections_.end() ? 0 : found->second.brief;
}

ConnectionMeter::Id ConnectionMeter::Largest() const {
  struct Holding {
    int64_t held = 0;
    Id largest = 0;  // its largest connection; 0: none holds anything
    int64_t of_largest = 0;
  };
  std::map<std::string, Holding> hosts;
  for (const auto& [id, connection] : connections_) {
    if (connection.held == 0) continue;
    Holding& host = hosts[connection.host];
    host.held += connection.held;
    if (connection.held <= host.of_largest) continue;
    host.largest = id;
    host.of_largest = connection.held;
  }
  for (const auto& [id, leaving] : leaving_) {
    hosts[leaving.host].held += leaving.held;
  }
  // If a host has only ended connections, that is no reason to end another
  // host's, as long as the open connections by themselves hold less than the
  // limit.
  const bool may_wait = held_ <= limits_.held_bytes;
  Id largest = 0;
  int64_t most = -1;
  for (const auto& [name, host] : hosts) {
    if (host.held <= most || (host.largest == 0 && !may_wait)) continue;
    largest = host.largest;
    most = host.held;
  }
  return largest;
}

}  // namespace gshard
