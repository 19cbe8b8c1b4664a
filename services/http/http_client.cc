#include "services/http/http_client.h"

#include <arpa/inet.h>
#include <curl/curl.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "services/base/check.h"

namespace gshard {
namespace {

constexpr long kConnectSeconds = 10;
constexpr long kSilentSeconds = 30;
constexpr size_t kMaxHeaders = 128;

struct Transfer {
  const HttpRequest* request;
  HttpResponse* response;
  CURL* handle;
  size_t sent = 0;
  bool too_large = false;
  bool other_range = false;
};

size_t OnBody(char* bytes, size_t, size_t size, void* data) {
  Transfer& transfer = *static_cast<Transfer*>(data);
  HttpResponse& response = *transfer.response;
  long code = 0;
  curl_easy_getinfo(transfer.handle, CURLINFO_RESPONSE_CODE, &code);
  const absl::Span<char> target = transfer.request->target;
  if (code / 100 == 2 && target.data() != nullptr) {
    // 200 is for the whole, from its first byte on.
    transfer.other_range = code != 206 && transfer.request->offset > 0;
    if (transfer.other_range) return 0;
    transfer.too_large = size > target.size() - response.received;
    if (transfer.too_large) return 0;
    std::memcpy(target.data() + response.received, bytes, size);
    response.received += size;
    return size;
  }
  transfer.too_large = size > kMaxHttpBody - response.body.size();
  if (transfer.too_large) return 0;
  response.body.append(bytes, size);
  return size;
}

size_t OnHeader(char* bytes, size_t, size_t size, void* data) {
  HttpResponse& response = *static_cast<Transfer*>(data)->response;
  const absl::string_view line(bytes, size);
  if (absl::StartsWith(line, "HTTP/")) response.headers.clear();
  const size_t colon = line.find(':');
  if (colon != line.npos && response.headers.size() < kMaxHeaders) {
    response.headers[absl::AsciiStrToLower(line.substr(0, colon))] =
        std::string(absl::StripAsciiWhitespace(line.substr(colon + 1)));
  }
  return size;
}

size_t OnSend(char* to, size_t, size_t size, void* data) {
  Transfer& transfer = *static_cast<Transfer*>(data);
  const absl::string_view rest =
      transfer.request->body.substr(transfer.sent, size);
  std::memcpy(to, rest.data(), rest.size());
  transfer.sent += rest.size();
  return rest.size();
}

// Called to resend the body after a kept-alive connection was closed.
int OnRewind(void* data, curl_off_t offset, int origin) {
  if (origin != SEEK_SET) return CURL_SEEKFUNC_FAIL;
  static_cast<Transfer*>(data)->sent = static_cast<size_t>(offset);
  return CURL_SEEKFUNC_OK;
}

template <typename Value>
void Set(CURL* handle, CURLoption option, Value value) {
  CHECK(curl_easy_setopt(handle, option, value) == CURLE_OK);
}

void SetMethod(CURL* handle, const HttpRequest& request, Transfer* transfer) {
  if (request.method == "HEAD") {
    Set(handle, CURLOPT_NOBODY, 1L);
  } else if (request.method == "PUT" || request.method == "POST") {
    Set(handle, CURLOPT_UPLOAD, 1L);
    Set(handle, CURLOPT_INFILESIZE_LARGE,
        static_cast<curl_off_t>(request.body.size()));
    Set(handle, CURLOPT_READFUNCTION, OnSend);
    Set(handle, CURLOPT_READDATA, transfer);
    Set(handle, CURLOPT_SEEKFUNCTION, OnRewind);
    Set(handle, CURLOPT_SEEKDATA, transfer);
  }
  if (request.method != "HEAD") {
    Set(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
}

// Adds the headers that the signature covers besides the request's.
void Sign(CURL* handle, const HttpRequest& request,
          std::vector<std::string>* headers) {
  const StoreCredentials& credentials = *request.credentials;
  Set(handle, CURLOPT_AWS_SIGV4,
      absl::StrCat("aws:amz:", request.region, ":s3").c_str());
  Set(handle, CURLOPT_USERNAME, credentials.key_id.c_str());
  Set(handle, CURLOPT_PASSWORD, credentials.secret.c_str());
  // TLS protects the bytes, and their content has its own checksums.
  headers->push_back("x-amz-content-sha256: UNSIGNED-PAYLOAD");
  if (!credentials.token.empty()) {
    headers->push_back(
        absl::StrCat("x-amz-security-token: ", credentials.token));
  }
}

}  // namespace

HttpClient::HttpClient() {
  static const CURLcode initialized = curl_global_init(CURL_GLOBAL_DEFAULT);
  CHECK(initialized == CURLE_OK);
}

HttpClient::~HttpClient() {
  MutexLock lock(mutex_);
  for (void* handle : idle_) curl_easy_cleanup(handle);
}

void* HttpClient::Take() {
  MutexLock lock(mutex_);
  if (idle_.empty()) return curl_easy_init();
  void* const handle = idle_.back();
  idle_.pop_back();
  return handle;
}

void HttpClient::GiveBack(void* handle) {
  curl_easy_reset(handle);  // keeps its connections
  MutexLock lock(mutex_);
  idle_.push_back(handle);
}

HttpResponse HttpClient::Send(const HttpRequest& request) {
  HttpResponse response;
  CURL* const handle = Take();
  if (handle == nullptr) {
    response.transfer = absl::UnavailableError("no memory for a request");
    return response;
  }
  Transfer transfer{&request, &response, handle};
  char problem[CURL_ERROR_SIZE] = {};
  Set(handle, CURLOPT_URL, request.url.c_str());
  Set(handle, CURLOPT_PATH_AS_IS, 1L);
  Set(handle, CURLOPT_PROTOCOLS_STR, "http,https");
  Set(handle, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  Set(handle, CURLOPT_NOSIGNAL, 1L);
  Set(handle, CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  Set(handle, CURLOPT_LOW_SPEED_LIMIT, 1L);
  Set(handle, CURLOPT_LOW_SPEED_TIME, kSilentSeconds);
  // Do not wait for "100 Continue".
  Set(handle, CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
  Set(handle, CURLOPT_BUFFERSIZE, 256L << 10);
  Set(handle, CURLOPT_UPLOAD_BUFFERSIZE, 256L << 10);
  Set(handle, CURLOPT_ERRORBUFFER, static_cast<char*>(problem));
  Set(handle, CURLOPT_WRITEFUNCTION, OnBody);
  Set(handle, CURLOPT_WRITEDATA, &transfer);
  Set(handle, CURLOPT_HEADERFUNCTION, OnHeader);
  Set(handle, CURLOPT_HEADERDATA, &transfer);
  if (request.timeout.count() > 0) {
    Set(handle, CURLOPT_TIMEOUT_MS, static_cast<long>(request.timeout.count()));
    // Otherwise curl waits for an unresponsive name server all the same.
    Set(handle, CURLOPT_QUICK_EXIT, 1L);
  }
  if (IsLoopbackUrl(request.url)) Set(handle, CURLOPT_NOPROXY, "*");
  SetMethod(handle, request, &transfer);
  std::vector<std::string> lines = request.headers;
  if (request.credentials != nullptr) Sign(handle, request, &lines);
  if (request.target.data() != nullptr) {
    Set(handle, CURLOPT_RANGE,
        absl::StrCat(request.offset, "-",
                     request.offset + request.target.size() - 1)
            .c_str());
  }
  curl_slist* headers = nullptr;
  for (const std::string& line : lines) {
    headers = curl_slist_append(headers, line.c_str());
  }
  Set(handle, CURLOPT_HTTPHEADER, headers);
  const CURLcode result = curl_easy_perform(handle);
  long code = 0;
  curl_easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &code);
  response.code = static_cast<int>(code);
  if (result != CURLE_OK) {
    response.transfer = absl::UnavailableError(
        transfer.too_large     ? "the answer is larger than expected"
        : transfer.other_range ? "the answer is not the range asked for"
        : problem[0] != '\0'   ? problem
                               : curl_easy_strerror(result));
  }
  curl_slist_free_all(headers);
  GiveBack(handle);
  return response;
}

bool IsEndpointUrl(absl::string_view url) {
  if (!absl::ConsumePrefix(&url, "http://") &&
      !absl::ConsumePrefix(&url, "https://")) {
    return false;
  }
  return !url.empty() && url.find_first_of("@?# ") == url.npos;
}

bool IsLoopbackUrl(absl::string_view url) {
  url.remove_prefix(std::min(url.find("://"), url.size()));
  absl::ConsumePrefix(&url, "://");
  const std::string authority(url.substr(0, url.find_first_of("/?#")));
  const size_t port = authority.find_last_of(':');
  const bool has_port = port != std::string::npos && authority.back() != ']';
  const std::string host = has_port ? authority.substr(0, port) : authority;
  in_addr address;
  return host == "localhost" || host == "[::1]" ||
         (inet_pton(AF_INET, host.c_str(), &address) == 1 &&
          ntohl(address.s_addr) >> 24 == 127);
}

bool IsConfidentialUrl(absl::string_view url) {
  return absl::StartsWith(url, "https://") || IsLoopbackUrl(url);
}

std::string EncodeUrl(absl::string_view text, bool is_path) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string url;
  for (const char c : text) {
    if (absl::ascii_isalnum(c) || absl::StrContains("-_.~", c) ||
        (is_path && c == '/')) {
      url.push_back(c);
    } else {
      const auto byte = static_cast<unsigned char>(c);
      url.push_back('%');
      url.push_back(kDigits[byte >> 4]);
      url.push_back(kDigits[byte & 15]);
    }
  }
  return url;
}

}  // namespace gshard
