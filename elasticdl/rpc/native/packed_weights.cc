#include "elasticdl/rpc/native/packed_weights.h"

#include <cstring>

#include "elasticdl/rpc/native/prefix_code.h"

namespace elasticdl {
namespace {
#define ELASTICDL_KERNELS "elasticdl/rpc/native/packed_weights_kernels.h"
#include "elasticdl/embedding/native/dispatch.h"

constexpr size_t kFew = 256;  // a table of codes would be longer than what it saves

enum Method : uint8_t { kPlain = 0, kCoded = 1 };

// What a coded value has besides its exponent: the sign and the mantissa.
constexpr size_t kRest = 3, kShortRest = 1;
constexpr unsigned kMantissa = 23;
constexpr uint32_t kBelow = (uint32_t{1} << kMantissa) - 1;

// Writes a byte behind the last `rest`.
void split(const char* values, size_t count, uint8_t* exponents, char* rest) {
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i * sizeof bits, sizeof bits);
    exponents[i] = static_cast<uint8_t>(bits >> kMantissa);
    const uint32_t sign_and_mantissa = (bits & kBelow) | (bits >> 31 << kMantissa);
    std::memcpy(rest + i * kRest, &sign_and_mantissa, sizeof bits);
  }
}

void join(const uint8_t* exponents, const char* rest, size_t count, char* values) {
  const auto one = [&](size_t i, size_t bytes) {
    uint32_t sign_and_mantissa = 0;
    std::memcpy(&sign_and_mantissa, rest + i * kRest, bytes);
    const uint32_t bits = (sign_and_mantissa >> kMantissa & 1) << 31 | uint32_t{exponents[i]} << kMantissa | (sign_and_mantissa & kBelow);
    std::memcpy(values + i * sizeof bits, &bits, sizeof bits);
  };
  // All but the last may be read with the byte that follows.
  for (size_t i = 0; i + 1 < count; ++i) one(i, sizeof(uint32_t));
  one(count - 1, kRest);
}

size_t put_coded(const uint8_t* exponents, const char* rest, size_t rest_bytes, size_t count, char* out) {
  const size_t coded = PrefixCode::encode(exponents, count, out);
  std::memcpy(out + coded, rest, rest_bytes);
  return coded + rest_bytes;
}

// The exponents in `room`. `rest`: bytes that follow for each.
const uint8_t* take_exponents(wire::Cursor& cursor, size_t count, size_t rest, Buffer& room) {
  // Before any allocation: each value has that many bytes in the frame.
  if (cursor.left() / rest < count) throw UserError("a frame with fewer packed weights than it says");
  auto* exponents = reinterpret_cast<uint8_t*>(room.room(count));
  PrefixCode::decode(cursor, count, exponents);
  return exponents;
}

}  // namespace

uint16_t to_bfloat16(float value) { return static_cast<uint16_t>(baseline::rounded_bits(value)); }

float from_bfloat16(uint16_t value) {
  float result;
  baseline::widen_all(&value, 1, &result);
  return result;
}

size_t PackedWeights::bound(size_t count) const { return 1 + count * width() + PrefixCode::bound(count); }

size_t PackedWeights::pack(const char* values, size_t count, char* out) {
  if (precision_ == wire::Precision::bfloat16) {
    return with_type(scalar_, [&](auto zero) { return pack_rounded(reinterpret_cast<const decltype(zero)*>(values), count, out); });
  }
  if (count < kFew || width() == sizeof(double)) {
    *out = kPlain;
    if (count > 0) std::memcpy(out + 1, values, count * width());
    return 1 + count * width();
  }
  *out = kCoded;
  auto* exponents = reinterpret_cast<uint8_t*>(bytes_.room(count + count * kRest + 1));
  char* const rest = reinterpret_cast<char*>(exponents) + count;
  split(values, count, exponents, rest);
  return 1 + put_coded(exponents, rest, count * kRest, count, out + 1);
}

template <class T>
size_t PackedWeights::pack_rounded(const T* values, size_t count, char* out) {
  if (count < kFew) {
    *out = kPlain;
    uint16_t nearest[kFew];
    ELASTICDL_BEST(round_all<T>)(values, count, nearest);
    std::memcpy(out + 1, nearest, count * sizeof(uint16_t));
    return 1 + count * sizeof(uint16_t);
  }
  *out = kCoded;
  auto* exponents = reinterpret_cast<uint8_t*>(bytes_.room(count + count * kShortRest));
  ELASTICDL_BEST(round_and_split<T>)(values, count, exponents, exponents + count);
  return 1 + put_coded(exponents, reinterpret_cast<const char*>(exponents) + count, count * kShortRest, count, out + 1);
}

void PackedWeights::unpack(wire::Cursor& cursor, size_t count, char* out) {
  const auto method = cursor.take<uint8_t>();
  const bool coded = method == kCoded && count >= kFew && width() != sizeof(double);
  if (method != kPlain && !coded) throw UserError("a frame with weights packed by method " + std::to_string(method));
  if (precision_ == wire::Precision::bfloat16) {
    return with_type(scalar_, [&](auto zero) { unpack_rounded(cursor, count, coded, reinterpret_cast<decltype(zero)*>(out)); });
  }
  if (coded) {
    const uint8_t* exponents = take_exponents(cursor, count, kRest, bytes_);
    join(exponents, cursor.elements(count, kRest), count, out);
  } else if (count > 0) {
    std::memcpy(out, cursor.elements(count, width()), count * width());
  }
}

template <class T>
void PackedWeights::unpack_rounded(wire::Cursor& cursor, size_t count, bool coded, T* out) {
  if (coded) {
    const uint8_t* exponents = take_exponents(cursor, count, kShortRest, bytes_);
    const auto* rest = reinterpret_cast<const uint8_t*>(cursor.elements(count, kShortRest));
    ELASTICDL_BEST(join_and_widen<T>)(exponents, rest, count, out);
    return;
  }
  const char* values = cursor.elements(count, sizeof(uint16_t));
  auto* nearest = reinterpret_cast<uint16_t*>(bytes_.room(count * sizeof(uint16_t) + 1));  // they may begin anywhere in a frame
  if (count > 0) std::memcpy(nearest, values, count * sizeof(uint16_t));
  ELASTICDL_BEST(widen_all<T>)(nearest, count, out);
}

}  // namespace elasticdl
