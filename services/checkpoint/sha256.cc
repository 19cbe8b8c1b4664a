#include "services/checkpoint/sha256.h"

#include <openssl/evp.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "services/base/check.h"

namespace gshard {

std::string Sha256(absl::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  CHECK(EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(),
                   nullptr) == 1);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest), size));
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
