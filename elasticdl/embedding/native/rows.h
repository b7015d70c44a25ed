// Rows of bytes with their ids, numbered in insertion order, in chunks that never move.
#pragma once
#include <stdexcept>
#include <vector>

#include "elasticdl/embedding/native/mapping.h"

namespace elasticdl {

class Rows {
 public:
  // row_bytes >= 1.
  explicit Rows(size_t row_bytes) : row_bytes_(row_bytes) {
    while (bit_ < 20 && row_bytes << (bit_ + 1) <= kChunkBytes) ++bit_;
  }

  size_t size() const { return size_; }
  size_t row_bytes() const { return row_bytes_; }
  char* values(uint32_t row) const { return chunks_[row >> bit_].values + within(row) * row_bytes_; }
  int64_t& id(uint32_t row) const { return chunks_[row >> bit_].ids[within(row)]; }
  size_t chunk(uint32_t row) const { return row >> bit_; }
  size_t within(uint32_t row) const { return row & (chunk_rows() - 1); }
  size_t chunk_rows() const { return size_t{1} << bit_; }

  // A new row of zeros. Throws std::length_error when row numbers run out, std::bad_alloc.
  uint32_t append(int64_t id) {
    if (size_ >= kMostRows) throw std::length_error("a table holds at most 2^31 rows on one server: use more servers");
    if (size_ >> bit_ == chunks_.size()) grow();
    const auto row = static_cast<uint32_t>(size_++);
    this->id(row) = id;
    return row;
  }

  // Undoes the last append.
  void drop_last() { --size_; }

  // Memory that the kernel has backed: a chunk's pages are touched in order.
  size_t memory_bytes() const {
    if (chunks_.empty()) return 0;
    const size_t used = size_ - ((chunks_.size() - 1) << bit_);
    return (chunks_.size() - 1) * chunks_.front().memory.bytes() + used * (row_bytes_ + sizeof(int64_t));
  }

 private:
  static constexpr size_t kMostRows = size_t{1} << 31;
  // Upper limit of a chunk (a power of two of rows): the last one wastes little, and common row sizes fill huge pages.
  static constexpr size_t kChunkBytes = size_t{8} << 20;

  struct Chunk {
    Mapping memory;
    char* values;
    int64_t* ids;
  };

  void grow() {
    const size_t ids_at = (chunk_rows() * row_bytes_ + 63) / 64 * 64;
    Mapping memory(ids_at + chunk_rows() * sizeof(int64_t), !chunks_.empty());
    char* start = memory.address();
    chunks_.push_back({std::move(memory), start, reinterpret_cast<int64_t*>(start + ids_at)});
  }

  size_t row_bytes_;
  unsigned bit_ = 0;
  size_t size_ = 0;
  std::vector<Chunk> chunks_;
};

}  // namespace elasticdl
