#include "services/train/crc32c.h"

#include <array>

namespace gshard {
namespace {

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) {
      value = (value >> 1) ^ ((value & 1) ? 0x82F63B78u : 0u);
    }
    table[i] = value;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = MakeTable();

}  // namespace

uint32_t Crc32c(absl::string_view bytes) {
  uint32_t value = ~0u;
  for (const char c : bytes) {
    value = (value >> 8) ^ kTable[(value ^ static_cast<uint8_t>(c)) & 0xFF];
  }
  return ~value;
}

uint32_t MaskedCrc32c(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

}  // namespace gshard
