// SHA-256, which checkpoints record for every tensor and file.

#ifndef SERVICES_CHECKPOINT_SHA256_H_
#define SERVICES_CHECKPOINT_SHA256_H_

#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "services/tensor/tensor.h"

struct evp_md_ctx_st;  // OpenSSL's EVP_MD_CTX

namespace gshard {

// 64 lower-case hexadecimal digits.
std::string Sha256(absl::string_view bytes);

// The same for bytes that arrive in parts.
class Sha256Stream {
 public:
  Sha256Stream();

  void Append(absl::string_view part);

  // Returns the digest and resets.
  std::string Finish();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };

  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

// Digest of the elements, little-endian and row-major; excludes shape and type.
std::string Sha256(const Tensor& tensor);

// True for 64 lower-case hexadecimal digits.
bool IsSha256(absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_SHA256_H_
