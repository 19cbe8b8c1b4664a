#include "services/rpc/security/security.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/config/text_proto.h"
#include "services/rpc/security/certificate_file.h"

namespace gshard {
namespace {

using grpc::experimental::FileWatcherCertificateProvider;

constexpr std::chrono::seconds kReloadInterval{1};
constexpr unsigned int kProviderIntervalSeconds = 1;
constexpr size_t kMaxTokenBytes = 4096;

// Identifies a version of the file: differs after every change; empty if the
// file does not exist.
std::string StampOf(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return "";
  return absl::StrCat(info.st_dev, " ", info.st_ino, " ", info.st_size, " ",
                      info.st_mtim.tv_sec, " ", info.st_mtim.tv_nsec);
}

}  // namespace

std::string Security::WatchedFile::Stamp() const {
  // A key may be written long after its certificate.
  return absl::StrCat(StampOf(path), "; ", StampOf(key_path));
}

absl::StatusOr<std::shared_ptr<Security>> Security::CreateForServer(
    const SecurityOptions& options, const std::string& listen) {
  RETURN_IF_ERROR(ValidateServerSecurity(options, listen));
  std::shared_ptr<Security> security(new Security(options));
  RETURN_IF_ERROR(security->Start());
  return security;
}

absl::StatusOr<std::shared_ptr<Security>> Security::CreateForClient(
    const SecurityOptions& options) {
  RETURN_IF_ERROR(ValidateClientSecurity(options, /*address=*/""));
  std::shared_ptr<Security> security(new Security(options));
  RETURN_IF_ERROR(security->Start());
  return security;
}

Security::~Security() {
  {
    MutexLock lock(stop_mutex_);
    stopping_ = true;
    stopped_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status Security::Start() {
  MutexLock lock(reload_mutex_);
  if (!options_.auth_file.empty()) {
    files_.push_back({options_.auth_file,
                      /*key_path=*/"",
                      [this](const auto& path) { return ReadAuthFile(path); }});
  }
  if (!options_.token_file.empty()) {
    WarnIfReadableByOthers(options_.token_file);
    files_.push_back({options_.token_file,
                      /*key_path=*/"", [this](const auto& path) {
                        return ReadTokenFile(path);
                      }});
  }
  if (!options_.tls_certificate.empty()) {
    WarnIfReadableByOthers(options_.tls_key);
    files_.push_back(
        {options_.tls_certificate, options_.tls_key,
         [this](const auto& path) { return ReadCertificate(path); }});
  }
  if (!options_.tls_ca.empty()) {
    // gRPC reads it by itself, but does not tell what is wrong with it.
    files_.push_back({options_.tls_ca,
                      /*key_path=*/"", [](const auto& path) {
                        return CertificateExpiry(path).status();
                      }});
  }
  for (WatchedFile& file : files_) {
    file.stamp = file.Stamp();
    RETURN_IF_ERROR(file.read(file.path));
  }
  if (!options_.tls_certificate.empty() || !options_.tls_ca.empty()) {
    provider_ = std::make_shared<FileWatcherCertificateProvider>(
        options_.tls_key, options_.tls_certificate, options_.tls_ca,
        kProviderIntervalSeconds);
  }
  WarnOfExpiry();
  if (!files_.empty()) thread_ = std::thread([this] { Watch(); });
  return absl::OkStatus();
}

absl::StatusOr<Caller> Security::Identify(
    const Credentials& credentials) const {
  std::shared_ptr<const AuthTable> table;
  {
    ReaderMutexLock lock(mutex_);
    table = table_;
  }
  if (table != nullptr) return table->Identify(credentials);
  return Caller{.name = credentials.certificate_names.empty()
                            ? kAnonymous
                            : credentials.certificate_names.front(),
                .grants = AllGrants()};
}

std::string Security::authorization() const {
  ReaderMutexLock lock(mutex_);
  return authorization_;
}

void Security::AddMetrics(Metrics& metrics) const {
  if (options_.tls_certificate.empty()) return;
  metrics.AddCallbackGauge(
      "gshard_tls_certificate_remaining_seconds",
      "Time until this process's certificate expires; negative afterwards.",
      [this] {
        ReaderMutexLock lock(mutex_);
        return absl::ToDoubleSeconds(expiry_ - absl::Now());
      });
}

absl::Status Security::ReadAuthFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  absl::StatusOr<AuthTable> table = AuthTable::Parse(text);
  if (!table.ok()) return Annotate(table.status(), path);
  LogInfo("read the callers", {{"file", path}, {"callers", table->size()}});
  auto shared = std::make_shared<const AuthTable>(*std::move(table));
  WriterMutexLock lock(mutex_);
  table_.swap(shared);
  return absl::OkStatus();
}

absl::Status Security::ReadTokenFile(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  const absl::string_view token = absl::StripAsciiWhitespace(text);
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) {
    return 0x21 <= c && c <= 0x7e;
  });
  if (token.empty() || token.size() > kMaxTokenBytes || !printable) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected one token of 1 to ", kMaxTokenBytes,
                     " printable characters"));
  }
  std::string authorization = absl::StrCat("Bearer ", token);
  WriterMutexLock lock(mutex_);
  authorization_.swap(authorization);
  return absl::OkStatus();
}

absl::Status Security::ReadCertificate(const std::string& path) {
  RETURN_IF_ERROR(CheckKeyPair(path, options_.tls_key));
  ASSIGN_OR_RETURN(const absl::Time expiry, CertificateExpiry(path));
  LogInfo("read the certificate",
          {{"file", path}, {"expires", absl::FormatTime(expiry)}});
  WriterMutexLock lock(mutex_);
  expiry_ = expiry;
  return absl::OkStatus();
}

void Security::WarnOfExpiry() {
  if (options_.tls_certificate.empty()) return;
  const absl::Time now = absl::Now();
  absl::Time expiry;
  {
    ReaderMutexLock lock(mutex_);
    expiry = expiry_;
  }
  if (expiry - now > kExpiryWarning || now - warned_ < absl::Hours(1)) return;
  warned_ = now;
  LogWarning(
      expiry > now ? "the certificate expires soon" : "the certificate expired",
      {{"file", options_.tls_certificate},
       {"remaining_seconds", absl::ToInt64Seconds(expiry - now)}});
}

void Security::Reload() {
  MutexLock lock(reload_mutex_);
  for (WatchedFile& file : files_) {
    std::string stamp = file.Stamp();
    // What kept a file from being read may end without a change of the file:
    // its permissions, a lack of descriptors.
    if (stamp == file.stamp && file.failed.ok()) continue;
    file.stamp = std::move(stamp);
    absl::Status status = file.read(file.path);
    if (!status.ok() && status != file.failed) {
      LogError("a changed file is not used; its former state stays in force",
               {{"file", file.path}, {"status", status}});
    }
    file.failed = std::move(status);
  }
  WarnOfExpiry();
}

void Security::Watch() {
  MutexLock lock(stop_mutex_);
  while (!stopped_.WaitFor(lock, kReloadInterval,
                           [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(stop_mutex_) {
                             return stopping_;
                           })) {
    lock.Unlock();
    Reload();
    lock.Lock();
  }
}

}  // namespace gshard
