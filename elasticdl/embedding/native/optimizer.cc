#include "elasticdl/embedding/native/optimizer.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "elasticdl/embedding/native/rule.h"

namespace elasticdl {
namespace {
#define ELASTICDL_KERNELS "elasticdl/embedding/native/optimizer_kernels.h"
#include "elasticdl/embedding/native/dispatch.h"

// float32 power as in Keras; computed in double, so that every machine gives the same result.
float power(double base, int64_t exponent) {
  return static_cast<float>(std::pow(static_cast<double>(static_cast<float>(base)), static_cast<double>(exponent)));
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

Constants constants_of(const OptimizerSpec& spec, const StepContext& context) {
  Constants c{};
  const float rate = context.learning_rate;
  c.learning_rate = rate;
  c.weight_decay = static_cast<float>(spec.weight_decay);
  c.momentum = static_cast<float>(spec.momentum);
  c.epsilon = static_cast<float>(spec.epsilon);
  if (spec.kind == OptimizerSpec::ADAM) {
    c.one_minus_beta_1 = static_cast<float>(1.0 - spec.beta_1);
    c.one_minus_beta_2 = static_cast<float>(1.0 - spec.beta_2);
    c.alpha = rate * std::sqrt(1.0f - power(spec.beta_2, context.step)) / (1.0f - power(spec.beta_1, context.step));
  }
  if (spec.kind == OptimizerSpec::FTRL) {
    c.power = static_cast<float>(-spec.learning_rate_power);
    c.shrinkage = static_cast<float>(2.0 * spec.l2_shrinkage);
    c.ridge = 2.0f * (static_cast<float>(spec.l2) + static_cast<float>(spec.beta) / (2.0f * rate));
    c.l1 = static_cast<float>(spec.l1);
  }
  return c;
}

RowUpdate update_of(const OptimizerSpec& spec) { return ELASTICDL_BEST(row_update)(spec); }

float initial_slot(const OptimizerSpec& spec, int slot) {
  const bool accumulates = spec.kind == OptimizerSpec::ADAGRAD || spec.kind == OptimizerSpec::FTRL;
  return accumulates && slot == 0 ? static_cast<float>(spec.initial_accumulator_value) : 0.0f;
}

void update_dense(const OptimizerSpec& spec, const StepContext& context, size_t n, float* weights, float* const* slots,
                  const float* gradients) {
  const int count = spec.slots();
  const auto slot = [&](int i) { return i < count ? slots[i] : nullptr; };
  update_of(spec)(constants_of(spec, context), n, weights, slot(0), slot(1), slot(2), gradients);
}

void initialise_slots(const OptimizerSpec& spec, size_t n, float* const* slots) {
  for (int slot = 0; slot < spec.slots(); ++slot) std::fill(slots[slot], slots[slot] + n, initial_slot(spec, slot));
}

}  // namespace elasticdl
