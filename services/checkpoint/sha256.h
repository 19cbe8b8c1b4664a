// SHA-256 of bytes, as checkpoints record it for every tensor and file.

#ifndef SERVICES_CHECKPOINT_SHA256_H_
#define SERVICES_CHECKPOINT_SHA256_H_

#include <string>

#include "absl/strings/string_view.h"
#include "services/tensor/tensor.h"

namespace gshard {

// 64 lower-case hexadecimal digits.
std::string Sha256(absl::string_view bytes);

// Of the elements, little-endian and row-major; shape and type are not part.
std::string Sha256(const Tensor& tensor);

// True for 64 lower-case hexadecimal digits.
bool IsSha256(absl::string_view text);

}  // namespace gshard

#endif  // SERVICES_CHECKPOINT_SHA256_H_
