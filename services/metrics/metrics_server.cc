#include "services/metrics/metrics_server.h"

#include <CivetServer.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#include <chrono>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/check.h"
#include "services/base/mutex.h"
#include "services/metrics/metrics_format.h"
#include "services/metrics/metrics_impl.h"

namespace gshard {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Resolves a numeric host address, in brackets if IPv6; null if it is none.
Addresses Look(std::string host, const std::string& port) {
  if (host.front() == '[') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) {
    found = nullptr;
  }
  return Addresses(found, freeaddrinfo);
}

// Opens and closes a connection to a port of this machine.
void Touch(const std::string& host, int port) {
  // A server bound to all addresses is reached by the loopback address.
  const Addresses found = Look(host == "0.0.0.0" ? "127.0.0.1"
                               : host == "[::]"  ? "::1"
                                                 : host,
                               std::to_string(port));
  if (found == nullptr) return;
  const int file = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (file < 0) return;
  // The result does not matter: the attempt wakes the server.
  [[maybe_unused]] const int result =
      connect(file, found->ai_addr, found->ai_addrlen);
  close(file);
}

// The first message that the HTTP library has logged on this thread since this
// was cleared. Thread-local, since the library does not tell its callback to
// which server a message belongs.
thread_local std::string said;

CivetCallbacks Listening() {
  CivetCallbacks callbacks;
  callbacks.log_message = [](const mg_connection*, const char* message) {
    if (said.empty()) said = message;
    return 1;  // suppresses the library's own output
  };
  return callbacks;
}

// Compresses for "Content-Encoding: gzip".
std::string Gzip(const std::string& text) {
  constexpr int kGzip = 16;  // added to the window bits: gzip framing, not zlib
  z_stream stream = {};
  CHECK(deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, MAX_WBITS + kGzip,
                     MAX_MEM_LEVEL, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  // zlib does not write to its input.
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

}  // namespace

class MetricsServer::Impl : public CivetHandler {
 public:
  Impl(const std::string& address, std::shared_ptr<Metrics::Impl> metrics)
      : host_(address.substr(0, address.rfind(':'))),
        metrics_(std::move(metrics)),
        callbacks_(Listening()),
        // A connection without a request keeps a thread until it times out.
        // No linger_timeout_ms: "0" would reset connections, and so lose what
        // the client has not read yet; more would block threads in close().
        server_(std::make_unique<CivetServer>(
            std::vector<std::string>{"listening_ports", address, "num_threads",
                                     "8", "request_timeout_ms", "5000"},
            &callbacks_)) {
    server_->addHandler("/metrics", this);
  }

  ~Impl() {
    // The HTTP server checks for its shutdown only every 2 s, or when a client
    // connects.
    Mutex mutex;
    CondVar changed;
    bool stopped = false;
    std::thread waker([&, port = port()] {
      MutexLock lock(mutex);
      while (!changed.WaitFor(lock, std::chrono::milliseconds(10),
                              [&] { return stopped; })) {
        Touch(host_, port);
      }
    });
    server_.reset();
    {
      MutexLock lock(mutex);
      stopped = true;
      changed.NotifyAll();
    }
    waker.join();
  }

  bool handleGet(CivetServer*, mg_connection* connection) override {
    const auto header = [connection](const char* name) {
      const char* const value = CivetServer::getHeader(connection, name);
      return absl::string_view(value == nullptr ? "" : value);
    };
    const MetricsFormat format = AcceptedFormat(header("Accept"));
    const bool gzip = AcceptsGzip(header("Accept-Encoding"));
    std::string body = metrics_->Serialize(format);
    if (gzip) body = Gzip(body);
    const std::string head = absl::StrCat(
        "HTTP/1.1 200 OK\r\nContent-Type: ", ContentType(format),
        gzip ? "\r\nContent-Encoding: gzip" : "",
        "\r\nVary: Accept, Accept-Encoding\r\nContent-Length: ", body.size(),
        "\r\nConnection: close\r\n\r\n");
    // Errors are ignored: the scraper has disconnected.
    mg_write(connection, head.data(), head.size());
    mg_write(connection, body.data(), body.size());
    return true;
  }

  const std::string& host() const { return host_; }
  int port() const { return server_->getListeningPorts().at(0); }

 private:
  const std::string host_;
  const std::shared_ptr<Metrics::Impl> metrics_;
  const CivetCallbacks callbacks_;
  std::unique_ptr<CivetServer> server_;
};

MetricsServer::MetricsServer() = default;
MetricsServer::~MetricsServer() = default;

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(
    absl::string_view address, const Metrics& metrics) {
  const std::string text(address);
  const size_t colon = text.rfind(':');
  const std::string port =
      colon == std::string::npos ? "" : text.substr(colon + 1);
  if (colon == 0 || port.empty() || port.size() > 5 ||
      port.find_first_not_of("0123456789") != std::string::npos ||
      std::stoi(port) > 65535 || text.find(',') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the metrics address must be \"host:port\", got \"", text, "\""));
  }
  std::unique_ptr<MetricsServer> server(new MetricsServer);
  // If it cannot bind, the HTTP library logs the reason and then throws.
  said.clear();
  try {
    server->impl_ = std::make_unique<Impl>(text, metrics.impl_);
    server->address_ =
        absl::StrCat(server->impl_->host(), ":", server->impl_->port());
  } catch (const std::exception& error) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve metrics on \"", text,
                     "\": ", said.empty() ? error.what() : said));
  }
  return server;
}

}  // namespace gshard
