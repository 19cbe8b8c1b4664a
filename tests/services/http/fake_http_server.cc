#include "tests/services/http/fake_http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "services/base/check.h"

namespace gshard {
namespace {

void SendAll(int connection, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent =
        ::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(sent);
  }
}

}  // namespace

FakeHttpServer::FakeHttpServer(Handler handler) : handler_(std::move(handler)) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  CHECK(::bind(listener_, reinterpret_cast<sockaddr*>(&address),
               sizeof(address)) == 0);
  CHECK(::listen(listener_, 64) == 0);
  socklen_t size = sizeof(address);
  CHECK(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address),
                      &size) == 0);
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

FakeHttpServer::~FakeHttpServer() {
  stopping_ = true;
  ::shutdown(listener_, SHUT_RDWR);
  acceptor_.join();
  std::vector<std::thread> threads;
  {
    MutexLock lock(mutex_);
    for (const int connection : connections_) {
      ::shutdown(connection, SHUT_RDWR);
    }
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
  ::close(listener_);
}

std::string FakeHttpServer::url() const {
  return absl::StrCat("http://127.0.0.1:", port_);
}

void FakeHttpServer::Accept() {
  for (;;) {
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (stopping_ || connection < 0) return;
    const int on = 1;
    ::setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    MutexLock lock(mutex_);
    connections_.push_back(connection);
    threads_.emplace_back([this, connection] {
      std::string buffer;
      while (!stopping_ && ServeOne(connection, &buffer)) {
      }
      MutexLock lock(mutex_);
      std::erase(connections_, connection);
      ::close(connection);
    });
  }
}

bool FakeHttpServer::ServeOne(int connection, std::string* buffer) {
  const auto receive = [&] {
    char bytes[64 << 10];
    const ssize_t size = ::recv(connection, bytes, sizeof(bytes), 0);
    if (size > 0) buffer->append(bytes, size);
    return size > 0;
  };
  size_t end;
  while ((end = buffer->find("\r\n\r\n")) == std::string::npos) {
    if (!receive()) return false;
  }
  const std::vector<std::string> lines =
      absl::StrSplit(buffer->substr(0, end), "\r\n");
  buffer->erase(0, end + 4);
  const std::vector<std::string> first = absl::StrSplit(lines[0], ' ');
  const std::pair<std::string, std::string> target =
      absl::StrSplit(first.at(1), absl::MaxSplits('?', 1));
  FakeHttpRequest request{first[0], target.first, target.second, {}, ""};
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::pair<std::string, std::string> header =
        absl::StrSplit(lines[i], absl::MaxSplits(':', 1));
    request.headers[absl::AsciiStrToLower(header.first)] =
        std::string(absl::StripAsciiWhitespace(header.second));
  }
  if (!request.header("expect").empty()) {
    SendAll(connection, "HTTP/1.1 100 Continue\r\n\r\n");
  }
  size_t size = 0;
  (void)absl::SimpleAtoi(request.header("content-length"), &size);
  while (buffer->size() < size) {
    if (!receive()) return false;
  }
  request.body = buffer->substr(0, size);
  buffer->erase(0, size);

  const FakeHttpAnswer answer = handler_(request);
  if (answer.delivery == FakeHttpAnswer::Delivery::kReset) {
    const linger now{1, 0};
    ::setsockopt(connection, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    return false;
  }
  if (answer.delivery == FakeHttpAnswer::Delivery::kAsGiven) {
    SendAll(connection, answer.body);
    return false;
  }
  std::string text =
      absl::StrCat("HTTP/1.1 ", answer.code, " As told\r\nContent-Length: ",
                   answer.bytes >= 0 ? answer.bytes
                                     : static_cast<int64_t>(answer.body.size()),
                   "\r\n");
  for (const std::string& header : answer.headers) {
    absl::StrAppend(&text, header, "\r\n");
  }
  text += "\r\n";
  const bool half = answer.delivery == FakeHttpAnswer::Delivery::kHalf;
  if (request.method != "HEAD") {
    absl::StrAppend(&text,
                    answer.body.substr(0, answer.body.size() / (half ? 2 : 1)));
  }
  SendAll(connection, text);
  return !half;
}

}  // namespace gshard
