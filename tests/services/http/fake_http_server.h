// FakeHttpServer: an HTTP server in this process, on loopback, with a function
// for its answers.

#ifndef TESTS_SERVICES_HTTP_FAKE_HTTP_SERVER_H_
#define TESTS_SERVICES_HTTP_FAKE_HTTP_SERVER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "services/base/mutex.h"

namespace gshard {

struct FakeHttpRequest {
  std::string method, path, query;             // as sent
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

struct FakeHttpAnswer {
  enum class Delivery {
    kWhole,
    kHalf,   // half of the body, then closes the connection
    kReset,  // resets the connection without an answer
    // Exactly `body`, from "HTTP/1.1" on, then closes the connection.
    kAsGiven,
  };

  int code = 200;
  std::string body = {};
  std::vector<std::string> headers = {};
  int64_t bytes = -1;  // Content-Length; -1: of `body`
  Delivery delivery = Delivery::kWhole;
};

class FakeHttpServer {
 public:
  // Called on many threads, until the server is destroyed.
  using Handler = std::function<FakeHttpAnswer(const FakeHttpRequest&)>;

  explicit FakeHttpServer(Handler handler);
  ~FakeHttpServer();

  // "http://127.0.0.1:PORT".
  std::string url() const;

 private:
  void Accept();
  bool ServeOne(int connection, std::string* buffer);

  const Handler handler_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  Mutex mutex_;
  std::vector<int> connections_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace gshard

#endif  // TESTS_SERVICES_HTTP_FAKE_HTTP_SERVER_H_
