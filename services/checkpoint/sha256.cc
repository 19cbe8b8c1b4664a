#include "services/checkpoint/sha256.h"

#include <openssl/evp.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "services/base/check.h"

namespace gshard {

std::string Sha256(absl::string_view bytes) {
  Sha256Stream stream;
  stream.Append(bytes);
  return stream.Finish();
}

Sha256Stream::Sha256Stream() : context_(EVP_MD_CTX_new()) {
  CHECK(context_ != nullptr);
  CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
}

void Sha256Stream::Append(absl::string_view part) {
  CHECK(EVP_DigestUpdate(context_.get(), part.data(), part.size()) == 1);
}

std::string Sha256Stream::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  CHECK(EVP_DigestFinal_ex(context_.get(), digest, &size) == 1);
  CHECK(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), size));
}

void Sha256Stream::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

std::string Sha256(const Tensor& tensor) {
  return Sha256(absl::string_view(reinterpret_cast<const char*>(tensor.raw()),
                                  tensor.bytes()));
}

bool IsSha256(absl::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace gshard
