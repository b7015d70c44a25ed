// Finds NaN and infinite values before they get into a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "elasticdl/embedding/native/scalar.h"

namespace elasticdl::checkpoint {

// Index of the first NaN or infinite value; `count` if there is none. Runs at memory bandwidth.
template <class T>
size_t first_nonfinite(const T* values, size_t count) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  constexpr size_t kBlock = 1024;
  constexpr Bits kExponent = sizeof(T) == 8 ? static_cast<Bits>(0x7ff0000000000000u) : static_cast<Bits>(0x7f800000u);
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t end = first + kBlock < count ? first + kBlock : count;
    Bits found = 0;
    for (size_t i = first; i < end; ++i) {
      Bits bits;
      std::memcpy(&bits, values + i, sizeof bits);
      found |= static_cast<Bits>((bits & kExponent) == kExponent);
    }
    if (found == 0) continue;
    for (size_t i = first; i < end; ++i) {
      Bits bits;
      std::memcpy(&bits, values + i, sizeof bits);
      if ((bits & kExponent) == kExponent) return i;
    }
  }
  return count;
}

inline size_t first_nonfinite(Scalar scalar, const void* values, size_t count) {
  return with_type(scalar, [&](auto zero) { return first_nonfinite(static_cast<const decltype(zero)*>(values), count); });
}

// Value `at` of an array.
inline double value_at(Scalar scalar, const void* values, size_t at) {
  return with_type(scalar, [&](auto zero) { return static_cast<double>(static_cast<const decltype(zero)*>(values)[at]); });
}

}  // namespace elasticdl::checkpoint
