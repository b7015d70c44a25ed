// Finds NaN and infinite values before they get into a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace elasticdl::checkpoint {

// Index of the first NaN or infinite value; `count` if there is none. Runs at memory bandwidth.
inline size_t first_nonfinite(const float* values, size_t count) {
  constexpr size_t kBlock = 1024;
  constexpr uint32_t kExponent = 0x7f800000u;
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t end = first + kBlock < count ? first + kBlock : count;
    uint32_t found = 0;
    for (size_t i = first; i < end; ++i) {
      uint32_t bits;
      std::memcpy(&bits, values + i, sizeof bits);
      found |= static_cast<uint32_t>((bits & kExponent) == kExponent);
    }
    if (found == 0) continue;
    for (size_t i = first; i < end; ++i) {
      uint32_t bits;
      std::memcpy(&bits, values + i, sizeof bits);
      if ((bits & kExponent) == kExponent) return i;
    }
  }
  return count;
}

}  // namespace elasticdl::checkpoint
