// One update of n weights under each rule. Included once for each instruction set by dispatch.h: no includes here.

#define ELASTICDL_ROW \
  const Constants &c, size_t n, float *__restrict w, float *__restrict s0, float *__restrict s1, float *__restrict s2, \
      const float *__restrict g

inline void decay(const Constants& c, size_t n, float* __restrict w) {
  for (size_t i = 0; i < n; ++i) w[i] = w[i] - w[i] * c.weight_decay * c.learning_rate;
}

inline void sgd(ELASTICDL_ROW) {
  (void)s0, (void)s1, (void)s2;
  for (size_t i = 0; i < n; ++i) w[i] -= g[i] * c.learning_rate;
}

inline void momentum(ELASTICDL_ROW) {
  (void)s1, (void)s2;
  for (size_t i = 0; i < n; ++i) {
    s0[i] = s0[i] * c.momentum - g[i] * c.learning_rate;
    w[i] += s0[i];
  }
}

inline void nesterov(ELASTICDL_ROW) {
  (void)s1, (void)s2;
  for (size_t i = 0; i < n; ++i) {
    s0[i] = s0[i] * c.momentum - g[i] * c.learning_rate;
    w[i] += s0[i] * c.momentum - g[i] * c.learning_rate;
  }
}

inline void adam(ELASTICDL_ROW) {
  (void)s2;
  for (size_t i = 0; i < n; ++i) {
    s0[i] += (g[i] - s0[i]) * c.one_minus_beta_1;
    s1[i] += (g[i] * g[i] - s1[i]) * c.one_minus_beta_2;
    w[i] -= s0[i] * c.alpha / (__builtin_sqrtf(s1[i]) + c.epsilon);
  }
}

inline void amsgrad(ELASTICDL_ROW) {
  for (size_t i = 0; i < n; ++i) {
    s0[i] += (g[i] - s0[i]) * c.one_minus_beta_1;
    s1[i] += (g[i] * g[i] - s1[i]) * c.one_minus_beta_2;
    s2[i] = s2[i] < s1[i] ? s1[i] : s2[i];
    w[i] -= s0[i] * c.alpha / (__builtin_sqrtf(s2[i]) + c.epsilon);
  }
}

inline void adagrad(ELASTICDL_ROW) {
  (void)s1, (void)s2;
  for (size_t i = 0; i < n; ++i) {
    s0[i] += g[i] * g[i];
    w[i] -= c.learning_rate * g[i] / __builtin_sqrtf(s0[i] + c.epsilon);
  }
}

// `power` is -learning_rate_power; at its default of 0.5 a root does, which has a vector instruction.
template <bool kRoot>
inline float ftrl_power(const Constants& c, float x) {
  return kRoot ? __builtin_sqrtf(x) : __builtin_powf(x, c.power);
}

template <bool kRoot>
inline void ftrl(ELASTICDL_ROW) {
  (void)s2;
  for (size_t i = 0; i < n; ++i) {
    const float accumulator = s0[i] + g[i] * g[i];
    const float powered = ftrl_power<kRoot>(c, accumulator);
    const float sigma = (powered - ftrl_power<kRoot>(c, s0[i])) / c.learning_rate;
    const float linear = s1[i] + (g[i] + c.shrinkage * w[i] - sigma * w[i]);
    const float quadratic = powered / c.learning_rate + c.ridge;
    const float raised = linear < -c.l1 ? -c.l1 : linear;
    const float clipped = raised > c.l1 ? c.l1 : raised;
    w[i] = (clipped - linear) / quadratic;
    s0[i] = accumulator;
    s1[i] = linear;
  }
}

// A loop of known length has no prologue or remainder, which is half of the time of a short row.
template <void (*kRule)(ELASTICDL_ROW)>
inline void sized(ELASTICDL_ROW) {
  if (c.weight_decay != 0.0f) decay(c, n, w);
  switch (n) {
    case 8: return kRule(c, 8, w, s0, s1, s2, g);
    case 16: return kRule(c, 16, w, s0, s1, s2, g);
    case 32: return kRule(c, 32, w, s0, s1, s2, g);
    case 64: return kRule(c, 64, w, s0, s1, s2, g);
    default: return kRule(c, n, w, s0, s1, s2, g);
  }
}

inline RowUpdate row_update(const OptimizerSpec& spec) {
  switch (spec.kind) {
    case OptimizerSpec::SGD: return spec.momentum == 0.0 ? sized<sgd> : spec.nesterov ? sized<nesterov> : sized<momentum>;
    case OptimizerSpec::ADAM: return spec.amsgrad ? sized<amsgrad> : sized<adam>;
    case OptimizerSpec::ADAGRAD: return sized<adagrad>;
    case OptimizerSpec::FTRL: return spec.learning_rate_power == -0.5 ? sized<ftrl<true>> : sized<ftrl<false>>;
  }
  return nullptr;
}
#undef ELASTICDL_ROW
