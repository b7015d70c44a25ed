// Initial rows: values that depend on (seed, id, column) only, not on order, threads or instruction set.
#pragma once
#include <cstddef>
#include <cstdint>

#include "elasticdl/embedding/native/scalar.h"

namespace elasticdl {

// a, b: value and unused | minimum and maximum | mean and standard deviation (twice; truncated at two of them).
struct InitializerSpec {
  enum Kind { CONSTANT, UNIFORM, NORMAL, TRUNCATED_NORMAL };
  // By Kind; the values of InitializerKind in elasticdl/embedding/spec.py.
  static constexpr const char* kNames[] = {"constant", "uniform", "normal", "truncated_normal"};

  Kind kind = UNIFORM;
  float a = -0.05f, b = 0.05f;  // also for float64: Keras rounds a constant to float32 first
};

// Writes the `dim` first weights of row `id`. tests/reference_initializers.py gives the same bits.
void initialise_weights(const InitializerSpec& spec, Scalar scalar, uint64_t seed, int64_t id, size_t dim, void* weights);

}  // namespace elasticdl
