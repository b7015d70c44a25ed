#include "elasticdl/embedding/native/optimizer.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "elasticdl/embedding/native/rule.h"

namespace elasticdl {
namespace {
#define ELASTICDL_KERNELS "elasticdl/embedding/native/optimizer_kernels.h"
#include "elasticdl/embedding/native/dispatch.h"

// A number that Keras converts by `ops.cast`: TensorFlow makes it float32 first, whatever the target.
template <class T>
T cast(double number) {
  return static_cast<T>(static_cast<float>(number));
}

// As in Keras; computed in double, so that every machine gives the same result.
template <class T>
T power(double base, int64_t exponent) {
  return static_cast<T>(std::pow(static_cast<double>(cast<T>(base)), static_cast<double>(exponent)));
}

template <class T>
Rounded<T> rounded(const OptimizerSpec& spec, const StepContext& context) {
  Rounded<T> c{};
  const T rate = static_cast<T>(context.learning_rate);
  c.learning_rate = rate;
  c.weight_decay = cast<T>(spec.weight_decay);
  c.momentum = cast<T>(spec.momentum);
  c.epsilon = static_cast<T>(spec.epsilon);
  if (spec.kind == OptimizerSpec::ADAM) {
    c.one_minus_beta_1 = static_cast<T>(1.0 - spec.beta_1);
    c.one_minus_beta_2 = static_cast<T>(1.0 - spec.beta_2);
    c.alpha = rate * std::sqrt(T(1) - power<T>(spec.beta_2, context.step)) / (T(1) - power<T>(spec.beta_1, context.step));
  }
  if (spec.kind == OptimizerSpec::FTRL) {
    c.power = static_cast<T>(-spec.learning_rate_power);
    c.shrinkage = static_cast<T>(2.0 * spec.l2_shrinkage);
    c.ridge = T(2) * (static_cast<T>(spec.l2) + static_cast<T>(spec.beta) / (T(2) * rate));
    c.l1 = static_cast<T>(spec.l1);
  }
  return c;
}

double initial_slot(const OptimizerSpec& spec, int slot) {
  const bool accumulates = spec.kind == OptimizerSpec::ADAGRAD || spec.kind == OptimizerSpec::FTRL;
  return accumulates && slot == 0 ? spec.initial_accumulator_value : 0.0;
}
}  // namespace

int OptimizerSpec::slots() const {
  switch (kind) {
    case SGD: return momentum == 0.0 ? 0 : 1;
    case ADAM: return amsgrad ? 3 : 2;
    case ADAGRAD: return 1;
    case FTRL: return 2;
  }
  throw std::invalid_argument("an unknown kind of optimizer");
}

Constants constants_of(const OptimizerSpec& spec, const StepContext& context, Scalar scalar) {
  Constants constants{};
  if (scalar == Scalar::FLOAT64) constants.float64 = rounded<double>(spec, context);
  else constants.float32 = rounded<float>(spec, context);
  return constants;
}

RowUpdate update_of(const OptimizerSpec& spec, Scalar scalar) {
  return scalar == Scalar::FLOAT64 ? ELASTICDL_BEST(row_update<double>)(spec) : ELASTICDL_BEST(row_update<float>)(spec);
}

RowMovement movement_of(const OptimizerSpec& spec, Scalar scalar) {
  return scalar == Scalar::FLOAT64 ? ELASTICDL_BEST(row_movement<double>)(spec) : ELASTICDL_BEST(row_movement<float>)(spec);
}

RowDecay decay_of(const OptimizerSpec& spec, Scalar scalar) {
  return scalar == Scalar::FLOAT64 ? ELASTICDL_BEST(row_decay<double>)(spec) : ELASTICDL_BEST(row_decay<float>)(spec);
}

RowCopy row_copy() { return ELASTICDL_BEST(copy_wide); }

void initialise_slot(const OptimizerSpec& spec, Scalar scalar, int slot, size_t n, void* values) {
  with_type(scalar, [&](auto zero) { std::fill_n(static_cast<decltype(zero)*>(values), n, cast<decltype(zero)>(initial_slot(spec, slot))); });
}

void update_dense(const OptimizerSpec& spec, Scalar scalar, const StepContext& context, size_t n, void* weights, void* const* slots,
                  const void* gradients) {
  const int count = spec.slots();
  const auto slot = [&](int i) { return i < count ? slots[i] : nullptr; };
  update_of(spec, scalar)(constants_of(spec, context, scalar), n, weights, slot(0), slot(1), slot(2), gradients, nullptr);
}

}  // namespace elasticdl
