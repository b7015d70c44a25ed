// A prepared update rule: its constants for one update, and the fastest kernel for this machine.
#pragma once
#include "elasticdl/embedding/native/optimizer.h"

namespace elasticdl {

// Rounded to the type of the weights where Keras rounds.
template <class T>
struct Rounded {
  T learning_rate, weight_decay, momentum;
  T one_minus_beta_1, one_minus_beta_2, alpha, epsilon;
  T power, shrinkage, ridge, l1;
};

// Of one type; the other's are zeros.
struct Constants {
  Rounded<float> float32;
  Rounded<double> float64;

  template <class T>
  const Rounded<T>& of() const;
};
template <>
inline const Rounded<float>& Constants::of<float>() const { return float32; }
template <>
inline const Rounded<double>& Constants::of<double>() const { return float64; }

Constants constants_of(const OptimizerSpec& spec, const StepContext& context, Scalar scalar);

// n weights, their slots (as many as the rule has; the rest is ignored) and gradients, all of one type. No overlap. `squares`: what
// the rule takes for the squares of the gradients; null: it squares them.
using RowUpdate = void (*)(const Constants&, size_t n, void* weights, void* slot_0, void* slot_1, void* slot_2, const void* gradients,
                           const void* squares);

RowUpdate update_of(const OptimizerSpec& spec, Scalar scalar);

// Steps without a gradient, made up for at once.
struct Catchup {
  double movement;  // times slot 0 (Adam: over the root of slot 1 or 2) is how far the weights go
  double momentum;  // what is left of slot 0
  double second;    // what is left of Adam's slot 1
};

// out = n weights after such steps, by their movement, from a row whose slots are as above; `out` may be `weights`.
using RowMovement = void (*)(double movement, double epsilon, size_t n, void* out, const void* weights, const void* slot_0, const void* slot_1,
                             const void* slot_2);
// The same for the slots, in place.
using RowDecay = void (*)(const Catchup&, size_t n, void* slot_0, void* slot_1);

// Of momentum or Adam.
RowMovement movement_of(const OptimizerSpec& spec, Scalar scalar);
RowDecay decay_of(const OptimizerSpec& spec, Scalar scalar);

// Copies a row before its update.
using RowCopy = void (*)(char* to, const char* from, size_t bytes);

RowCopy row_copy();

// Fills n values of slot `slot` as before the first update.
void initialise_slot(const OptimizerSpec& spec, Scalar scalar, int slot, size_t n, void* values);

}  // namespace elasticdl
