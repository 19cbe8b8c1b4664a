#include "services/rpc/security/certificate_file.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <memory>

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
};
using CertificatePointer = std::unique_ptr<X509, Free>;
using KeyPointer = std::unique_ptr<EVP_PKEY, Free>;

std::unique_ptr<BIO, Free> Reader(const std::string& text) {
  return std::unique_ptr<BIO, Free>(
      BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// No passphrase: a server has nobody to ask for one.
int NoPassphrase(char*, int, int, void*) { return 0; }

absl::StatusOr<CertificatePointer> ReadCertificate(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  CertificatePointer certificate(
      PEM_read_bio_X509(Reader(text).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (certificate == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a certificate in PEM format"));
  }
  return certificate;
}

}  // namespace

absl::StatusOr<absl::Time> CertificateExpiry(const std::string& path) {
  ASSIGN_OR_RETURN(const CertificatePointer certificate, ReadCertificate(path));
  tm end = {};
  if (ASN1_TIME_to_tm(X509_get0_notAfter(certificate.get()), &end) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": the certificate's end is not a time"));
  }
  return absl::FromTM(end, absl::UTCTimeZone());
}

absl::Status CheckKeyPair(const std::string& certificate_path,
                          const std::string& key_path) {
  ASSIGN_OR_RETURN(const CertificatePointer certificate,
                   ReadCertificate(certificate_path));
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(key_path));
  const KeyPointer key(PEM_read_bio_PrivateKey(Reader(text).get(), nullptr,
                                               NoPassphrase, nullptr));
  const bool fits =
      key != nullptr && X509_check_private_key(certificate.get(), key.get());
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

void WarnIfReadableByOthers(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0 || (info.st_mode & S_IROTH) == 0) return;
  LogWarning("a secret can be read by other users; chmod o-r it",
             {{"file", path}});
}

}  // namespace gshard
