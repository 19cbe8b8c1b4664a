// CRC-32C (Castagnoli), as record files use it.

#ifndef SERVICES_TRAIN_CRC32C_H_
#define SERVICES_TRAIN_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace gshard {

uint32_t Crc32c(absl::string_view bytes);

// Rotated and offset, so that a checksum of bytes that contain checksums is no
// weaker: what a TFRecord stores.
uint32_t MaskedCrc32c(absl::string_view bytes);

}  // namespace gshard

#endif  // SERVICES_TRAIN_CRC32C_H_
