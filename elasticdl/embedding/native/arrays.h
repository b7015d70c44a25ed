// NumPy arrays of weights, of either type: checked at the border and never converted. Only bindings include it.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>

#include "elasticdl/embedding/native/scalar.h"

namespace elasticdl {

using InVector = nanobind::ndarray<nanobind::ro, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using InMatrix = nanobind::ndarray<nanobind::ro, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using OutVector = nanobind::ndarray<nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using OutMatrix = nanobind::ndarray<nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

inline void require(bool holds, const std::string& message) {
  if (!holds) throw std::invalid_argument(message);
}

inline nanobind::dlpack::dtype dtype_of(Scalar scalar) {
  return scalar == Scalar::FLOAT64 ? nanobind::dtype<double>() : nanobind::dtype<float>();
}

// Throws TypeError unless the array is of this type.
template <class Array>
void require_type(const std::string& name, const Array& array, Scalar scalar) {
  if (array.dtype() == dtype_of(scalar)) return;
  throw nanobind::type_error((name + " is of another dtype: expected " + kScalarNames[static_cast<size_t>(scalar)]).c_str());
}

// The type of the array. Throws TypeError if it is neither.
template <class Array>
Scalar type_of(const std::string& name, const Array& array) {
  if (array.dtype() == dtype_of(Scalar::FLOAT64)) return Scalar::FLOAT64;
  if (array.dtype() == dtype_of(Scalar::FLOAT32)) return Scalar::FLOAT32;
  throw nanobind::type_error((name + " is of another dtype: expected float32 or float64").c_str());
}

inline Scalar scalar_named(const std::string& name) {
  const auto found = std::find(std::begin(kScalarNames), std::end(kScalarNames), name);
  require(found != std::end(kScalarNames), "dtype '" + name + "': expected float32 or float64");
  return static_cast<Scalar>(found - std::begin(kScalarNames));
}

// Uninitialized weights that become a NumPy array without a copy.
class MadeWeights {
 public:
  MadeWeights(Scalar scalar, size_t size) : scalar_(scalar), data_(new char[size * bytes_of(scalar)]) {}
  char* data() const { return data_.get(); }
  nanobind::object array(std::initializer_list<size_t> shape) {
    char* data = data_.get();
    nanobind::capsule owner(data, [](void* p) noexcept { delete[] static_cast<char*>(p); });
    data_.release();
    return nanobind::cast(nanobind::ndarray<nanobind::numpy>(data, shape.size(), shape.begin(), owner, nullptr, dtype_of(scalar_)));
  }

 private:
  Scalar scalar_;
  std::unique_ptr<char[]> data_;
};

}  // namespace elasticdl
