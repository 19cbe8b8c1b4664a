// RawHttp2: an HTTP/2 client that works frame by frame, to send servers what no
// library would: messages that are declared and never finished, headers without
// end. From the server it handles only what it needs to continue: windows,
// settings, pings and ends of streams.
//
//   ASSIGN_OR_RETURN(auto client, RawHttp2::Connect("127.0.0.1:7400"));
//   client->BeginCall("/grpc.health.v1.Health/Check");
//   client->SendMessage(/*stream=*/1, /*declared=*/60 << 20, /*sent=*/1 << 20);
//   while (client->Step()) client->Wait(milliseconds(10));

#ifndef TESTS_TESTING_RAW_HTTP2_H_
#define TESTS_TESTING_RAW_HTTP2_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace gshard {

// One connection, without TLS. Not thread-safe. Only Wait() and Connect()
// block.
class RawHttp2 {
 public:
  // Connects to "host:port" with a numeric host, or to "unix:/path". `from`, if
  // not empty: from this address of the machine, say 127.0.0.2. Errors:
  // InvalidArgument, Unavailable.
  static absl::StatusOr<std::unique_ptr<RawHttp2>> Connect(
      const std::string& address, const std::string& from = "");

  ~RawHttp2();
  RawHttp2(const RawHttp2&) = delete;
  RawHttp2& operator=(const RawHttp2&) = delete;

  // Begins a call of "/package.Service/Method", with a bearer token if one is
  // given. Returns its stream, 1, 3, 5 and so on.
  uint32_t BeginCall(absl::string_view method, absl::string_view token = "");

  // Declares a message of `declared` bytes and sends the first `sent` of them,
  // zeros, as the server's windows allow.
  void SendMessage(uint32_t stream, uint32_t declared, uint32_t sent);

  // Sends the bytes unchanged, ahead of data that waits for windows.
  void SendBytes(absl::string_view bytes);

  // The bytes of a frame, for SendBytes().
  static std::string Frame(uint8_t type, uint8_t flags, uint32_t stream,
                           absl::string_view payload);

  // Sends and receives what is possible without waiting. False: the server has
  // ended the connection.
  bool Step();

  // Waits until Step() has something to do.
  void Wait(std::chrono::milliseconds most) const;

  // Bytes of messages that the server's machine has acknowledged or that are on
  // the network; bytes in this machine's socket do not count.
  int64_t bytes_taken() const;
  // Bytes of messages that wait for windows or the socket.
  int64_t bytes_waiting() const;
  // The number of streams begun.
  int streams() const { return static_cast<int>(streams_.size()); }
  int streams_ended() const;
  // Whether a part of a message has come on the stream.
  bool answered(uint32_t stream) const;
  // The gRPC code that a stream ended with; -1: none (yet).
  int status_of(uint32_t stream) const;
  bool ended() const { return ended_; }

 private:
  struct Stream {
    int64_t window = 0;
    int64_t unsent = 0;  // of messages, prefixes included
    std::string prefix;  // sent before zeros
    bool answered = false;
    bool ended = false;
    int status = -1;
  };

  explicit RawHttp2(int socket);

  void QueueData();
  void Take(uint8_t type, uint8_t flags, uint32_t stream,
            absl::string_view payload);
  void TakeSettings(absl::string_view payload);

  const int socket_;
  std::string out_;
  std::string in_;
  int64_t sent_ = 0;    // bytes that the socket took
  int64_t others_ = 0;  // of those and of out_, bytes outside messages
  int64_t window_ = 65'535;
  int64_t first_window_ = 65'535;  // initial window of a stream
  uint32_t next_stream_ = 1;
  uint32_t turn_ = 0;  // the stream that sent last
  std::map<uint32_t, Stream> streams_;
  bool ended_ = false;
};

}  // namespace gshard

#endif  // TESTS_TESTING_RAW_HTTP2_H_
