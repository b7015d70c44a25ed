// A server's part of ParametersSpec: sizes for C++, and the whole spec as JSON to compare and save.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "elasticdl/embedding/native/table.h"
#include "elasticdl/rpc/native/wire.h"

namespace elasticdl {

struct TableShape {
  std::string name;
  uint32_t dim = 0;
  InitializerSpec initializer;
  uint64_t seed = 0;
  bool whole = false;  // see TableSpec in embedding/spec.py
};

// [begin, end) of a flat vector.
struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t size() const { return end - begin; }
};

// Part `part` of `parts` of range(size); the same formula as even_slice in embedding/spec.py.
inline Range even_slice(uint64_t size, uint64_t part, uint64_t parts) {
  return {size * part / parts, size * (part + 1) / parts};
}

struct Spec {
  OptimizerSpec optimizer;
  Scalar scalar = Scalar::FLOAT32;  // of all weights, slots and gradients
  uint64_t trainable = 0;
  uint64_t additive = 0;
  std::vector<TableShape> tables;
  std::string json;

  // Throws UserError for a size beyond what servers hold, and for text that is not UTF-8. Nothing may be allocated before.
  void check() const;
  std::string encode() const;
  // Throws UserError for anything that `encode` cannot have written.
  static Spec decode(const char* data, size_t bytes);
};

}  // namespace elasticdl
