// One update of n weights under each rule. Included once for each instruction set by dispatch.h: no includes here.

// `q`: what a rule takes for the squares of the gradients `g`. Rules that square nothing ignore it.
#define ELASTICDL_ROW \
  const Rounded<T> &c, size_t n, T *__restrict w, T *__restrict s0, T *__restrict s1, T *__restrict s2, const T *__restrict g, const T *__restrict q

inline float root(float x) { return __builtin_sqrtf(x); }
inline double root(double x) { return __builtin_sqrt(x); }
inline float raised(float x, float exponent) { return __builtin_powf(x, exponent); }
inline double raised(double x, double exponent) { return __builtin_pow(x, exponent); }

template <class T, bool kGiven>
inline T square(const T* g, const T* q, size_t i) {
  return kGiven ? q[i] : g[i] * g[i];
}

template <class T>
inline void decay(const Rounded<T>& c, size_t n, T* __restrict w) {
  for (size_t i = 0; i < n; ++i) w[i] = w[i] - w[i] * c.weight_decay * c.learning_rate;
}

template <class T>
inline void sgd(ELASTICDL_ROW) {
  (void)s0, (void)s1, (void)s2, (void)q;
  for (size_t i = 0; i < n; ++i) w[i] -= g[i] * c.learning_rate;
}

template <class T>
inline void momentum(ELASTICDL_ROW) {
  (void)s1, (void)s2, (void)q;
  for (size_t i = 0; i < n; ++i) {
    s0[i] = s0[i] * c.momentum - g[i] * c.learning_rate;
    w[i] += s0[i];
  }
}

template <class T>
inline void nesterov(ELASTICDL_ROW) {
  (void)s1, (void)s2, (void)q;
  for (size_t i = 0; i < n; ++i) {
    s0[i] = s0[i] * c.momentum - g[i] * c.learning_rate;
    w[i] += s0[i] * c.momentum - g[i] * c.learning_rate;
  }
}

template <class T, bool kGiven>
inline void adam(ELASTICDL_ROW) {
  (void)s2;
  for (size_t i = 0; i < n; ++i) {
    s0[i] += (g[i] - s0[i]) * c.one_minus_beta_1;
    s1[i] += (square<T, kGiven>(g, q, i) - s1[i]) * c.one_minus_beta_2;
    w[i] -= s0[i] * c.alpha / (root(s1[i]) + c.epsilon);
  }
}

template <class T, bool kGiven>
inline void amsgrad(ELASTICDL_ROW) {
  for (size_t i = 0; i < n; ++i) {
    s0[i] += (g[i] - s0[i]) * c.one_minus_beta_1;
    s1[i] += (square<T, kGiven>(g, q, i) - s1[i]) * c.one_minus_beta_2;
    s2[i] = s2[i] < s1[i] ? s1[i] : s2[i];
    w[i] -= s0[i] * c.alpha / (root(s2[i]) + c.epsilon);
  }
}

template <class T, bool kGiven>
inline void adagrad(ELASTICDL_ROW) {
  (void)s1, (void)s2;
  for (size_t i = 0; i < n; ++i) {
    s0[i] += square<T, kGiven>(g, q, i);
    w[i] -= c.learning_rate * g[i] / root(s0[i] + c.epsilon);
  }
}

// `power` is -learning_rate_power; at its default of 0.5 a root does, which has a vector instruction.
template <class T, bool kRoot>
inline T ftrl_power(const Rounded<T>& c, T x) {
  return kRoot ? root(x) : raised(x, c.power);
}

template <class T, bool kRoot, bool kGiven>
inline void ftrl(ELASTICDL_ROW) {
  (void)s2;
  for (size_t i = 0; i < n; ++i) {
    const T accumulator = s0[i] + square<T, kGiven>(g, q, i);
    const T powered = ftrl_power<T, kRoot>(c, accumulator);
    const T sigma = (powered - ftrl_power<T, kRoot>(c, s0[i])) / c.learning_rate;
    const T linear = s1[i] + (g[i] + c.shrinkage * w[i] - sigma * w[i]);
    const T quadratic = powered / c.learning_rate + c.ridge;
    const T above = linear < -c.l1 ? -c.l1 : linear;
    const T clipped = above > c.l1 ? c.l1 : above;
    w[i] = (clipped - linear) / quadratic;
    s0[i] = accumulator;
    s1[i] = linear;
  }
}

// A loop of known length has no prologue or remainder, which is half of the time of a short row.
template <size_t kLength>
struct Length {
  constexpr operator size_t() const { return kLength; }
};

template <class Loop>
inline void of_length(size_t n, Loop loop) {
  switch (n) {
    case 1: return loop(Length<1>());
    case 8: return loop(Length<8>());
    case 16: return loop(Length<16>());
    case 32: return loop(Length<32>());
    case 64: return loop(Length<64>());
    default: return loop(n);
  }
}

template <class T>
using Rule = void (*)(const Rounded<T>&, size_t, T*, T*, T*, T*, const T*, const T*);

// `kGiven`: the rule with squares that are given.
template <class T, Rule<T> kRule, Rule<T> kGiven = kRule>
inline void sized(const Constants& constants, size_t n, void* weights, void* slot_0, void* slot_1, void* slot_2, const void* gradients,
                  const void* squares) {
  const Rounded<T>& c = constants.of<T>();
  T *w = static_cast<T*>(weights), *s0 = static_cast<T*>(slot_0), *s1 = static_cast<T*>(slot_1), *s2 = static_cast<T*>(slot_2);
  const T *g = static_cast<const T*>(gradients), *q = static_cast<const T*>(squares);
  if (c.weight_decay != T(0)) decay(c, n, w);
  if (q == nullptr) of_length(n, [&](auto length) { kRule(c, length, w, s0, s1, s2, g, q); });
  else of_length(n, [&](auto length) { kGiven(c, length, w, s0, s1, s2, g, q); });
}

template <class T>
inline RowUpdate row_update(const OptimizerSpec& spec) {
  switch (spec.kind) {
    case OptimizerSpec::SGD: return spec.momentum == 0.0 ? sized<T, sgd<T>> : spec.nesterov ? sized<T, nesterov<T>> : sized<T, momentum<T>>;
    case OptimizerSpec::ADAM: return spec.amsgrad ? sized<T, amsgrad<T, false>, amsgrad<T, true>> : sized<T, adam<T, false>, adam<T, true>>;
    case OptimizerSpec::ADAGRAD: return sized<T, adagrad<T, false>, adagrad<T, true>>;
    case OptimizerSpec::FTRL: return spec.learning_rate_power == -0.5 ? sized<T, ftrl<T, true, false>, ftrl<T, true, true>> : sized<T, ftrl<T, false, false>, ftrl<T, false, true>>;
  }
  return nullptr;
}
#undef ELASTICDL_ROW

// The weights may be moved in place, which the compiler must be told: each value depends on those at its own place only.
template <class T>
inline void add_moved(T movement, size_t n, T* to, const T* w, const T* s0) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) to[i] = w[i] + s0[i] * movement;
}

template <class T>
inline void subtract_moved(T movement, T epsilon, size_t n, T* to, const T* w, const T* s0, const T* second) {
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) to[i] = w[i] - s0[i] * movement / (root(second[i]) + epsilon);
}

template <class T>
inline void move_by_momentum(double moved, double epsilon, size_t n, void* out, const void* weights, const void* slot_0, const void* slot_1,
                             const void* slot_2) {
  (void)epsilon, (void)slot_1, (void)slot_2;
  const T movement = static_cast<T>(moved);
  T* to = static_cast<T*>(out);
  const T *w = static_cast<const T*>(weights), *s0 = static_cast<const T*>(slot_0);
  of_length(n, [&](auto length) { add_moved<T>(movement, length, to, w, s0); });
}

// `kMost`: AMSGrad divides by the root of the greatest second moment so far.
template <class T, bool kMost>
inline void move_by_adam(double moved, double epsilon, size_t n, void* out, const void* weights, const void* slot_0, const void* slot_1,
                         const void* slot_2) {
  const T movement = static_cast<T>(moved), small = static_cast<T>(epsilon);
  T* to = static_cast<T*>(out);
  const T *w = static_cast<const T*>(weights), *s0 = static_cast<const T*>(slot_0), *s = static_cast<const T*>(kMost ? slot_2 : slot_1);
  of_length(n, [&](auto length) { subtract_moved<T>(movement, small, length, to, w, s0, s); });
}

template <class T, bool kSecond>
inline void decay_slots(const Catchup& steps, size_t n, void* slot_0, void* slot_1) {
  const T momentum = static_cast<T>(steps.momentum), second = static_cast<T>(steps.second);
  T *__restrict s0 = static_cast<T*>(slot_0), *__restrict s1 = static_cast<T*>(slot_1);
  of_length(n, [&](auto length) {
    for (size_t i = 0; i < length; ++i) s0[i] *= momentum;
    if (kSecond)
      for (size_t i = 0; i < length; ++i) s1[i] *= second;
  });
}

template <class T>
inline RowMovement row_movement(const OptimizerSpec& spec) {
  if (spec.kind != OptimizerSpec::ADAM) return move_by_momentum<T>;
  return spec.amsgrad ? move_by_adam<T, true> : move_by_adam<T, false>;
}

template <class T>
inline RowDecay row_decay(const OptimizerSpec& spec) {
  return spec.kind == OptimizerSpec::ADAM ? decay_slots<T, true> : decay_slots<T, false>;
}

// As memcpy, with few wide stores: those of a row wait for its lines, and what is stored later waits behind them. For rows out
// of the cache this saves a fifth of the time of an update with undo.
inline void copy_wide(char* __restrict to, const char* __restrict from, size_t bytes) {
  typedef char Line __attribute__((vector_size(64), aligned(1), may_alias));
  size_t at = 0;
  for (; at + sizeof(Line) <= bytes; at += sizeof(Line)) *reinterpret_cast<Line*>(to + at) = *reinterpret_cast<const Line*>(from + at);
  if (at < bytes) __builtin_memcpy(to + at, from + at, bytes - at);
}
