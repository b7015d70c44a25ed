// The rows of a table that were written since a moment: one bit for each row that was there then. Later rows all count.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace elasticdl {

class Changes {
 public:
  // Since the table had so many rows. With 0 rows, all rows count and nothing is noted.
  explicit Changes(size_t rows = 0) : rows_(rows), bits_((rows + 63) / 64) {}

  // One store without a branch: whether a row was written before is hard to predict.
  void add(uint32_t row) {
    if (row < rows_) bits_[row / 64] |= uint64_t{1} << (row % 64);
  }

  // Whether a row that was there then was written; `row` must be below the rows that were there.
  bool has(uint32_t row) const { return (bits_[row / 64] >> (row % 64) & 1) != 0; }

  // Ahead of `add`: with other work on the machine the bits are rarely in the nearest cache.
  [[gnu::always_inline]] void prefetch(uint32_t row) const {
    if (row < rows_) __builtin_prefetch(bits_.data() + row / 64, 1);
  }

  // The first changed row from `row` on; `end` if there is none before it.
  size_t next(size_t row, size_t end) const {
    if (row >= rows_) return std::min(row, end);
    uint64_t left = bits_[row / 64] >> (row % 64);
    while (left == 0) {
      row = (row / 64 + 1) * 64;
      if (row >= rows_) return std::min(rows_, end);
      left = bits_[row / 64];
    }
    return std::min(row + static_cast<size_t>(__builtin_ctzll(left)), end);
  }

  // Changed rows before `end`, which is not less than the rows that were there.
  size_t count(size_t end) const {
    size_t sum = end - rows_;
    for (const uint64_t word : bits_) sum += static_cast<size_t>(__builtin_popcountll(word));
    return sum;
  }

  size_t memory_bytes() const { return bits_.size() * sizeof(uint64_t); }

 private:
  size_t rows_;
  std::vector<uint64_t> bits_;
};

}  // namespace elasticdl
