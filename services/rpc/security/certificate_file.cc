#include "services/rpc/security/certificate_file.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <sys/stat.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/base/log.h"
#include "services/base/status_macros.h"
#include "services/config/text_proto.h"

namespace gshard {
namespace {

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509_STORE* store) const { X509_STORE_free(store); }
  void operator()(X509_STORE_CTX* check) const { X509_STORE_CTX_free(check); }
  // Of what it holds, the certificates belong to others.
  void operator()(STACK_OF(X509) * stack) const { sk_X509_free(stack); }
};
using CertificatePointer = std::unique_ptr<X509, Free>;
using KeyPointer = std::unique_ptr<EVP_PKEY, Free>;

std::unique_ptr<BIO, Free> Reader(const std::string& text) {
  return std::unique_ptr<BIO, Free>(
      BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// No passphrase: a server has nobody to ask for one.
int NoPassphrase(char*, int, int, void*) { return 0; }

// At least one.
absl::StatusOr<std::vector<CertificatePointer>> ReadCertificates(
    const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  const auto reader = Reader(text);
  std::vector<CertificatePointer> certificates;
  while (X509* const certificate =
             PEM_read_bio_X509(reader.get(), nullptr, NoPassphrase, nullptr)) {
    certificates.emplace_back(certificate);
  }
  ERR_clear_error();
  if (certificates.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a certificate in PEM format"));
  }
  return certificates;
}

}  // namespace

absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path) {
  ASSIGN_OR_RETURN(const auto certificates, ReadCertificates(path));
  tm end = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificates[0].get()), &end) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the certificate's end is not a time"));
  }
  return absl::FromTM(end, absl::UTCTimeZone());
}

absl::Status CheckKeyPair(const std::string& certificate_path,
                          const std::string& key_path) {
  ASSIGN_OR_RETURN(const auto certificates, ReadCertificates(certificate_path));
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(key_path));
  const KeyPointer key(PEM_read_bio_PrivateKey(Reader(text).get(), nullptr,
                                               NoPassphrase, nullptr));
  const bool fits = key != nullptr &&
                    X509_check_private_key(certificates[0].get(), key.get());
  ERR_clear_error();
  if (key == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        key_path, ": expected a private key in PEM format, not encrypted"));
  }
  if (!fits) {
    return absl::InvalidArgumentError(
        absl::StrCat(key_path, ": expected the key of the certificate in ",
                     certificate_path, ", got another"));
  }
  return absl::OkStatus();
}

absl::Status CheckTrusted(const std::string& certificate_path,
                          const std::string& authority_path) {
  ASSIGN_OR_RETURN(const auto shown, ReadCertificates(certificate_path));
  ASSIGN_OR_RETURN(const auto authorities, ReadCertificates(authority_path));
  const std::unique_ptr<X509_STORE, Free> store(X509_STORE_new());
  for (const CertificatePointer& authority : authorities) {
    X509_STORE_add_cert(store.get(), authority.get());
  }
  const std::unique_ptr<STACK_OF(X509), Free> others(sk_X509_new_null());
  for (const CertificatePointer& other : shown) {
    sk_X509_push(others.get(), other.get());
  }
  const std::unique_ptr<X509_STORE_CTX, Free> check(X509_STORE_CTX_new());
  // As gRPC does: what is there need not be the root.
  X509_STORE_set_flags(store.get(), X509_V_FLAG_PARTIAL_CHAIN);
  X509_STORE_CTX_init(check.get(), store.get(), shown[0].get(), others.get());
  const bool trusted = X509_verify_cert(check.get()) == 1;
  ERR_clear_error();
  if (trusted) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      certificate_path, ": nobody who trusts ", authority_path, " accepts it: ",
      X509_verify_cert_error_string(X509_STORE_CTX_get_error(check.get()))));
}

void WarnIfReadableByOthers(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || (info.st_mode & S_IROTH) == 0) return;
  LogWarning("a secret can be read by other users; chmod o-r it",
             {{"file", path}});
}

}  // namespace gshard
