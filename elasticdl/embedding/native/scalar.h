// The type of a model's weights, chosen when the program runs.
#pragma once
#include <cstddef>
#include <cstdint>

namespace elasticdl {

enum class Scalar : uint32_t { FLOAT32, FLOAT64 };
// By Scalar; the values of Dtype in elasticdl/embedding/spec.py.
constexpr const char* kScalarNames[] = {"float32", "float64"};

constexpr size_t bytes_of(Scalar scalar) { return scalar == Scalar::FLOAT64 ? sizeof(double) : sizeof(float); }

// visit(float{}) or visit(double{}).
template <class Visit>
auto with_type(Scalar scalar, Visit visit) {
  return scalar == Scalar::FLOAT64 ? visit(double{}) : visit(float{});
}

}  // namespace elasticdl
