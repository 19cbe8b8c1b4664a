#include "services/storage/object_client.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "services/base/log.h"
#include "services/base/mutex.h"
#include "services/base/random.h"
#include "services/base/status_macros.h"
#include "services/base/utf8.h"
#include "services/http/http_time.h"
#include "services/storage/xml_text.h"

namespace gshard {
namespace {

constexpr size_t kMaxListed = 1'000'000;

// Quotes a store's message for errors, whose texts are UTF-8.
std::string Quote(absl::string_view text, size_t bytes) {
  text = text.substr(0, bytes);
  return std::string(text.substr(0, FirstMalformedByte(text)));
}

// An error response.
struct Refusal {
  int http = 0;
  std::string code = {};     // "SlowDown"; empty if it says none
  std::string message = {};  // human-readable
};

Refusal RefusalOf(const HttpResponse& response) {
  Refusal refusal{.http = response.code};
  const absl::StatusOr<XmlTexts> texts = ParseXml(response.body);
  if (!texts.ok()) return refusal;
  refusal.code = Quote(FindXml(*texts, "Code"), 64);
  refusal.message = Quote(FindXml(*texts, "Message"), 300);
  return refusal;
}

// A response with status 200 may still contain an error if it was started
// early.
bool IsSuccess(const HttpResponse& response) {
  return response.code / 100 == 2 &&
         !absl::StrContains(response.body.substr(0, 512), "<Error>");
}

bool MayPass(const Refusal& refusal) {
  constexpr absl::string_view kCodes[] = {"InternalError", "OperationAborted",
                                          "RequestTimeout", "SlowDown",
                                          "ServiceUnavailable"};
  return refusal.http == 408 || refusal.http == 409 || refusal.http == 429 ||
         refusal.http >= 500 ||
         std::find(std::begin(kCodes), std::end(kCodes), refusal.code) !=
             std::end(kCodes);
}

bool MeansExpired(const Refusal& refusal) {
  return absl::StrContains(refusal.code, "ExpiredToken") ||
         refusal.code == "TokenRefreshRequired" ||
         (refusal.http == 400 && refusal.code.empty());  // a HEAD response
}

absl::StatusCode CodeOf(const Refusal& refusal) {
  if (absl::StrContains(refusal.code, "Quota") || refusal.http == 507) {
    return absl::StatusCode::kResourceExhausted;
  }
  switch (refusal.http) {
    case 301:
    case 307:
    case 400:
      return absl::StatusCode::kFailedPrecondition;
    case 401:
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 412:
      return absl::StatusCode::kAborted;
    case 416:
      return absl::StatusCode::kDataLoss;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

absl::Status StatusOf(const std::string& what, const Refusal& refusal) {
  return absl::Status(
      CodeOf(refusal),
      absl::StrCat(what, ": HTTP ", refusal.http,
                   refusal.code.empty() ? "" : " ", refusal.code,
                   refusal.message.empty() ? "" : ": ", refusal.message,
                   refusal.http == 301 || refusal.http == 307
                       ? "; the bucket may be in another region"
                       : ""));
}

double RandomFraction() {
  static std::atomic<uint64_t> count{0};
  static const auto key = static_cast<uint64_t>(absl::GetCurrentTimeNanos());
  return RandomUniform(key, count++);
}

std::string FirstOf(std::initializer_list<std::string> values) {
  for (const std::string& value : values) {
    if (!value.empty()) return value;
  }
  return "";
}

absl::Status CheckEndpoint(absl::string_view url, bool insecure) {
  if (!IsEndpointUrl(url)) {
    return absl::FailedPreconditionError(
        "object store: expected an endpoint http[s]://host[:port] without "
        "user, query and fragment");
  }
  if (insecure || IsConfidentialUrl(url)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "object store: expected an endpoint https://..., or --insecure where the "
      "network is safe, got ",
      url));
}

}  // namespace

absl::Duration DelayBefore(int attempt, const ObjectStoreOptions& options,
                           double random) {
  absl::Duration delay = options.first_delay;
  for (int i = 1; i < attempt && delay < options.max_delay; ++i) delay *= 2;
  return std::min(delay, options.max_delay) * (0.5 + random / 2);
}

absl::StatusOr<std::unique_ptr<ObjectClient>> ObjectClient::Create(
    const ObjectStoreOptions& options, Environment environment) {
  ObjectStoreOptions complete = options;
  complete.region = FirstOf({options.region, environment("AWS_REGION"),
                             environment("AWS_DEFAULT_REGION"), "us-east-1"});
  const std::string of_all =
      FirstOf({options.endpoint, environment("AWS_ENDPOINT_URL")});
  complete.endpoint =
      FirstOf({options.endpoint, environment("AWS_ENDPOINT_URL_S3"), of_all,
               absl::StrCat("https://s3.", complete.region, ".amazonaws.com")});
  complete.endpoint = std::string(absl::StripSuffix(complete.endpoint, "/"));
  std::string sts = FirstOf(
      {environment("AWS_ENDPOINT_URL_STS"), of_all,
       absl::StrCat("https://sts.", complete.region, ".amazonaws.com")});
  sts = std::string(absl::StripSuffix(sts, "/"));
  RETURN_IF_ERROR(CheckEndpoint(complete.endpoint, options.insecure));
  RETURN_IF_ERROR(CheckEndpoint(sts, options.insecure));
  return std::unique_ptr<ObjectClient>(new ObjectClient(
      std::move(complete), std::move(sts), std::move(environment)));
}

std::string ObjectClient::Url(const std::string& bucket, absl::string_view key,
                              absl::string_view query) const {
  return absl::StrCat(options_.endpoint, "/", bucket, key.empty() ? "" : "/",
                      EncodeUrl(key, /*is_path=*/true), query);
}

absl::StatusOr<HttpResponse> ObjectClient::Send(const std::string& what,
                                                HttpRequest request,
                                                int* sent) {
  absl::Status status;
  for (int attempt = 0; attempt < options_.attempts; ++attempt) {
    if (attempt > 0) {
      absl::SleepFor(DelayBefore(attempt, options_, RandomFraction()));
    }
    const absl::StatusOr<StoreCredentials> credentials = credentials_.Get();
    if (absl::IsUnavailable(credentials.status())) {
      status = Annotate(credentials.status(), what);
      continue;
    }
    RETURN_IF_ERROR(credentials.status());
    request.credentials = &*credentials;
    request.region = options_.region;
    if (sent != nullptr) ++*sent;
    HttpResponse response = http_.Send(request);
    if (!response.transfer.ok()) {
      // Keep the bytes received so far, and continue after them.
      request.target.remove_prefix(response.received);
      request.offset += response.received;
      status = Annotate(response.transfer, what);
      if (request.target.data() == nullptr || !request.target.empty()) continue;
      return response;
    }
    if (IsSuccess(response)) return response;
    const Refusal refusal = RefusalOf(response);
    status = StatusOf(what, refusal);
    if (MeansExpired(refusal)) {
      credentials_.Forget();
    } else if (!MayPass(refusal)) {
      return status;
    }
  }
  LogWarning("an object store does not do what it is asked to",
             {{"status", status}, {"attempts", options_.attempts}});
  return status;
}

absl::StatusOr<ObjectInfo> ObjectClient::Head(const ObjectPath& path,
                                              absl::Duration timeout) {
  const std::string what = absl::StrCat("look at ", path.Text());
  ASSIGN_OR_RETURN(
      const HttpResponse response,
      Send(what, {.method = "HEAD",
                  .url = Url(path.bucket, path.key, ""),
                  .timeout = absl::ToChronoMilliseconds(timeout)}));
  ObjectInfo info{.etag = response.header("etag"),
                  .modified = ParseHttpTime(response.header("last-modified")),
                  .now = ParseHttpTime(response.header("date"))};
  if (info.etag.empty() ||
      !absl::SimpleAtoi(response.header("content-length"), &info.bytes)) {
    return absl::DataLossError(
        absl::StrCat(what, ": expected its size and tag in the answer"));
  }
  return info;
}

absl::Status ObjectClient::Get(const ObjectPath& path, uint64_t offset,
                               const std::string& etag, absl::Span<char> target,
                               absl::Duration timeout) {
  if (target.empty()) return absl::OkStatus();
  const std::string what = absl::StrCat("read ", path.Text());
  HttpRequest request{.method = "GET",
                      .url = Url(path.bucket, path.key, ""),
                      .target = target,
                      .offset = offset,
                      .timeout = absl::ToChronoMilliseconds(timeout)};
  if (!etag.empty()) {
    request.headers.push_back(absl::StrCat("If-Match: ", etag));
  }
  const absl::StatusOr<HttpResponse> response = Send(what, request);
  if (absl::IsAborted(response.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(what, ": it has changed since it was opened"));
  }
  RETURN_IF_ERROR(response.status());
  // The response to the last request: it ends where the target does.
  const std::string range = response->header("content-range");
  const uint64_t last = offset + target.size() - 1;
  if (response->code == 206 &&
      absl::StrContains(range, absl::StrCat("-", last, "/"))) {
    return absl::OkStatus();
  }
  // The whole object, which a server may send for the range that it is.
  if (response->code == 200 && response->received == target.size()) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat(what, ": expected the bytes up to ", last, ", got HTTP ",
                   response->code, " with range '", Quote(range, 64), "'"));
}

absl::StatusOr<std::string> ObjectClient::Put(const ObjectPath& path,
                                              absl::string_view bytes,
                                              const PutCondition& condition,
                                              absl::Duration timeout) {
  const std::string what = absl::StrCat("write ", path.Text());
  HttpRequest request{.method = "PUT",
                      .url = Url(path.bucket, path.key, ""),
                      .body = bytes,
                      .timeout = absl::ToChronoMilliseconds(timeout)};
  const bool is_new = condition.kind == PutCondition::Kind::kAbsent;
  if (is_new) {
    request.headers.push_back("If-None-Match: *");
  } else if (condition.kind == PutCondition::Kind::kMatches) {
    request.headers.push_back(absl::StrCat("If-Match: ", condition.etag));
  }
  int sent = 0;
  const absl::StatusOr<HttpResponse> response = Send(what, request, &sent);
  if (response.ok()) {
    const std::string etag = response->header("etag");
    if (!etag.empty()) return etag;
    return absl::DataLossError(
        absl::StrCat(what, ": expected a tag in the answer"));
  }
  const bool is_refused = absl::IsAborted(response.status()) ||
                          (condition.kind == PutCondition::Kind::kMatches &&
                           absl::IsNotFound(response.status()));
  if (!is_refused) return response.status();
  if (sent > 1) {
    // Perhaps because an earlier attempt, whose response was lost, wrote it.
    const absl::StatusOr<ObjectInfo> info = Head(path, timeout);
    std::string there(bytes.size(), '\0');
    if (info.ok() && info->bytes == bytes.size() &&
        Get(path, 0, info->etag, absl::MakeSpan(there), timeout).ok() &&
        there == bytes) {
      return info->etag;
    }
  }
  return is_new ? absl::AlreadyExistsError(
                      absl::StrCat(what, ": it is there already"))
                : absl::AbortedError(absl::StrCat(
                      what, ": it is not what it was when it was read"));
}

absl::Status ObjectClient::Delete(const ObjectPath& path) {
  const absl::Status status =
      Send(absl::StrCat("remove ", path.Text()),
           {.method = "DELETE", .url = Url(path.bucket, path.key, "")})
          .status();
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<ObjectList> ObjectClient::List(const std::string& bucket,
                                              const std::string& prefix,
                                              absl::string_view delimiter) {
  const std::string what = absl::StrCat("list s3://", bucket, "/", prefix);
  ObjectList list;
  std::string token;
  while (list.keys.size() + list.prefixes.size() <= kMaxListed) {
    std::string query = "?";
    if (!token.empty()) {
      absl::StrAppend(&query, "continuation-token=", EncodeUrl(token, false),
                      "&");
    }
    absl::StrAppend(&query, "delimiter=", EncodeUrl(delimiter, false),
                    "&list-type=2&prefix=", EncodeUrl(prefix, false));
    ASSIGN_OR_RETURN(
        const HttpResponse response,
        Send(what, {.method = "GET", .url = Url(bucket, "", query)}));
    const absl::StatusOr<XmlTexts> texts = ParseXml(response.body);
    if (!texts.ok()) return Annotate(texts.status(), what);
    for (const auto& [path, text] : *texts) {
      if (path == "ListBucketResult/Contents/Key") list.keys.push_back(text);
      if (path == "ListBucketResult/CommonPrefixes/Prefix") {
        list.prefixes.push_back(text);
      }
    }
    if (FindXml(*texts, "ListBucketResult/IsTruncated") != "true") return list;
    std::string next =
        FindXml(*texts, "ListBucketResult/NextContinuationToken");
    if (next.empty() || next == token) {
      return absl::DataLossError(
          absl::StrCat(what, ": expected a token for the rest of the list"));
    }
    token = std::move(next);
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(what, ": expected at most ", kMaxListed, " names"));
}

absl::StatusOr<std::string> ObjectClient::BeginUpload(const ObjectPath& path) {
  const std::string what = absl::StrCat("begin to write ", path.Text());
  ASSIGN_OR_RETURN(
      const HttpResponse response,
      Send(what,
           {.method = "POST", .url = Url(path.bucket, path.key, "?uploads=")}));
  const absl::StatusOr<XmlTexts> texts = ParseXml(response.body);
  std::string id = texts.ok() ? FindXml(*texts, "UploadId") : "";
  if (!id.empty()) return id;
  return absl::DataLossError(
      absl::StrCat(what, ": expected an UploadId in the answer"));
}

absl::StatusOr<std::string> ObjectClient::PutPart(const ObjectPath& path,
                                                  const std::string& upload,
                                                  int number,
                                                  absl::string_view bytes) {
  const std::string what =
      absl::StrCat("write part ", number, " of ", path.Text());
  ASSIGN_OR_RETURN(
      const HttpResponse response,
      Send(what, {.method = "PUT",
                  .url = Url(path.bucket, path.key,
                             absl::StrCat("?partNumber=", number, "&uploadId=",
                                          EncodeUrl(upload, false))),
                  .body = bytes}));
  const std::string etag = response.header("etag");
  if (!etag.empty()) return etag;
  return absl::DataLossError(
      absl::StrCat(what, ": expected a tag in the answer"));
}

absl::Status ObjectClient::CompleteUpload(const ObjectPath& path,
                                          const std::string& upload,
                                          absl::Span<const std::string> etags,
                                          uint64_t bytes) {
  std::string body = "<CompleteMultipartUpload>";
  for (size_t i = 0; i < etags.size(); ++i) {
    absl::StrAppend(&body, "<Part><PartNumber>", i + 1, "</PartNumber><ETag>",
                    etags[i], "</ETag></Part>");
  }
  absl::StrAppend(&body, "</CompleteMultipartUpload>");
  int sent = 0;
  const absl::Status status =
      Send(absl::StrCat("finish ", path.Text()),
           {.method = "POST",
            .url = Url(path.bucket, path.key,
                       absl::StrCat("?uploadId=", EncodeUrl(upload, false))),
            .headers = {"Content-Type: application/xml"},
            .body = body},
           &sent)
          .status();
  if (!absl::IsNotFound(status) || sent == 1) return status;
  // The upload no longer exists, perhaps completed by an earlier attempt whose
  // response was lost.
  const absl::StatusOr<ObjectInfo> info = Head(path);
  return info.ok() && info->bytes == bytes ? absl::OkStatus() : status;
}

absl::Status ObjectClient::AbortUpload(const ObjectPath& path,
                                       const std::string& upload) {
  const absl::Status status =
      Send(absl::StrCat("give up ", path.Text()),
           {.method = "DELETE",
            .url = Url(path.bucket, path.key,
                       absl::StrCat("?uploadId=", EncodeUrl(upload, false)))})
          .status();
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

namespace {

struct OfProcess {
  Mutex mutex;
  ObjectStoreOptions options ABSL_GUARDED_BY(mutex);
  std::shared_ptr<ObjectClient> client ABSL_GUARDED_BY(mutex);
};

OfProcess& TheProcess() {
  static OfProcess& process = *new OfProcess();
  return process;
}

}  // namespace

void ConfigureObjectStore(const ObjectStoreOptions& options) {
  OfProcess& process = TheProcess();
  MutexLock lock(process.mutex);
  process.options = options;
  process.client = nullptr;
}

absl::StatusOr<std::shared_ptr<ObjectClient>> ProcessObjectClient() {
  OfProcess& process = TheProcess();
  MutexLock lock(process.mutex);
  if (process.client == nullptr) {
    ASSIGN_OR_RETURN(process.client, ObjectClient::Create(process.options));
  }
  return process.client;
}

}  // namespace gshard
