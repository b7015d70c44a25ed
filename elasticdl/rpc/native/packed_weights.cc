#include "elasticdl/rpc/native/packed_weights.h"

#include <cmath>
#include <cstring>

#include "elasticdl/rpc/native/prefix_code.h"

namespace elasticdl {
namespace {

constexpr size_t kFew = 256;  // a table of codes would be longer than what it saves

enum Method : uint8_t { kPlain = 0, kCoded = 1 };

template <class Bits>
struct Format;

template <>
struct Format<uint32_t> {
  static constexpr unsigned kMantissa = 23, kRest = 3;
};
template <>
struct Format<uint16_t> {
  static constexpr unsigned kMantissa = 7, kRest = 1;
};

// Splits values into exponents, and signs with mantissas. Writes 1 byte behind the last of these, if they are 3 bytes.
template <class Bits>
void split(const char* values, size_t count, uint8_t* exponents, char* rest) {
  using F = Format<Bits>;
  for (size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, values + i * sizeof bits, sizeof bits);
    exponents[i] = static_cast<uint8_t>(bits >> F::kMantissa);
    constexpr Bits kBelow = (Bits{1} << F::kMantissa) - 1;
    const Bits sign_and_mantissa = static_cast<Bits>((bits & kBelow) | (bits >> (8 * sizeof(Bits) - 1) << F::kMantissa));
    if constexpr (F::kRest == 1) rest[i] = static_cast<char>(sign_and_mantissa);
    else std::memcpy(rest + i * F::kRest, &sign_and_mantissa, sizeof(Bits));
  }
}

template <class Bits>
void join(const uint8_t* exponents, const char* rest, size_t count, char* values) {
  using F = Format<Bits>;
  const auto one = [&](size_t i, Bits sign_and_mantissa) {
    constexpr Bits kBelow = (Bits{1} << F::kMantissa) - 1;
    const Bits sign = static_cast<Bits>((sign_and_mantissa >> F::kMantissa & 1) << (8 * sizeof(Bits) - 1));
    const Bits bits = static_cast<Bits>(sign | (Bits{exponents[i]} << F::kMantissa) | (sign_and_mantissa & kBelow));
    std::memcpy(values + i * sizeof bits, &bits, sizeof bits);
  };
  // All but the last may be read with the byte that follows.
  for (size_t i = 0; i + 1 < count; ++i) {
    Bits sign_and_mantissa = 0;
    if constexpr (F::kRest == 1) sign_and_mantissa = static_cast<uint8_t>(rest[i]);
    else std::memcpy(&sign_and_mantissa, rest + i * F::kRest, sizeof(Bits));
    one(i, sign_and_mantissa);
  }
  Bits last = 0;
  std::memcpy(&last, rest + (count - 1) * F::kRest, F::kRest);
  one(count - 1, last);
}

template <class Bits>
size_t pack_coded(const char* values, size_t count, Buffer& room, char* out) {
  auto* exponents = reinterpret_cast<uint8_t*>(room.room(count + count * Format<Bits>::kRest + 1));
  char* const rest = reinterpret_cast<char*>(exponents) + count;
  split<Bits>(values, count, exponents, rest);
  const size_t coded = PrefixCode::encode(exponents, count, out);
  std::memcpy(out + coded, rest, count * Format<Bits>::kRest);
  return coded + count * Format<Bits>::kRest;
}

template <class Bits>
void unpack_coded(wire::Cursor& cursor, size_t count, Buffer& room, char* out) {
  // Before any allocation: each value has that many bytes in the frame.
  if (cursor.left() / Format<Bits>::kRest < count) throw UserError("a frame with fewer packed weights than it says");
  auto* exponents = reinterpret_cast<uint8_t*>(room.room(count));
  PrefixCode::decode(cursor, count, exponents);
  join<Bits>(exponents, cursor.elements(count, Format<Bits>::kRest), count, out);
}

}  // namespace

uint16_t to_bfloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  const uint32_t nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  return static_cast<uint16_t>(nan ? bits >> 16 | 0x40 : nearest);
}

float from_bfloat16(uint16_t value) {
  const uint32_t bits = uint32_t{value} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}

size_t PackedWeights::bound(size_t count) const { return 1 + count * width() + PrefixCode::bound(count); }

size_t PackedWeights::pack(const char* values, size_t count, char* out) {
  if (precision_ == wire::Precision::bfloat16) {
    auto* nearest = reinterpret_cast<uint16_t*>(short_.room(count * sizeof(uint16_t) + 1));
    with_type(scalar_, [&](auto zero) {
      using T = decltype(zero);
      const T* from = reinterpret_cast<const T*>(values);
      for (size_t i = 0; i < count; ++i) nearest[i] = to_bfloat16(static_cast<float>(from[i]));
    });
    values = reinterpret_cast<const char*>(nearest);
  }
  if (count < kFew || width() == sizeof(double)) {
    *out = kPlain;
    if (count > 0) std::memcpy(out + 1, values, count * width());
    return 1 + count * width();
  }
  *out = kCoded;
  return 1 + (width() == sizeof(uint16_t) ? pack_coded<uint16_t>(values, count, bytes_, out + 1)
                                          : pack_coded<uint32_t>(values, count, bytes_, out + 1));
}

void PackedWeights::unpack(wire::Cursor& cursor, size_t count, char* out) {
  const auto method = cursor.take<uint8_t>();
  const bool coded = method == kCoded && count >= kFew && width() != sizeof(double);
  if (method != kPlain && !coded) throw UserError("a frame with weights packed by method " + std::to_string(method));
  if (precision_ == wire::Precision::full) {
    if (coded) return unpack_coded<uint32_t>(cursor, count, bytes_, out);
    if (count > 0) std::memcpy(out, cursor.elements(count, width()), count * width());
    return;
  }
  auto* nearest = reinterpret_cast<uint16_t*>(short_.room(count * sizeof(uint16_t) + 1));
  if (coded) unpack_coded<uint16_t>(cursor, count, bytes_, reinterpret_cast<char*>(nearest));
  else if (count > 0) std::memcpy(nearest, cursor.elements(count, width()), count * width());
  with_type(scalar_, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < count; ++i) reinterpret_cast<T*>(out)[i] = from_bfloat16(nearest[i]);
  });
}

}  // namespace elasticdl
