// Duplicate ids: removed before a pull; their gradients, and the squares of these, are summed before a push.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "elasticdl/embedding/native/scalar.h"

namespace elasticdl {

// Writes the distinct ids in order of first appearance to out[<= n]; ids[i] == out[positions[i]]. Returns their count.
// Throws std::length_error above 2^31 - 1 ids.
size_t unique_ids(const int64_t* ids, size_t n, int64_t* out, int32_t* positions);

// out[m, dim] = 0, then out[positions[i]] += values[i] for i = 0..n-1 in order. Positions must be within 0..m-1.
void merge_rows(Scalar scalar, const void* values, const int32_t* positions, size_t n, size_t dim, void* out, size_t m);

// Some values [n, dim] of the rows at `positions`.
struct RowValues {
  const void* values;
  const int32_t* positions;
  size_t n;
};
// Which of m rows have several values in all parts together: marks[Marks::words(m)]. The values are not read.
void mark_repeated(const std::vector<RowValues>& parts, uint64_t* marks, size_t m);
// out[marked rows, dim]: the sums of the squares of their values, in order.
void merge_squares(Scalar scalar, const std::vector<RowValues>& parts, size_t dim, const uint64_t* marks, size_t m, void* out);

}  // namespace elasticdl
