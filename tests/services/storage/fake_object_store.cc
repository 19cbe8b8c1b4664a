#include "tests/services/storage/fake_object_store.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdlib.h>

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

constexpr size_t kListed = 3;  // names per answer, so that lists have pages

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

// The text between `name` and the next of ", " or the end.
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

FakeHttpAnswer Error(int code, absl::string_view name) {
  return {code, absl::StrCat("<Error><Code>", name,
                             "</Code><Message>as told</Message></Error>")};
}

}  // namespace

struct FakeObjectStore::Request : FakeHttpRequest {
  // Decoded; empty if absent.
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

  // Verifies AWS's Signature Version 4.
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
    // Headers without which another request could reuse the signature.
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

FakeObjectStore::FakeObjectStore()
    : now_(absl::FromUnixSeconds(1'700'000'000)),
      server_([this](const FakeHttpRequest& request) {
        return Serve(Request{request});
      }) {}

ObjectStoreOptions FakeObjectStore::options() const {
  return {.endpoint = server_.url(),
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

FakeHttpAnswer FakeObjectStore::Serve(const Request& request) {
  const std::string name =
      absl::StrCat(request.method, " ", Decode(request.path.substr(1)),
                   request.query.empty() ? "" : "?", request.query);
  OnRequest on_request;
  std::string date;
  {
    MutexLock lock(mutex_);
    requests_.push_back(name);
    on_request = on_request_;
    date = absl::StrCat("Date: ", HttpDate(now_));
  }
  const Fault fault = on_request ? on_request(name) : Fault::kNone;
  if (fault == Fault::kMadeUp) {
    return {.body = made_up_, .delivery = FakeHttpAnswer::Delivery::kAsGiven};
  }
  FakeHttpAnswer answer;
  if (fault == Fault::kSlowDown) {
    answer = Error(503, "SlowDown");
  } else if (fault == Fault::kInternal) {
    answer = Error(500, "InternalError");
  } else if (fault == Fault::kRefused) {
    answer = Error(403, "AccessDenied");
  } else if (fault == Fault::kLateError) {
    answer = Error(200, "InternalError");
  } else if (fault != Fault::kReset) {
    answer = Handle(request);
  }
  if (fault == Fault::kReset || fault == Fault::kLost) {
    answer.delivery = FakeHttpAnswer::Delivery::kReset;
  } else if (fault == Fault::kTruncate) {
    answer.delivery = FakeHttpAnswer::Delivery::kHalf;
  }
  answer.headers.push_back(std::move(date));
  return answer;
}

std::string FakeObjectStore::Store(const std::string& key, std::string bytes) {
  Object& object = objects_[key];
  object.etag = absl::StrCat("\"", Digest(bytes).substr(0, 32), "\"");
  object.bytes = std::move(bytes);
  object.modified = now_;
  return object.etag;
}

FakeHttpAnswer FakeObjectStore::Handle(const Request& request) {
  if (request.method == "POST" && request.path == "/") {
    return role_answer_.empty() ? Error(403, "InvalidIdentityToken")
                                : FakeHttpAnswer{200, role_answer_};
  }
  if (!request.IsSigned()) return Error(403, "SignatureDoesNotMatch");
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
    if (!match.empty() && !is_there) return Error(404, "NoSuchKey");
    if (!match.empty() && match != found->second.etag) {
      return Error(412, "PreconditionFailed");
    }
    if (request.header("if-none-match") == "*" && is_there) {
      return Error(412, "PreconditionFailed");
    }
  }
  if (request.method == "PUT") {
    return {200, "", {absl::StrCat("ETag: ", Store(key, request.body))}};
  }
  if (request.method == "DELETE") {
    objects_.erase(key);
    return {204};
  }
  if (!is_there) return Error(404, "NoSuchKey");
  const Object& object = found->second;
  FakeHttpAnswer answer{200, object.bytes};
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
  if (begin >= object.bytes.size()) return Error(416, "InvalidRange");
  last = std::min(last, object.bytes.size() - 1);
  answer.code = 206;
  answer.body = object.bytes.substr(begin, last - begin + 1);
  answer.headers.push_back(absl::StrCat("Content-Range: bytes ", begin, "-",
                                        last, "/", object.bytes.size()));
  return answer;
}

FakeHttpAnswer FakeObjectStore::HandleUpload(const Request& request,
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
    return Error(404, "NoSuchUpload");
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
      return Error(400, "InvalidPart");
    }
    if (number < static_cast<int>(parts.size()) && bytes.size() < 5 << 20) {
      return Error(400, "EntityTooSmall");
    }
    whole += bytes;
  }
  Store(key, std::move(whole));
  uploads_.erase(upload);
  return {200, "<CompleteMultipartUploadResult/>"};
}

FakeHttpAnswer FakeObjectStore::List(const Request& request) {
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
