#include "services/metrics/metrics_server.h"

#include <CivetServer.h>
#include <netdb.h>
#include <prometheus/exposer.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/mutex.h"
#include "services/metrics/metrics_impl.h"

namespace gshard {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

// Null if `host` is no number of a host, in brackets if IPv6.
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

// Opens and closes a connection to a port of this host.
void Touch(const std::string& host, int port) {
  // What is bound to every address is reached by the loopback one.
  const Addresses found = Look(host == "0.0.0.0" ? "127.0.0.1"
                               : host == "[::]"  ? "::1"
                                                 : host,
                               std::to_string(port));
  if (found == nullptr) return;
  const int file = socket(found->ai_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (file < 0) return;
  // Arriving is all that matters.
  [[maybe_unused]] const int result =
      connect(file, found->ai_addr, found->ai_addrlen);
  close(file);
}

// What the HTTP library has said first on this thread since that was cleared.
// Its callback is told neither the server nor whom it is for.
thread_local std::string said;

CivetCallbacks Listening() {
  CivetCallbacks callbacks;
  callbacks.log_message = [](const mg_connection*, const char* message) {
    if (said.empty()) said = message;
    return 1;  // it is not to be written anywhere
  };
  return callbacks;
}

}  // namespace

class MetricsServer::Impl {
 public:
  Impl(const std::string& address, std::shared_ptr<Metrics::Impl> metrics)
      : host_(address.substr(0, address.rfind(':'))),
        metrics_(std::move(metrics)),
        callbacks_(Listening()),
        exposer_(std::make_unique<prometheus::Exposer>(
            std::vector<std::string>{"listening_ports", address, "num_threads",
                                     "2", "linger_timeout_ms", "0"},
            &callbacks_)) {
    exposer_->RegisterCollectable(metrics_);
  }

  ~Impl() {
    // The HTTP server looks for its end only once in 2 s, or when somebody
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
    exposer_.reset();
    {
      MutexLock lock(mutex);
      stopped = true;
      changed.NotifyAll();
    }
    waker.join();
  }

  const std::string& host() const { return host_; }
  int port() const { return exposer_->GetListeningPorts().at(0); }

 private:
  const std::string host_;
  const std::shared_ptr<Metrics::Impl> metrics_;
  const CivetCallbacks callbacks_;
  std::unique_ptr<prometheus::Exposer> exposer_;
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
  // The HTTP library throws where it cannot bind, and says why before.
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
