// Update rules of parameter servers, element by element. Formulae and order of operations are Keras 3's
// (keras/src/optimizers/{base_optimizer,sgd,adam,adagrad,ftrl}.py), in float32 or float64; nothing is contracted to FMA, so
// every instruction set gives the same bits, and tests/reference_optimizers.py gives them too.
#pragma once
#include <cstddef>
#include <cstdint>

#include "elasticdl/embedding/native/scalar.h"

namespace elasticdl {

// Constants of a rule. They are doubles because Keras computes `1 - beta` in double before it rounds to float32.
struct OptimizerSpec {
  enum Kind { SGD, ADAM, ADAGRAD, FTRL };
  // By Kind; the values of OptimizerKind in elasticdl/embedding/spec.py.
  static constexpr const char* kNames[] = {"sgd", "adam", "adagrad", "ftrl"};

  Kind kind = SGD;
  double momentum = 0.0;
  bool nesterov = false;
  double beta_1 = 0.9, beta_2 = 0.999, epsilon = 1e-7;
  bool amsgrad = false;
  double initial_accumulator_value = 0.1, learning_rate_power = -0.5;
  double l1 = 0.0, l2 = 0.0, l2_shrinkage = 0.0, beta = 0.0;
  double weight_decay = 0.0;  // decoupled; 0 is none

  // Whether the rule squares gradients.
  bool squares() const { return kind != SGD; }
  // Values kept beside each weight: momentum | m, v(, v_hat) | accumulator | accumulator, linear.
  int slots() const;
};

// What differs from update to update. `step` is the 1-based number of this update of the whole model: Adam's bias
// correction uses it for every row, however often that row itself was touched.
struct StepContext {
  double learning_rate;
  int64_t step;
};

// Updates n weights whose slots lie in spec.slots() separate arrays of n. Arrays are of `scalar` and must not overlap.
void update_dense(const OptimizerSpec& spec, Scalar scalar, const StepContext& context, size_t n, void* weights,
                  void* const* slots, const void* gradients);

}  // namespace elasticdl
