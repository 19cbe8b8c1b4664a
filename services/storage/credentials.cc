#include "services/storage/credentials.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "services/base/status_macros.h"
#include "services/http/http_client.h"
#include "services/storage/input_file.h"
#include "services/storage/xml_text.h"

namespace gshard {
namespace {

constexpr uint64_t kMaxFileBytes = 1 << 20;
// New credentials are requested this long before they expire.
constexpr absl::Duration kMargin = absl::Minutes(5);
constexpr absl::Duration kFileIsGood = absl::Minutes(1);
// New ones are requested again after this, while the previous ones are good.
constexpr absl::Duration kFindAgain = absl::Seconds(30);
// A caller waits for a role although its keys are good: one that renews a lease
// has little time.
constexpr std::chrono::seconds kRoleTimeout{5};

// Request headers contain both: a line break in them would inject headers.
bool MayBeSent(const StoreCredentials& credentials) {
  const auto is_printable = [](const std::string& text) {
    return std::all_of(text.begin(), text.end(), absl::ascii_isgraph);
  };
  return is_printable(credentials.key_id) && is_printable(credentials.token);
}

// Whether the service that assumes roles, or one that it asks, has no time now.
bool MayPass(int http, absl::string_view code) {
  return http == 429 || http >= 500 || absl::StartsWith(code, "Throttling") ||
         code == "RequestLimitExceeded" || code == "IDPCommunicationError";
}

}  // namespace

std::string ProcessEnvironment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<StoreCredentials> ParseCredentialsFile(
    absl::string_view text, absl::string_view profile) {
  StoreCredentials credentials;
  bool is_ours = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (line.front() == '[' && line.back() == ']') {
      is_ours = absl::StripAsciiWhitespace(line.substr(1, line.size() - 2)) ==
                profile;
      continue;
    }
    const size_t equals = line.find('=');
    if (!is_ours || equals == line.npos) continue;
    const absl::string_view key =
        absl::StripAsciiWhitespace(line.substr(0, equals));
    const std::string value(
        absl::StripAsciiWhitespace(line.substr(equals + 1)));
    if (key == "aws_access_key_id") credentials.key_id = value;
    if (key == "aws_secret_access_key") credentials.secret = value;
    if (key == "aws_session_token") credentials.token = value;
  }
  if (!credentials.key_id.empty() && !credentials.secret.empty()) {
    return credentials;
  }
  return absl::NotFoundError(
      absl::StrCat("expected aws_access_key_id and aws_secret_access_key in "
                   "section [",
                   profile, "]"));
}

absl::StatusOr<StoreCredentials> ParseAssumedRole(absl::string_view xml) {
  ASSIGN_OR_RETURN(const XmlTexts texts, ParseXml(xml));
  StoreCredentials credentials{
      .key_id = FindXml(texts, "Credentials/AccessKeyId"),
      .secret = FindXml(texts, "Credentials/SecretAccessKey"),
      .token = FindXml(texts, "Credentials/SessionToken")};
  std::string problem;
  if (credentials.key_id.empty() || credentials.secret.empty() ||
      credentials.token.empty() ||
      !absl::ParseTime(absl::RFC3339_full,
                       FindXml(texts, "Credentials/Expiration"),
                       &credentials.expires, &problem)) {
    return absl::DataLossError(
        "expected the keys of a role and when they expire");
  }
  return credentials;
}

CredentialSource::CredentialSource(std::string sts_endpoint, HttpClient* http,
                                   Environment environment,
                                   std::function<absl::Time()> clock)
    : sts_endpoint_(std::move(sts_endpoint)),
      http_(*http),
      environment_(std::move(environment)),
      clock_(std::move(clock)) {}

bool CredentialSource::IsGood(const StoreCredentials& credentials,
                              absl::Duration margin) const {
  return !credentials.key_id.empty() && clock_() + margin < credentials.expires;
}

absl::StatusOr<StoreCredentials> CredentialSource::Get() {
  MutexLock lock(mutex_);
  const int64_t finds = finds_;
  while (true) {
    if (IsGood(found_, kMargin)) return found_;
    if (IsGood(found_, absl::ZeroDuration()) &&
        (finding_ || clock_() < next_find_)) {
      return found_;
    }
    if (!finding_) break;
    changed_.Wait(lock);
    // What another caller has just failed at would fail again.
    if (finds_ != finds && !failed_.ok()) return failed_;
  }
  finding_ = true;
  lock.Unlock();
  absl::StatusOr<StoreCredentials> found = Find();
  lock.Lock();
  finding_ = false;
  ++finds_;
  failed_ = found.status();
  next_find_ = clock_() + kFindAgain;
  changed_.NotifyAll();
  if (found.ok()) {
    found_ = *std::move(found);
  } else if (!IsGood(found_, absl::ZeroDuration())) {
    return failed_;
  }
  return found_;
}

void CredentialSource::Forget() {
  MutexLock lock(mutex_);
  found_ = {};
}

absl::StatusOr<StoreCredentials> CredentialSource::Find() const {
  ASSIGN_OR_RETURN(StoreCredentials found, FindAnywhere());
  if (MayBeSent(found)) return found;
  return absl::PermissionDeniedError(
      "expected the key's id and the session's token for an object store to be "
      "printable ASCII without white space");
}

absl::StatusOr<StoreCredentials> CredentialSource::FindAnywhere() const {
  StoreCredentials credentials{.key_id = environment_("AWS_ACCESS_KEY_ID"),
                               .secret = environment_("AWS_SECRET_ACCESS_KEY"),
                               .token = environment_("AWS_SESSION_TOKEN")};
  if (!credentials.key_id.empty() && !credentials.secret.empty()) {
    return credentials;
  }
  const std::string token_file = environment_("AWS_WEB_IDENTITY_TOKEN_FILE");
  if (!token_file.empty()) return AssumeRole(token_file);
  std::string file = environment_("AWS_SHARED_CREDENTIALS_FILE");
  if (file.empty()) {
    file = absl::StrCat(environment_("HOME"), "/.aws/credentials");
  }
  const std::string profile = environment_("AWS_PROFILE");
  absl::StatusOr<std::string> text = ReadFile(file, kMaxFileBytes);
  absl::Status status = text.status();
  if (status.ok()) {
    absl::StatusOr<StoreCredentials> parsed = ParseCredentialsFile(
        *text, profile.empty() ? absl::string_view("default") : profile);
    if (parsed.ok()) {
      parsed->expires = clock_() + kMargin + kFileIsGood;
      return parsed;
    }
    status = Annotate(parsed.status(), file);
  }
  return absl::PermissionDeniedError(
      absl::StrCat("no credentials for an object store: expected "
                   "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
                   "AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, or a shared "
                   "credentials file: ",
                   status.message()));
}

absl::StatusOr<StoreCredentials> CredentialSource::AssumeRole(
    const std::string& token_file) const {
  const std::string role = environment_("AWS_ROLE_ARN");
  std::string session = environment_("AWS_ROLE_SESSION_NAME");
  if (session.empty()) session = "gshard";
  if (role.empty()) {
    return absl::PermissionDeniedError(
        "AWS_WEB_IDENTITY_TOKEN_FILE: expected AWS_ROLE_ARN beside it");
  }
  const absl::StatusOr<std::string> token = ReadFile(token_file, kMaxFileBytes);
  if (!token.ok()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "AWS_WEB_IDENTITY_TOKEN_FILE: ", token.status().message()));
  }
  const std::string body = absl::StrCat(
      "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=",
      EncodeUrl(role, false), "&RoleSessionName=", EncodeUrl(session, false),
      "&WebIdentityToken=",
      EncodeUrl(absl::StripAsciiWhitespace(*token), false));
  const HttpResponse response = http_.Send(
      {.method = "POST",
       .url = absl::StrCat(sts_endpoint_, "/"),
       .headers = {"Content-Type: application/x-www-form-urlencoded"},
       .body = body,
       .timeout = kRoleTimeout});
  const std::string where =
      absl::StrCat("role ", role, " of ", sts_endpoint_, ": ");
  if (!response.transfer.ok()) {
    return absl::UnavailableError(
        absl::StrCat(where, response.transfer.message()));
  }
  if (response.code == 200) {
    const absl::StatusOr<StoreCredentials> parsed =
        ParseAssumedRole(response.body);
    if (parsed.ok()) return parsed;
    return absl::UnavailableError(
        absl::StrCat(where, parsed.status().message()));
  }
  const absl::StatusOr<XmlTexts> error = ParseXml(response.body);
  const std::string code = error.ok() ? FindXml(*error, "Code") : "";
  return absl::Status(MayPass(response.code, code)
                          ? absl::StatusCode::kUnavailable
                          : absl::StatusCode::kPermissionDenied,
                      absl::StrCat(where, "HTTP ", response.code, " ", code));
}

}  // namespace gshard
