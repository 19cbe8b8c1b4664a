// ConnectionMeter: accounts for the bytes of incomplete messages that a server
// holds for clients, and decides which connections to close when they are too
// many.
//
// gRPC 1.51 checks the size of a message only when it is complete, and opens
// the window as wide as the message claims to be. So bytes are counted at the
// sockets: bytes received on a connection and not delivered as a message are
// held. Headers and the overhead of HTTP/2 and TLS are added to that; they are
// forgiven as calls begin and messages arrive, so that they never accumulate.
//
// Connections of members, over which a call was let through that only a member
// may make, are not metered: their messages are large and many.
//
// Pure: time and counts are passed in. Not thread-safe.

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
  // Connections at a time, and those from one host. At least 1.
  int64_t connections = 4096;
  int64_t peer_connections = 256;

  // Bytes held for all that are metered, and still for those that were ended:
  // gRPC takes its time to let go. When it is more, the connection that holds
  // most ends, of the host that holds most. At least 64 KiB.
  int64_t held_bytes = int64_t{16} << 20;

  // From the start of a call to the end of its request, if that is one message.
  // Above 0.
  std::chrono::milliseconds request_time{20'000};
};

class ConnectionMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Numbers that the caller gives, of connections and of calls; each once.
  using Id = uint64_t;

  // A connection may hold this much and, for each message that it may be
  // sending, twice that message's limit, so that a slightly too large message
  // gets an error instead. It may hold more for a moment, while calls begin
  // whose messages have already arrived.
  static constexpr int64_t kSlack = 96 << 10;
  static constexpr std::chrono::milliseconds kPatience{500};
  // Forgiven to each connection, for pings and windows.
  static constexpr int64_t kForgivenPerSecond = 1024;
  // What a stream may send before anybody reads it.
  static constexpr int64_t kStreamWindow = 64 << 10;

  // For this long after a connection was closed, new ones of its host begin one
  // at a time, with a pause between them, since the bytes that each may send
  // before it is closed, too, have to be read.
  static constexpr std::chrono::milliseconds kMistrust{5'000};
  static constexpr std::chrono::milliseconds kPause{100};

  explicit ConnectionMeter(const MeterLimits& limits) : limits_(limits) {}

  // A connection from `host`. Errors: ResourceExhausted if there are too many;
  // it is not counted then.
  absl::Status Open(Id connection, const std::string& host, Time now);
  // Whether what it sends may be read from now on, if it has not begun yet. One
  // that waits too long with more than it may send is ended as any other.
  bool MayBegin(Id connection, Time now);
  void Close(Id connection);

  struct Call {
    Id connection = 0;  // one that is not open: its calls have a time only
    int64_t max_message = 0;   // bytes
    int64_t header_bytes = 0;  // to forgive
    // Else any number, at any time: of those that nobody reads yet a window is
    // not held against it.
    bool one_message = false;
    bool brief = false;  // its time is one for all of the call
  };
  // A call has begun, and its first message may come.
  void Begin(Id call, const Call& what, Time now);
  // A message of it was handed on.
  void Deliver(Id call, int64_t bytes);
  // Nothing more will be handed on. May be called more than once.
  void StopReading(Id call);
  // It is over, and nothing of it is left. May be called more than once.
  void End(Id call);

  // A call on the connection was refused, so what it sends is not kept: so many
  // bytes of it are forgiven.
  void Refuse(Id connection, int64_t bytes);

  // The connection is a member's.
  void Trust(Id connection);

  // All bytes that ever came on the connection. Call Deliver() before for all
  // that was handed on. Returns whether anything has happened since last time.
  bool Receive(Id connection, int64_t bytes, Time now);

  struct Verdict {
    struct Ended {
      Id connection;
      std::string host;
      int64_t held;
      int64_t allowed;
    };
    std::vector<Ended> connections;  // held too much; counted no more
    std::vector<Id> late;  // calls without a request; Begin() is undone
  };
  Verdict Judge(Time now);

  bool trusted(Id connection) const;
  int64_t held(Id connection) const;
  // Brief calls that are not over.
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
    int64_t held = 0;    // as of the last look
    int64_t allowed = kSlack;
    std::optional<Time> over_since;  // held more than allowed
    int64_t open = 0;                // calls that are not over
    int64_t streams = 0;             // of them, that may send any number
    int64_t brief = 0;               // of them
    bool happened = false;           // since the last look: a call, a message
    bool metered = true;
  };
  struct Host {
    int64_t connections = 0;
    Time mistrusted_until = {};
    Time next = {};  // until then, when another may begin
  };
  // A connection that was ended, until its calls are.
  struct Leaving {
    std::string host;
    int64_t held;
    int64_t open;
  };
  struct OpenCall {
    Call what;
    bool reading = true;  // messages may come
  };

  void SetHeld(Connection& connection, int64_t held);
  void Forget(Connection& connection);
  // The connection that holds most of the host that holds most; 0: it has none
  // that holds anything.
  Id Largest() const;

  const MeterLimits limits_;
  std::map<Id, Connection> connections_;
  std::map<std::string, Host> hosts_;
  std::map<Id, OpenCall> calls_;
  std::map<Id, Time> begun_;  // of those that have a time; grows with it
  std::map<Id, Leaving> leaving_;
  int64_t held_ = 0;
  int64_t leaving_bytes_ = 0;
};

}  // namespace gshard

#endif  // SERVICES_RPC_SERVER_CONNECTION_METER_H_
