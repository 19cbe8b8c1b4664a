// HttpClient: HTTP requests by libcurl, signed by it as AWS services want.

#ifndef SERVICES_HTTP_HTTP_CLIENT_H_
#define SERVICES_HTTP_HTTP_CLIENT_H_

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "services/base/mutex.h"

namespace gshard {

// What requests are signed with.
struct StoreCredentials {
  std::string key_id;
  std::string secret;
  std::string token = {};  // of a session; may be empty
  absl::Time expires = absl::InfiniteFuture();
};

struct HttpRequest {
  std::string method;  // GET, HEAD, PUT, POST or DELETE
  // Encoded, and its query sorted: it is signed as it is.
  std::string url;
  std::vector<std::string> headers = {};  // "name: value"
  absl::string_view body = {};
  // Null: the request is not signed.
  const StoreCredentials* credentials = nullptr;
  std::string region = {};
  // Where the bytes of a good answer go: those from `offset` on are asked for,
  // as many as there is room for. Without it they are in HttpResponse.body.
  absl::Span<char> target = {};
  uint64_t offset = 0;
  // For all of it, connection and answer included; 0: no limit.
  std::chrono::milliseconds timeout{0};
};

struct HttpResponse {
  int code = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // at most kMaxHttpBody
  size_t received = 0;                         // bytes in `target`
  // OK if all of the answer came; else Unavailable, saying what happened. The
  // rest is then what came of it.
  absl::Status transfer;

  // Empty if there is none.
  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

inline constexpr size_t kMaxHttpBody = 16 << 20;

// Keeps connections for the next requests. Thread-safe.
class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // One attempt. A connection has 10 s to come about, and may be silent for
  // 30 s. Certificates are verified. Redirections are not followed. An answer
  // that is larger than expected is no transfer.
  HttpResponse Send(const HttpRequest& request);

 private:
  void* Take();
  void GiveBack(void* handle);

  Mutex mutex_;
  std::vector<void*> idle_ ABSL_GUARDED_BY(mutex_);  // CURL handles
};

// Whether it is http[s]://host[:port][/path] without user, query and fragment,
// to which the path of a request can be added.
bool IsEndpointUrl(absl::string_view url);

// Whether its host is this machine, whatever a name server says.
bool IsLoopbackUrl(absl::string_view url);

// Whether only its server can read what is sent there: by https, or because the
// host is this machine.
bool IsConfidentialUrl(absl::string_view url);

// "a b/c" becomes "a%20b/c": all but letters, digits, "-_.~" and, of a path,
// slashes.
std::string EncodeUrl(absl::string_view text, bool is_path);

}  // namespace gshard

#endif  // SERVICES_HTTP_HTTP_CLIENT_H_
