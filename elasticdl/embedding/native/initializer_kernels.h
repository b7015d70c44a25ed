// Initial weights of a row. Included once for each instruction set by dispatch.h: no includes here.

// SplitMix64's finaliser (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// The generator's state is a counter: column j of a row does not depend on column j - 1.
template <int kShift>
inline void random_bits(uint64_t seed, int64_t id, size_t first, size_t n, int32_t* __restrict bits) {
  const uint64_t key = mix(static_cast<uint64_t>(id) + mix(seed + kStep));
  for (size_t i = 0; i < n; ++i) bits[i] = static_cast<int32_t>(mix(key + (first + i + 1) * kStep) >> kShift);
}

// ln x for 0 < x < 1 by atanh's series, basic operations only: libraries differ in the last bit, this does not.
inline double natural_log(double x) {
  uint64_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  // Mantissa in [sqrt(1/2), sqrt(2)).
  const uint64_t shifted = bits - 0x3fe6a09e667f3bcdULL;
  const int32_t exponent = static_cast<int32_t>(static_cast<uint32_t>(shifted >> 32)) >> 20;
  const uint64_t mantissa_bits = bits - (static_cast<uint64_t>(static_cast<int64_t>(exponent)) << 52);
  double mantissa;
  __builtin_memcpy(&mantissa, &mantissa_bits, sizeof mantissa);
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double square = s * s;
  double sum = 1.0 / 19.0;
  sum = sum * square + 1.0 / 17.0;
  sum = sum * square + 1.0 / 15.0;
  sum = sum * square + 1.0 / 13.0;
  sum = sum * square + 1.0 / 11.0;
  sum = sum * square + 1.0 / 9.0;
  sum = sum * square + 1.0 / 7.0;
  sum = sum * square + 1.0 / 5.0;
  sum = sum * square + 1.0 / 3.0;
  sum = sum * square + 1.0;
  return static_cast<double>(exponent) * 0.6931471805599453 + 2.0 * s * sum;
}

inline double polynomial(const double* a, double x) {
  double sum = a[7];
  for (int i = 6; i >= 0; --i) sum = sum * x + a[i];
  return sum;
}

// The normal distribution's quantile for 2^-32 <= p <= 1 - 2^-32 (Wichura: Algorithm AS 241, PPND16, 1988).
inline double normal_quantile(double p) {
  const double q = p - 0.5;
  const double near = 0.180625 - q * q;
  if (near >= 0.0) return q * polynomial(kNearTop, near) / polynomial(kNearBottom, near);
  const double far = __builtin_sqrt(-natural_log(q < 0.0 ? p : 1.0 - p)) - 1.6;
  const double size = polynomial(kFarTop, far) / polynomial(kFarBottom, far);
  return q < 0.0 ? -size : size;
}

template <class T>
inline void uniform(const InitializerSpec& spec, const int32_t* bits, size_t n, T* __restrict weights) {
  const T low = spec.a, range = static_cast<T>(spec.b) - low;
  for (size_t i = 0; i < n; ++i) weights[i] = low + range * (static_cast<T>(bits[i]) * static_cast<T>(0x1p-24));
}

// low, range: the part of the distribution's probability to draw from.
template <class T>
inline void normal(const InitializerSpec& spec, double low, double range, const int32_t* bits, size_t n, T* __restrict weights) {
  const double mean = spec.a, deviation = spec.b;
  for (size_t i = 0; i < n; ++i) {
    const double p = low + range * ((static_cast<double>(bits[i]) + 0.5) * 0x1p-31);
    weights[i] = static_cast<T>(mean + deviation * normal_quantile(p));
  }
}

template <class T>
inline void initialise_block(const InitializerSpec& spec, uint64_t seed, int64_t id, size_t first, size_t n, T* weights) {
  int32_t bits[kBlock];
  switch (spec.kind) {
    case InitializerSpec::CONSTANT:
      for (size_t i = 0; i < n; ++i) weights[i] = spec.a;
      return;
    case InitializerSpec::UNIFORM:
      random_bits<40>(seed, id, first, n, bits);
      return uniform(spec, bits, n, weights);
    case InitializerSpec::NORMAL:
      random_bits<33>(seed, id, first, n, bits);
      return normal(spec, 0.0, 1.0, bits, n, weights);
    case InitializerSpec::TRUNCATED_NORMAL:
      random_bits<33>(seed, id, first, n, bits);
      return normal(spec, kBelowMinusTwo, 1.0 - 2.0 * kBelowMinusTwo, bits, n, weights);
  }
}

template <class T>
inline void initialise(const InitializerSpec& spec, uint64_t seed, int64_t id, size_t dim, void* out) {
  T* weights = static_cast<T*>(out);
  for (size_t first = 0; first < dim; first += kBlock) {
    initialise_block(spec, seed, id, first, dim - first < kBlock ? dim - first : kBlock, weights + first);
  }
}
