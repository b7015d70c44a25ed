// The squares of a push: of the caller's rows, and of those that go to one server, in the order of its frame.
#pragma once

#include <cstring>
#include <vector>

#include "elasticdl/embedding/native/squares.h"
#include "elasticdl/rpc/native/buffer.h"

namespace elasticdl {

// Of all `rows` of a table. Null `marks`: no id repeats.
struct RowSquares {
  const uint64_t* marks = nullptr;
  const void* values = nullptr;
};

class GatheredSquares {
 public:
  // Of all rows, in the caller's order: `all` must outlive it.
  GatheredSquares(const RowSquares& all, size_t rows, size_t row_bytes) : marks_(Marks::words(rows)), row_bytes_(row_bytes) {
    if (all.marks == nullptr) return;
    marks_.assign(all.marks, all.marks + marks_.size());
    marked_ = Marks::count(all.marks, rows);
    values_ = static_cast<const char*>(all.values);
  }

  // Of `count` rows: `places[i]` is the caller's row that is row i of the frame.
  GatheredSquares(const RowSquares& all, size_t rows, size_t row_bytes, size_t count, const uint32_t* places)
      : marks_(Marks::words(count)), row_bytes_(row_bytes) {
    if (all.marks == nullptr) return;
    for (size_t i = 0; i < count; ++i) {
      if (Marks::has(all.marks, places[i])) Marks::set(marks_.data(), i), ++marked_;
    }
    std::vector<size_t> before(Marks::words(rows) + 1);  // marked rows before each word
    for (size_t word = 0; word + 1 < before.size(); ++word) before[word + 1] = before[word] + Marks::count(all.marks + word, 64);
    char* out = gathered_.room(bytes() + 1);
    values_ = out;
    for (size_t i = 0; i < count; ++i) {
      if (!Marks::has(marks_.data(), i)) continue;
      const size_t word = places[i] / 64, row = before[word] + Marks::count(all.marks + word, places[i] % 64);
      std::memcpy(out, static_cast<const char*>(all.values) + row * row_bytes, row_bytes);
      out += row_bytes;
    }
  }

  const std::vector<uint64_t>& marks() const { return marks_; }
  // Of the marked rows.
  const char* values() const { return values_; }
  size_t count() const { return marked_; }
  size_t bytes() const { return marked_ * row_bytes_; }

 private:
  std::vector<uint64_t> marks_;
  size_t row_bytes_, marked_ = 0;
  const char* values_ = nullptr;
  Buffer gathered_;
};

}  // namespace elasticdl
