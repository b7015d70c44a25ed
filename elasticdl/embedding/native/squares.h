// Sums of squares of gradients. Where an id comes several times in a batch, Keras on TensorFlow gives an optimizer each of its
// gradients: they are added in the end, but each is squared by itself. So a row whose id repeats needs the sum of its gradients
// and the sum of their squares; the squares of all other rows are those of their only gradients.
#pragma once
#include <cstddef>
#include <cstdint>

namespace elasticdl {

// One bit by row, in words: set for a row whose id repeats.
class Marks {
 public:
  static constexpr size_t words(size_t rows) { return (rows + 63) / 64; }

  static bool has(const uint64_t* marks, size_t row) { return (marks[row / 64] >> (row % 64) & 1) != 0; }
  static void set(uint64_t* marks, size_t row) { marks[row / 64] |= uint64_t{1} << (row % 64); }
  // How many of the first `rows` are set.
  static size_t count(const uint64_t* marks, size_t rows) {
    size_t sum = 0;
    for (size_t word = 0; word < rows / 64; ++word) sum += static_cast<size_t>(__builtin_popcountll(marks[word]));
    if (rows % 64 != 0) sum += static_cast<size_t>(__builtin_popcountll(marks[rows / 64] & ((uint64_t{1} << (rows % 64)) - 1)));
    return sum;
  }
};

// The sums of squares of a table's rows in one update, read row by row.
class SquaresReader {
 public:
  // No id repeats.
  SquaresReader() = default;
  // `values`: of the rows that are marked, in their order, `row_bytes` each. Begins at row `first`.
  SquaresReader(const uint64_t* marks, const void* values, size_t row_bytes, size_t first = 0)
      : marks_(marks), values_(static_cast<const char*>(values) + Marks::count(marks, first) * row_bytes), row_bytes_(row_bytes), row_(first) {}

  // Of the next row; null: its gradient is a single one.
  const void* next() {
    if (marks_ == nullptr || !Marks::has(marks_, row_++)) return nullptr;
    const char* values = values_;
    values_ += row_bytes_;
    return values;
  }

 private:
  const uint64_t* marks_ = nullptr;
  const char* values_ = nullptr;
  size_t row_bytes_ = 0, row_ = 0;
};

}  // namespace elasticdl
