// Weights and gradients as they cross a slow link: of the model's type or as bfloat16, and without what is redundant in their
// exponents. Mantissas are as good as random, so they are sent as they are.
//
//   u8 0, the values                                      few of them, or float64
//   u8 1, exponents by PrefixCode, (sign, mantissa)[n]     3 bytes each, or 1 of bfloat16
#pragma once

#include <cstdint>

#include "elasticdl/embedding/native/scalar.h"
#include "elasticdl/rpc/native/buffer.h"
#include "elasticdl/rpc/native/wire.h"

namespace elasticdl {

class PackedWeights {
 public:
  PackedWeights(Scalar scalar, wire::Precision precision) : scalar_(scalar), precision_(precision) {}

  // What `pack` of so many values needs at `out`.
  size_t bound(size_t count) const;
  // The most that either of them allocates besides for so many values.
  static size_t scratch(size_t count) { return count * 4 + 1; }
  // Returns how many bytes it wrote. bfloat16: rounded to the nearest, ties to even.
  size_t pack(const char* values, size_t count, char* out);
  // Throws UserError if the frame does not have them.
  void unpack(wire::Cursor& cursor, size_t count, char* out);

 private:
  size_t width() const { return precision_ == wire::Precision::bfloat16 ? 2 : bytes_of(scalar_); }

  template <class T>
  size_t pack_rounded(const T* values, size_t count, char* out);
  template <class T>
  void unpack_rounded(wire::Cursor& cursor, size_t count, bool coded, T* out);

  const Scalar scalar_;
  const wire::Precision precision_;
  Buffer bytes_;
};

// The nearest one. Infinities and NaN stay what they are.
uint16_t to_bfloat16(float value);
float from_bfloat16(uint16_t value);

}  // namespace elasticdl
