// ConnectionMeter: accounts for the bytes of incomplete messages that a server
// holds for clients, and decides which connections to close when there are too
// many.
//
// gRPC 1.51 checks the size of a message only when it is complete, and opens
// the flow-control window as wide as the message claims to be. So bytes are
// counted at the sockets: bytes that were received on a connection and not yet
// delivered as a message are held. That includes headers and the overhead of
// HTTP/2 and TLS; they are forgiven (no longer counted) as calls begin and
// messages arrive, so that they never accumulate.
//
// Members' connections, on which a call was admitted that only a member may
// make, are not metered: their messages are large and numerous.
//
// Pure: times and counts are passed in. Not thread-safe.

#ifndef SERVICES_RPC_SERVER_CONNECTION_METER_H_
#define SERVICES_RPC_SERVER_CONNECTION_METER_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace gshard {

struct MeterLimits {
  // Maximum connections, in total and from one host. At least 1.
  int64_t connections = 4096;
  int64_t peer_connections = 256;

  // Maximum bytes held for all metered connections and for ended ones whose
  // memory gRPC has not released yet. Beyond it, the host that holds the most
  // loses its connection that holds the most. At least 64 KiB.
  int64_t held_bytes = int64_t{16} << 20;

  // Maximum time from the start of a call to the end of its request, for calls
  // whose request is one message. Above 0.
  std::chrono::milliseconds request_time{20'000};
};

class ConnectionMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Ids of connections and of calls, chosen by the caller; each is used once.
  using Id = uint64_t;

  // A connection may hold this much plus, for each message that it may be
  // sending, twice that message's limit, so that a slightly too large message
  // gets an error instead. It may exceed this for kPatience, since calls may
  // begin after their messages have arrived.
  static constexpr int64_t kSlack = 96 << 10;
  static constexpr std::chrono::milliseconds kPatience{500};
  // Bytes forgiven to each connection per second, for pings and window updates.
  static constexpr int64_t kForgivenPerSecond = 1024;
  // What a stream may send before anything is read from it.
  static constexpr int64_t kStreamWindow = 64 << 10;

  // For this long after a connection was ended, new ones of the same host begin
  // one at a time, with a pause in between, since everything that each may send
  // before it is ended, too, has to be read.
  static constexpr std::chrono::milliseconds kMistrust{5'000};
  static constexpr std::chrono::milliseconds kPause{100};

  explicit ConnectionMeter(const MeterLimits& limits) : limits_(limits) {}

  // So many more may be `own`: probes ask whether the process lives, not
  // whether it has room, and would have it restarted with all of its
  // connections.
  static constexpr int64_t kOwnConnections = 8;

  // Adds a connection from `host`, which is this machine if it is `own`.
  // Errors: ResourceExhausted if there are too many; the connection is then not
  // added.
  absl::Status Open(Id connection, const std::string& host, Time now,
                    bool own = false);
  // Whether the server may begin to read from the connection; call until true.
  // A connection that holds too much for too long is ended even while it waits.
  bool MayBegin(Id connection, Time now);
  void Close(Id connection);

  struct Call {
    Id connection = 0;         // if not open, only the call's time is checked
    int64_t max_message = 0;   // bytes
    int64_t header_bytes = 0;  // bytes to forgive
    // False: any number of messages, at any time. kStreamWindow bytes of unread
    // messages are then not counted as held.
    bool one_message = false;
    bool brief = false;  // the time limit covers the whole call
  };
  // A call has begun, and its first message may arrive.
  void Begin(Id call, const Call& what, Time now);
  // A message of the call was delivered.
  void Deliver(Id call, int64_t bytes);
  // Nothing more will be delivered for the call. May be called more than once.
  void StopReading(Id call);
  // The call is over and holds no memory. May be called more than once.
  void End(Id call);

  // A call on the connection was refused, so its data are not kept: forgives up
  // to `bytes` of what is held.
  void Refuse(Id connection, int64_t bytes);

  // The connection belongs to a member: it is metered no longer.
  void Trust(Id connection);

  // `bytes` is the total received on the connection. Call Deliver() first for
  // all messages that were delivered. Returns whether anything has happened
  // since the last call.
  bool Receive(Id connection, int64_t bytes, Time now);

  struct Verdict {
    struct Ended {
      Id connection;
      std::string host;
      int64_t held;
      int64_t allowed;
    };
    std::vector<Ended> connections;  // to be closed; no longer metered
    std::vector<Id> late;            // calls with an overdue request; now ended
  };
  Verdict Judge(Time now);

  bool trusted(Id connection) const;
  int64_t held(Id connection) const;
  // Open brief calls.
  int64_t brief_calls(Id connection) const;
  int64_t held() const { return held_; }
  int64_t connections() const {
    return static_cast<int64_t>(connections_.size());
  }
  bool has_time(Id call) const { return begun_.contains(call); }
  int64_t open_calls() const { return static_cast<int64_t>(calls_.size()); }

 private:
  struct Connection {
    std::string host;
    Time looked_at;
    int64_t received = 0;
    int64_t credit = 0;  // bytes of `received` that are not held
    int64_t held = 0;    // as of the last Receive()
    int64_t allowed = kSlack;
    std::optional<Time> over_since;  // since when held > allowed
    int64_t open = 0;                // open calls
    int64_t streams = 0;             // those of any number of messages
    int64_t brief = 0;               // the brief ones
    bool happened = false;  // a call or message since the last Receive()
    bool metered = true;
  };
  struct Host {
    int64_t connections = 0;
    Time mistrusted_until = {};
    Time next = {};  // while mistrusted: when the next may begin
  };
  // A connection that was ended, until its calls are over.
  struct Leaving {
    std::string host;
    int64_t held;
    int64_t open;
  };
  struct OpenCall {
    Call what;
    bool reading = true;  // more messages may arrive
  };

  void SetHeld(Connection& connection, int64_t held);
  void Forget(Connection& connection);
  // The connection that holds the most, of the host that holds the most; 0 if
  // that host has only connections that were ended already.
  Id Largest() const;

  const MeterLimits limits_;
  std::map<Id, Connection> connections_;
  std::map<std::string, Host> hosts_;
  std::map<Id, OpenCall> calls_;
  std::map<Id, Time> begun_;  // calls with a time limit; ordered by time, too
  std::map<Id, Leaving> leaving_;
  int64_t held_ = 0;
  int64_t leaving_bytes_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_CONNECTION_METER_H_
