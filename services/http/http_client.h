// HttpClient: HTTP requests over libcurl, with AWS signatures.

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

// Credentials for signing requests.
struct StoreCredentials {
  std::string key_id;
  std::string secret;
  std::string token = {};  // session token; may be empty
  absl::Time expires = absl::InfiniteFuture();
};

struct HttpRequest {
  std::string method;  // GET, HEAD, PUT, POST or DELETE
  // Percent-encoded, with a sorted query: it is signed as it is.
  std::string url;
  std::vector<std::string> headers = {};  // "name: value"
  absl::string_view body = {};
  // Null: the request is not signed.
  const StoreCredentials* credentials = nullptr;
  std::string region = {};
  // Receives the bytes of a successful answer: a range request from `offset`
  // on, for as many as fit. A server may send the whole instead (200), which
  // fails the transfer unless that begins at 0. If empty, they are in
  // HttpResponse.body.
  absl::Span<char> target = {};
  uint64_t offset = 0;
  // For the whole request, including connection and answer; 0: no limit.
  std::chrono::milliseconds timeout{0};
};

struct HttpResponse {
  int code = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // at most kMaxHttpBody
  size_t received = 0;                         // bytes in `target`
  // OK if the answer is complete; else Unavailable, saying what happened, and
  // the other fields hold the part that was received.
  absl::Status transfer;

  // The header's value; empty if absent.
  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

inline constexpr size_t kMaxHttpBody = 16 << 20;

// Reuses connections. Thread-safe.
class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // One attempt. Connecting may take 10 s, silence 30 s. Certificates are
  // verified. Redirects are not followed. An answer that is larger than
  // expected is a failed transfer.
  HttpResponse Send(const HttpRequest& request);

 private:
  void* Take();
  void GiveBack(void* handle);

  Mutex mutex_;
  std::vector<void*> idle_ ABSL_GUARDED_BY(mutex_);  // CURL handles
};

// Whether it is http[s]://host[:port][/path] without user, query and fragment,
// so that a request path can be appended.
bool IsEndpointUrl(absl::string_view url);

// Whether its host is this machine, independently of DNS.
bool IsLoopbackUrl(absl::string_view url);

// Whether requests to it are confidential: https, or a loopback host.
bool IsConfidentialUrl(absl::string_view url);

// "a b/c" becomes "a%20b/c": encodes all but letters, digits, "-_.~" and, in a
// path, slashes.
std::string EncodeUrl(absl::string_view text, bool is_path);

}  // namespace gshard

#endif  // SERVICES_HTTP_HTTP_CLIENT_H_
