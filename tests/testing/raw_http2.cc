#include "tests/testing/raw_http2.h"

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace gshard {
namespace {

enum FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kRstStream = 3,
  kSettings = 4,
  kPing = 6,
  kWindowUpdate = 8,
};
constexpr uint8_t kAck = 1;
constexpr uint8_t kEndStream = 1;
constexpr uint8_t kEndHeaders = 4;
constexpr size_t kFrameHeader = 9;
constexpr int64_t kMaxFrame = 16'384;
// Limit of bytes queued for the socket; more data waits for its turn.
constexpr size_t kMaxQueued = 256 << 10;

std::string BigEndian(uint32_t value, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) {
    out += static_cast<char>(value >> (8 * i));
  }
  return out;
}

uint32_t ReadBigEndian(absl::string_view bytes) {
  uint32_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

// RFC 7541 5.1, 5.2: a string without Huffman coding.
std::string HpackString(absl::string_view text) {
  std::string out;
  if (text.size() < 127) {
    out += static_cast<char>(text.size());
  } else {
    out += '\x7f';
    for (size_t rest = text.size() - 127;; rest >>= 7) {
      out += static_cast<char>((rest & 127) | (rest >= 128 ? 128 : 0));
      if (rest < 128) break;
    }
  }
  return absl::StrCat(out, text);
}

// RFC 7541 6.2.2: a literal without indexing.
std::string HpackField(absl::string_view name, absl::string_view value) {
  return absl::StrCat(std::string(1, '\0'), HpackString(name),
                      HpackString(value));
}

absl::StatusOr<int> Open(const std::string& address, const std::string& from) {
  sockaddr_storage storage = {};
  socklen_t size = 0;
  absl::string_view rest = address;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    auto* const path = reinterpret_cast<sockaddr_un*>(&storage);
    path->sun_family = AF_UNIX;
    if (rest.size() >= sizeof(path->sun_path)) {
      return absl::InvalidArgumentError("the path is too long");
    }
    std::memcpy(path->sun_path, rest.data(), rest.size());
    size = sizeof(sockaddr_un);
  } else {
    const size_t colon = address.rfind(':');
    auto* const host = reinterpret_cast<sockaddr_in*>(&storage);
    host->sin_family = AF_INET;
    int port = 0;
    if (colon == std::string::npos ||
        !absl::SimpleAtoi(address.substr(colon + 1), &port) ||
        inet_pton(AF_INET, address.substr(0, colon).c_str(), &host->sin_addr) !=
            1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "expected \"1.2.3.4:port\" or \"unix:/path\", got ", address));
    }
    host->sin_port = htons(static_cast<uint16_t>(port));
    size = sizeof(sockaddr_in);
  }
  const int file = socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in source = {};
  source.sin_family = AF_INET;
  source.sin_addr.s_addr = inet_addr(from.c_str());
  const bool any = from.empty();
  if (file < 0 ||
      (!any && bind(file, reinterpret_cast<const sockaddr*>(&source),
                    sizeof(source)) != 0) ||
      connect(file, reinterpret_cast<sockaddr*>(&storage), size) != 0) {
    const absl::Status status = absl::UnavailableError(
        absl::StrCat("cannot connect to ", address, ": ", strerror(errno)));
    if (file >= 0) close(file);
    return status;
  }
  return file;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RawHttp2>> RawHttp2::Connect(
    const std::string& address, const std::string& from) {
  const absl::StatusOr<int> file = Open(address, from);
  if (!file.ok()) return file.status();
  return std::unique_ptr<RawHttp2>(new RawHttp2(*file));
}

RawHttp2::RawHttp2(int socket) : socket_(socket) {
  SendBytes("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
  // A header table of size 0 makes the server send headers as literals.
  SendBytes(
      Frame(kSettings, 0, 0, absl::StrCat(BigEndian(1, 2), BigEndian(0, 4))));
}

RawHttp2::~RawHttp2() { close(socket_); }

std::string RawHttp2::Frame(uint8_t type, uint8_t flags, uint32_t stream,
                            absl::string_view payload) {
  std::string frame = BigEndian(static_cast<uint32_t>(payload.size()), 3);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  return absl::StrCat(frame, BigEndian(stream, 4), payload);
}

void RawHttp2::SendBytes(absl::string_view bytes) {
  others_ += static_cast<int64_t>(bytes.size());
  out_.append(bytes.data(), bytes.size());
}

uint32_t RawHttp2::BeginCall(absl::string_view method,
                             absl::string_view token) {
  const uint32_t id = std::exchange(next_stream_, next_stream_ + 2);
  std::string fields = absl::StrCat(
      HpackField(":method", "POST"), HpackField(":scheme", "http"),
      HpackField(":path", method), HpackField(":authority", "gshard"),
      HpackField("te", "trailers"),
      HpackField("content-type", "application/grpc"));
  if (!token.empty()) {
    absl::StrAppend(
        &fields, HpackField("authorization", absl::StrCat("Bearer ", token)));
  }
  SendBytes(Frame(kHeaders, kEndHeaders, id, fields));
  streams_[id].window = first_window_;
  return id;
}

void RawHttp2::SendMessage(uint32_t stream, uint32_t declared, uint32_t sent) {
  Stream& to = streams_[stream];
  to.prefix = absl::StrCat(std::string(1, '\0'), BigEndian(declared, 4));
  to.unsent = static_cast<int64_t>(to.prefix.size()) + sent;
}

// Streams take turns, one frame each.
void RawHttp2::QueueData() {
  bool moved = true;
  while (moved && out_.size() < kMaxQueued) {
    moved = false;
    auto found = streams_.upper_bound(turn_);
    for (size_t i = 0; i < streams_.size() && !moved; ++i, ++found) {
      if (found == streams_.end()) found = streams_.begin();
      Stream& stream = found->second;
      const int64_t size =
          std::min({stream.unsent, stream.window, window_, kMaxFrame});
      if (size <= 0 || stream.ended) continue;
      std::string payload = stream.prefix.substr(0, static_cast<size_t>(size));
      stream.prefix.erase(0, payload.size());
      payload.resize(static_cast<size_t>(size));
      out_ += Frame(kData, 0, found->first, payload);
      others_ += static_cast<int64_t>(kFrameHeader);
      stream.unsent -= size;
      stream.window -= size;
      window_ -= size;
      turn_ = found->first;
      moved = true;
    }
  }
}

bool RawHttp2::Step() {
  for (bool moved = true; moved && !ended_;) {
    moved = false;
    QueueData();
    if (!out_.empty()) {
      const ssize_t size =
          send(socket_, out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      if (size > 0) {
        out_.erase(0, static_cast<size_t>(size));
        sent_ += size;
        moved = true;
      } else if (errno != EAGAIN && errno != EINTR) {
        ended_ = true;
      }
    }
    char buffer[64 << 10];
    const ssize_t size = recv(socket_, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (size > 0) {
      in_.append(buffer, static_cast<size_t>(size));
      moved = true;
    } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
      ended_ = true;
    }
    while (in_.size() >= kFrameHeader) {
      const absl::string_view in = in_;
      const size_t length = ReadBigEndian(in.substr(0, 3));
      if (in.size() < kFrameHeader + length) break;
      Take(static_cast<uint8_t>(in[3]), static_cast<uint8_t>(in[4]),
           ReadBigEndian(in.substr(5, 4)), in.substr(kFrameHeader, length));
      in_.erase(0, kFrameHeader + length);
    }
  }
  return !ended_;
}

void RawHttp2::Take(uint8_t type, uint8_t flags, uint32_t id,
                    absl::string_view payload) {
  const auto stream = streams_.find(id);
  if (type == kSettings && (flags & kAck) == 0) {
    TakeSettings(payload);
  } else if (type == kPing && (flags & kAck) == 0) {
    SendBytes(Frame(kPing, kAck, 0, payload));
  } else if (type == kWindowUpdate && id == 0) {
    window_ += ReadBigEndian(payload);
  } else if (type == kWindowUpdate && stream != streams_.end()) {
    stream->second.window += ReadBigEndian(payload);
  } else if (stream != streams_.end() &&
             (type == kRstStream || (type <= kHeaders && flags & kEndStream))) {
    stream->second.ended = true;
  }
  if (type == kData && stream != streams_.end() && !payload.empty()) {
    stream->second.answered = true;
  }
  constexpr absl::string_view kStatus = "grpc-status";
  const size_t found = payload.find(kStatus);
  if (type == kHeaders && stream != streams_.end() &&
      found != absl::string_view::npos) {
    const absl::string_view value = payload.substr(found + kStatus.size());
    if (!value.empty()) {
      const auto size = static_cast<uint8_t>(value[0]) & 127;
      (void)absl::SimpleAtoi(value.substr(1, size), &stream->second.status);
    }
  }
}

void RawHttp2::TakeSettings(absl::string_view payload) {
  constexpr uint32_t kInitialWindowSize = 4;
  for (; payload.size() >= 6; payload.remove_prefix(6)) {
    if (ReadBigEndian(payload.substr(0, 2)) != kInitialWindowSize) continue;
    const int64_t window = ReadBigEndian(payload.substr(2, 4));
    for (auto& [id, stream] : streams_) {
      stream.window += window - first_window_;
    }
    first_window_ = window;
  }
  SendBytes(Frame(kSettings, kAck, 0, ""));
}

void RawHttp2::Wait(std::chrono::milliseconds most) const {
  pollfd file = {.fd = socket_, .events = POLLIN, .revents = 0};
  if (!out_.empty()) file.events |= POLLOUT;
  (void)poll(&file, 1, static_cast<int>(most.count()));
}

int64_t RawHttp2::bytes_taken() const {
  int in_socket = 0;
  if (ended_ || ioctl(socket_, SIOCOUTQ, &in_socket) != 0) in_socket = 0;
  return std::max<int64_t>(0, sent_ - others_ - in_socket);
}

int64_t RawHttp2::bytes_waiting() const {
  int64_t bytes = static_cast<int64_t>(out_.size());
  for (const auto& [id, stream] : streams_) bytes += stream.unsent;
  return bytes;
}

int RawHttp2::streams_ended() const {
  return static_cast<int>(
      std::count_if(streams_.begin(), streams_.end(),
                    [](const auto& stream) { return stream.second.ended; }));
}

bool RawHttp2::answered(uint32_t stream) const {
  const auto found = streams_.find(stream);
  return found != streams_.end() && found->second.answered;
}

int RawHttp2::status_of(uint32_t stream) const {
  const auto found = streams_.find(stream);
  return found == streams_.end() ? -1 : found->second.status;
}

}  // namespace gshard
