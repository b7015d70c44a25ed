// A prepared update rule: its constants for one update, and the fastest kernel for this machine.
#pragma once
#include "elasticdl/embedding/native/optimizer.h"

namespace elasticdl {

// Rounded to float32 where Keras rounds.
struct Constants {
  float learning_rate, weight_decay, momentum;
  float one_minus_beta_1, one_minus_beta_2, alpha, epsilon;
  float power, shrinkage, ridge, l1;
};

Constants constants_of(const OptimizerSpec& spec, const StepContext& context);

// n weights, their slots (as many as the rule has; the rest is ignored) and gradients. No overlap.
using RowUpdate = void (*)(const Constants&, size_t n, float* weights, float* slot_0, float* slot_1, float* slot_2, const float* gradients);

RowUpdate update_of(const OptimizerSpec& spec);

// The value of slot `slot` before the first update.
float initial_slot(const OptimizerSpec& spec, int slot);

}  // namespace elasticdl
