#include "tests/services/storage/fake_object_store.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "services/base/check.h"

namespace gshard {
namespace {

constexpr size_t kListed = 3;  // names in an answer, so that lists have pages

std::string Digest(absl::string_view bytes) {
  unsigned char digest[32];
  unsigned int size = 0;
  CHECK(EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(),
                   nullptr) == 1);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<char*>(digest), size));
}

std::string Mac(absl::string_view key, absl::string_view bytes) {
  unsigned char mac[32];
  unsigned int size = 0;
  CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(),
             mac, &size) != nullptr);
  return {reinterpret_cast<char*>(mac), size};
}

std::string Decode(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      decoded += absl::HexStringToBytes(text.substr(i + 1, 2));
      i += 2;
    } else {
      decoded.push_back(text[i]);
    }
  }
  return decoded;
}

// What stands between `name` and the next of ",; " or the end.
std::string Field(absl::string_view text, absl::string_view name) {
  const size_t at = text.find(name);
  if (at == text.npos) return "";
  text.remove_prefix(at + name.size());
  return std::string(text.substr(0, text.find_first_of(", ")));
}

std::string HttpDate(absl::Time time) {
  return absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", time,
                          absl::UTCTimeZone());
}

void SendAll(int connection, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent =
        ::send(connection, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(sent);
  }
}

}  // namespace

struct FakeObjectStore::Request {
  std::string method, path, query;  // as sent
  std::map<std::string, std::string> headers;
  std::string body;

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
  // Decoded; empty if it is not there.
  std::string parameter(absl::string_view name) const {
    for (const absl::string_view part : absl::StrSplit(query, '&')) {
      absl::string_view value = part;
      if (absl::ConsumePrefix(&value, absl::StrCat(name, "="))) {
        return Decode(value);
      }
    }
    return "";
  }
  bool has(absl::string_view name) const {
    return absl::StrContains(absl::StrCat("&", query),
                             absl::StrCat("&", name, "="));
  }

  // By AWS's Signature Version 4.
  bool IsSigned() const {
    const std::string authorization = header("authorization");
    const std::string scope = Field(authorization, "Credential=");
    const std::string signed_headers = Field(authorization, "SignedHeaders=");
    const std::vector<std::string> parts = absl::StrSplit(scope, '/');
    if (parts.size() != 5 || parts[0] != kKeyId) return false;
    std::vector<std::string> parameters = absl::StrSplit(query, '&');
    std::sort(parameters.begin(), parameters.end());
    std::string text = absl::StrCat(method, "\n", path, "\n",
                                    absl::StrJoin(parameters, "&"), "\n");
    std::set<std::string> names = absl::StrSplit(signed_headers, ';');
    for (const std::string& name : names) {
      absl::StrAppend(&text, name, ":", header(name), "\n");
    }
    // What would let another request pass by its signature.
    for (const char* name : {"host", "x-amz-date", "x-amz-content-sha256"}) {
      if (names.count(name) == 0) return false;
    }
    const std::string payload = header("x-amz-content-sha256");
    if (payload != "UNSIGNED-PAYLOAD" && payload != Digest(body)) return false;
    absl::StrAppend(&text, "\n", signed_headers, "\n", payload);
    const std::string to_sign = absl::StrCat(
        "AWS4-HMAC-SHA256\n", header("x-amz-date"), "\n",
        absl::StrJoin(parts.begin() + 1, parts.end(), "/"), "\n", Digest(text));
    std::string key = absl::StrCat("AWS4", kSecret);
    for (int i = 1; i < 5; ++i) key = Mac(key, parts[i]);
    return absl::BytesToHexString(Mac(key, to_sign)) ==
           Field(authorization, "Signature=");
  }
};

struct FakeObjectStore::Answer {
  int code = 200;
  std::string body = {};
  std::vector<std::string> headers = {};
  int64_t bytes = -1;  // of HEAD: that the body would have

  static Answer Error(int code, absl::string_view name) {
    return {code, absl::StrCat("<Error><Code>", name,
                               "</Code><Message>as told</Message></Error>")};
  }
};

FakeObjectStore::FakeObjectStore()
    : now_(absl::FromUnixSeconds(1'700'000'000)) {
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

FakeObjectStore::~FakeObjectStore() {
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

ObjectStoreOptions FakeObjectStore::options() const {
  return {.endpoint = absl::StrCat("http://127.0.0.1:", port_),
          .region = "eu-west-1",
          .first_delay = absl::Milliseconds(1),
          .max_delay = absl::Milliseconds(2)};
}

void FakeObjectStore::Use() const {
  ::setenv("AWS_ACCESS_KEY_ID", kKeyId, 1);
  ::setenv("AWS_SECRET_ACCESS_KEY", kSecret, 1);
  ConfigureObjectStore(options());
}

void FakeObjectStore::SetOnRequest(OnRequest on_request) {
  MutexLock lock(mutex_);
  on_request_ = std::move(on_request);
}

void FakeObjectStore::Advance(absl::Duration time) {
  MutexLock lock(mutex_);
  now_ += time;
}

std::vector<std::string> FakeObjectStore::Requests() const {
  MutexLock lock(mutex_);
  return requests_;
}

std::vector<std::string> FakeObjectStore::Keys() const {
  MutexLock lock(mutex_);
  std::vector<std::string> keys;
  for (const auto& [key, object] : objects_) keys.push_back(key);
  return keys;
}

std::string FakeObjectStore::Bytes(const std::string& key) const {
  MutexLock lock(mutex_);
  const auto found = objects_.find(key);
  return found == objects_.end() ? "" : found->second.bytes;
}

void FakeObjectStore::Set(const std::string& key, const std::string& bytes) {
  MutexLock lock(mutex_);
  Store(key, bytes);
}

size_t FakeObjectStore::OpenUploads() const {
  MutexLock lock(mutex_);
  return uploads_.size();
}

void FakeObjectStore::Accept() {
  for (;;) {
    const int connection = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (stopping_ || connection < 0) return;
    const int on = 1;
    ::setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    MutexLock lock(mutex_);
    connections_.push_back(connection);
    threads_.emplace_back([this, connection] {
      Serve(connection);
      MutexLock lock(mutex_);
      std::erase(connections_, connection);
      ::close(connection);
    });
  }
}

void FakeObjectStore::Serve(int connection) {
  std::string buffer;
  while (!stopping_ && ServeOne(connection, &buffer)) {
  }
}

bool FakeObjectStore::ServeOne(int connection, std::string* buffer) {
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
  Request request{first[0], target.first, target.second, {}, ""};
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

  const std::string name =
      absl::StrCat(request.method, " ", Decode(request.path.substr(1)),
                   request.query.empty() ? "" : "?", request.query);
  OnRequest on_request;
  {
    MutexLock lock(mutex_);
    requests_.push_back(name);
    on_request = on_request_;
  }
  const Fault fault = on_request ? on_request(name) : Fault::kNone;
  const auto reset = [&] {
    const linger now{1, 0};
    ::setsockopt(connection, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    return false;
  };
  if (fault == Fault::kReset) return reset();
  if (fault == Fault::kMadeUp) {
    SendAll(connection, made_up_);
    return false;
  }
  Answer answer;
  if (fault == Fault::kSlowDown) {
    answer = Answer::Error(503, "SlowDown");
  } else if (fault == Fault::kInternal) {
    answer = Answer::Error(500, "InternalError");
  } else if (fault == Fault::kRefused) {
    answer = Answer::Error(403, "AccessDenied");
  } else if (fault == Fault::kLateError) {
    answer = Answer::Error(200, "InternalError");
  } else {
    answer = Handle(request);
  }
  if (fault == Fault::kLost) return reset();
  const bool is_head = request.method == "HEAD";
  std::string text =
      absl::StrCat("HTTP/1.1 ", answer.code, " As told\r\nContent-Length: ",
                   answer.bytes >= 0 ? answer.bytes
                                     : static_cast<int64_t>(answer.body.size()),
                   "\r\n");
  {
    MutexLock lock(mutex_);
    absl::StrAppend(&text, "Date: ", HttpDate(now_), "\r\n");
  }
  for (const std::string& header : answer.headers) {
    absl::StrAppend(&text, header, "\r\n");
  }
  text += "\r\n";
  if (fault == Fault::kTruncate) {
    SendAll(connection, text + answer.body.substr(0, answer.body.size() / 2));
    return false;
  }
  SendAll(connection, is_head ? text : text + answer.body);
  return true;
}

std::string FakeObjectStore::Store(const std::string& key, std::string bytes) {
  Object& object = objects_[key];
  object.etag = absl::StrCat("\"", Digest(bytes).substr(0, 32), "\"");
  object.bytes = std::move(bytes);
  object.modified = now_;
  return object.etag;
}

FakeObjectStore::Answer FakeObjectStore::Handle(const Request& request) {
  if (request.method == "POST" && request.path == "/") {
    return role_answer_.empty() ? Answer::Error(403, "InvalidIdentityToken")
                                : Answer{200, role_answer_};
  }
  if (!request.IsSigned()) return Answer::Error(403, "SignatureDoesNotMatch");
  const std::string key = Decode(request.path.substr(1));
  MutexLock lock(mutex_);
  if (request.has("uploads") || request.has("uploadId")) {
    return HandleUpload(request, key);
  }
  if (request.has("list-type")) return List(request);
  const auto found = objects_.find(key);
  const bool is_there = found != objects_.end();
  if (heeds_conditions_) {
    const std::string match = request.header("if-match");
    if (!match.empty() && !is_there) return Answer::Error(404, "NoSuchKey");
    if (!match.empty() && match != found->second.etag) {
      return Answer::Error(412, "PreconditionFailed");
    }
    if (request.header("if-none-match") == "*" && is_there) {
      return Answer::Error(412, "PreconditionFailed");
    }
  }
  if (request.method == "PUT") {
    return {200, "", {absl::StrCat("ETag: ", Store(key, request.body))}};
  }
  if (request.method == "DELETE") {
    objects_.erase(key);
    return {204};
  }
  if (!is_there) return Answer::Error(404, "NoSuchKey");
  const Object& object = found->second;
  Answer answer{200, object.bytes};
  answer.headers = {absl::StrCat("ETag: ", object.etag),
                    absl::StrCat("Last-Modified: ", HttpDate(object.modified))};
  if (request.method == "HEAD") {
    answer.body.clear();
    answer.bytes = static_cast<int64_t>(object.bytes.size());
    return answer;
  }
  absl::string_view range = request.headers.count("range") > 0
                                ? request.headers.at("range")
                                : absl::string_view();
  if (!absl::ConsumePrefix(&range, "bytes=")) return answer;
  const std::pair<std::string, std::string> ends = absl::StrSplit(range, '-');
  size_t begin = 0, last = 0;
  CHECK(absl::SimpleAtoi(ends.first, &begin));
  CHECK(absl::SimpleAtoi(ends.second, &last));
  if (begin >= object.bytes.size()) return Answer::Error(416, "InvalidRange");
  last = std::min(last, object.bytes.size() - 1);
  answer.code = 206;
  answer.body = object.bytes.substr(begin, last - begin + 1);
  answer.headers.push_back(absl::StrCat("Content-Range: bytes ", begin, "-",
                                        last, "/", object.bytes.size()));
  return answer;
}

FakeObjectStore::Answer FakeObjectStore::HandleUpload(const Request& request,
                                                      const std::string& key) {
  if (request.has("uploads")) {
    const std::string id = absl::StrCat("upload+", ++count_);
    uploads_[id].key = key;
    return {200, absl::StrCat("<InitiateMultipartUploadResult><UploadId>", id,
                              "</UploadId></InitiateMultipartUploadResult>")};
  }
  const std::string id = request.parameter("uploadId");
  const auto upload = uploads_.find(id);
  if (upload == uploads_.end() || upload->second.key != key) {
    return Answer::Error(404, "NoSuchUpload");
  }
  if (request.method == "DELETE") {
    uploads_.erase(upload);
    return {204};
  }
  auto& parts = upload->second.parts;
  if (request.method == "PUT") {
    int number = 0;
    CHECK(absl::SimpleAtoi(request.parameter("partNumber"), &number));
    parts[number] = request.body;
    return {200, "", {absl::StrCat("ETag: \"", Digest(request.body), "\"")}};
  }
  std::string whole;
  for (const auto& [number, bytes] : parts) {
    const std::string part =
        absl::StrCat("<Part><PartNumber>", number, "</PartNumber><ETag>\"",
                     Digest(bytes), "\"</ETag></Part>");
    if (!absl::StrContains(request.body, part)) {
      return Answer::Error(400, "InvalidPart");
    }
    if (number < static_cast<int>(parts.size()) && bytes.size() < 5 << 20) {
      return Answer::Error(400, "EntityTooSmall");
    }
    whole += bytes;
  }
  Store(key, std::move(whole));
  uploads_.erase(upload);
  return {200, "<CompleteMultipartUploadResult/>"};
}

FakeObjectStore::Answer FakeObjectStore::List(const Request& request) {
  const std::string bucket = Decode(request.path.substr(1));
  const std::string prefix =
      absl::StrCat(bucket, "/", request.parameter("prefix"));
  const std::string delimiter = request.parameter("delimiter");
  const std::string after = request.parameter("continuation-token");
  std::string body = "<ListBucketResult xmlns=\"http://s3/doc/\">";
  std::string last;
  size_t listed = 0;
  for (const auto& [key, object] : objects_) {
    if (!absl::StartsWith(key, prefix)) continue;
    const size_t slash =
        delimiter.empty() ? key.npos : key.find(delimiter, prefix.size());
    const std::string name = slash == key.npos ? key : key.substr(0, slash + 1);
    if (name <= after || name == last) continue;
    if (listed++ == kListed) {
      absl::StrAppend(&body, "<IsTruncated>true</IsTruncated>",
                      "<NextContinuationToken>", last,
                      "</NextContinuationToken>");
      break;
    }
    const std::string short_name = name.substr(bucket.size() + 1);
    absl::StrAppend(
        &body,
        slash == key.npos
            ? absl::StrCat("<Contents><Key>", short_name, "</Key></Contents>")
            : absl::StrCat("<CommonPrefixes><Prefix>", short_name,
                           "</Prefix></CommonPrefixes>"));
    last = name;
  }
  return {200, body + "</ListBucketResult>"};
}

}  // namespace gshard
