// CRC-32C (Castagnoli), as used by record files.

#ifndef SERVICES_TRAIN_CRC32C_H_
#define SERVICES_TRAIN_CRC32C_H_

#include <cstdint>

#include "absl/strings/string_view.h"

namespace gshard {

uint32_t Crc32c(absl::string_view bytes);

// The masked checksum that a TFRecord stores: rotated and offset, so that
// checksums of data that itself contains checksums remain strong.
uint32_t MaskedCrc32c(absl::string_view bytes);

}  // namespace gshard

#endif  // SERVICES_TRAIN_CRC32C_H_
