// Between weights and bfloat16. Included once for each instruction set by dispatch.h: no includes here.

// The bits of a float32, rounded to the nearest bfloat16, ties to even. A NaN stays one.
inline uint32_t rounded(uint32_t bits) {
  const uint32_t nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  const uint32_t nan = bits >> 16 | 0x40;
  return (bits & 0x7FFFFFFF) > 0x7F800000 ? nan : nearest;
}

template <class T>
inline uint32_t rounded_bits(T value) {
  const float single = static_cast<float>(value);
  uint32_t bits;
  __builtin_memcpy(&bits, &single, sizeof bits);
  return rounded(bits);
}

template <class T>
inline void set_bits(uint32_t bits, T* out) {
  float single;
  __builtin_memcpy(&single, &bits, sizeof single);
  *out = static_cast<T>(single);
}

template <class T>
inline void round_all(const T* __restrict values, size_t n, uint16_t* __restrict out) {
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<uint16_t>(rounded_bits(values[i]));
}

template <class T>
inline void widen_all(const uint16_t* __restrict values, size_t n, T* __restrict out) {
  for (size_t i = 0; i < n; ++i) set_bits(uint32_t{values[i]} << 16, out + i);
}

// Into exponents, and signs with mantissas.
template <class T>
inline void round_and_split(const T* __restrict values, size_t n, uint8_t* __restrict exponents, uint8_t* __restrict rest) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits = rounded_bits(values[i]);
    exponents[i] = static_cast<uint8_t>(bits >> 7);
    rest[i] = static_cast<uint8_t>((bits & 0x7F) | (bits >> 8 & 0x80));
  }
}

template <class T>
inline void join_and_widen(const uint8_t* __restrict exponents, const uint8_t* __restrict rest, size_t n, T* __restrict out) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t sign = rest[i] & 0x80, mantissa = rest[i] & 0x7F;
    set_bits(sign << 24 | uint32_t{exponents[i]} << 23 | mantissa << 16, out + i);
  }
}
