// Human-readable large numbers.

#ifndef SERVICES_BASE_AMOUNT_TEXT_H_
#define SERVICES_BASE_AMOUNT_TEXT_H_

#include <cstdint>
#include <string>

namespace gshard {

// "1,234,567".
std::string GroupedText(int64_t count);

// "512 B", "2.25 GiB": powers of 1024, up to PiB. REQUIRES: bytes >= 0.
std::string BytesText(int64_t bytes);

}  // namespace gshard

#endif  // SERVICES_BASE_AMOUNT_TEXT_H_
