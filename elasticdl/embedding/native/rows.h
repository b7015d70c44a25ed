// Rows of bytes with their ids and tags, numbered in insertion order, in chunks that never move.
//
// A small row stands beside its id and its tag, in one cache line or two: reading memory is most of the time of a
// lookup. Larger rows are apart from their ids, so that they begin at cache lines.
#pragma once
#include <algorithm>
#include <stdexcept>
#include <vector>

#include "elasticdl/embedding/native/memory.h"
#include "elasticdl/embedding/native/row_tag.h"

namespace elasticdl {

class Rows {
 public:
  using Tag = RowTag;

  // row_bytes >= 1; tags only if `tagged`. `large`: there will be many rows. Private memory.
  Rows(size_t row_bytes, bool tagged, bool large) : Rows(row_bytes, tagged) { large_ = large; }

  // row_bytes >= 1; tags only if `tagged`. In kept memory `size` is where the number of rows is kept, and rows that are there
  // already are taken on. Throws std::invalid_argument if those are of another shape.
  Rows(size_t row_bytes, bool tagged, Memory* memory = nullptr, uint32_t table = 0, uint64_t* size = nullptr)
      : row_bytes_(row_bytes), id_bytes_(sizeof(int64_t) + (tagged ? sizeof(Tag) : 0)), together_(bytes_together(row_bytes + id_bytes_)),
        value_stride_(together_ != 0 ? together_ : row_bytes), id_stride_(together_ != 0 ? together_ : id_bytes_), memory_(memory),
        table_(table), kept_size_(size) {
    while (bit_ < 20 && value_stride_ << (bit_ + 1) <= kChunkBytes) ++bit_;
    if (memory != nullptr) take_on();
  }

  size_t size() const { return size_; }
  size_t row_bytes() const { return row_bytes_; }
  bool tagged() const { return id_bytes_ > sizeof(int64_t); }
  char* values(uint32_t row) const { return chunks_[row >> bit_].values + within(row) * value_stride_; }
  int64_t& id(uint32_t row) const { return *reinterpret_cast<int64_t*>(id_address(row)); }
  // Beside the id: one cache line has both. Only if `tagged`.
  Tag& tag(uint32_t row) const { return *reinterpret_cast<Tag*>(id_address(row) + sizeof(int64_t)); }
  size_t chunk(uint32_t row) const { return row >> bit_; }
  size_t within(uint32_t row) const { return row & (chunk_rows() - 1); }
  size_t chunk_rows() const { return size_t{1} << bit_; }

  // Room for one more row, which is a row only after `add_next`. Throws std::length_error when row numbers run out,
  // std::bad_alloc.
  uint32_t next(int64_t id) {
    if (size_ >= kMostRows) throw std::length_error("a table holds at most 2^31 rows on one server: use more servers");
    if (size_ >> bit_ == chunks_.size()) grow();
    if (size_ >= backed_) back_more();
    const auto row = static_cast<uint32_t>(size_);
    this->id(row) = id;
    return row;
  }

  void add_next() {
    in_order();
    ++size_;
    if (kept_size_ != nullptr) *kept_size_ = size_;
    in_order();
  }

  // A process that was killed may have filled this one without counting it. Null if there is no chunk for it; memory that is not
  // backed reads as 0.
  const int64_t* id_after_last() const {
    return size_ >> bit_ < chunks_.size() ? &id(static_cast<uint32_t>(size_)) : nullptr;
  }

  // Memory that the kernel has backed: a chunk's pages are touched in order.
  size_t memory_bytes() const { return size_ * (together_ != 0 ? together_ : row_bytes_ + id_bytes_); }

 private:
  static constexpr size_t kMostRows = size_t{1} << 31;
  // Upper limit of a chunk (a power of two of rows): the last one wastes little, and common row sizes fill huge pages.
  static constexpr size_t kChunkBytes = size_t{8} << 20;
  // Chunks that share a region after the first one, so that also their ids fill huge pages.
  static constexpr size_t kChunksTogether = 4;
  static constexpr size_t kFirstBacked = size_t{64} << 10;

  static constexpr size_t kMostTogether = 128;

  // The distance between rows that stand beside their ids; 0: they are apart. A power of two, so that rows do not lie across
  // lines without need. Above 32 bytes only if that adds at most a quarter.
  static size_t bytes_together(size_t bytes) {
    size_t padded = 16;
    while (padded < bytes) padded *= 2;
    return padded <= kMostTogether && (padded <= 32 || 4 * padded <= 5 * bytes) ? padded : 0;
  }

  struct Chunk {
    char* values;
    char* ids;
  };

  char* id_address(uint32_t row) const { return chunks_[row >> bit_].ids + within(row) * id_stride_; }
  // Chunks in the region that follows; the first region is small, as most tables are.
  size_t next_chunks() const { return regions_.empty() && !large_ ? 1 : kChunksTogether; }
  size_t ids_at(size_t chunks) const { return together_ != 0 ? 0 : (chunks * chunk_rows() * row_bytes_ + 63) / 64 * 64; }
  size_t region_bytes(size_t chunks) const { return ids_at(chunks) + chunks * chunk_rows() * id_stride_; }

  void put(Region memory) {
    const size_t chunks = next_chunks();
    char* ids = memory.address() + ids_at(chunks);
    char* values = memory.address() + (together_ != 0 ? id_bytes_ : 0);
    for (size_t k = 0; k < chunks; ++k) chunks_.push_back({values + k * chunk_rows() * value_stride_, ids + k * chunk_rows() * id_stride_});
    regions_.push_back(std::move(memory));
  }

  void grow() {
    put(take_region(memory_, {Use::CHUNK, table_, regions_.size()}, region_bytes(next_chunks()), large_ || !regions_.empty()));
    if (memory_ == nullptr) backed_ = chunks_.size() << bit_;
  }

  void take_on() {
    size_ = backed_ = *kept_size_;
    for (Region& memory : memory_->held(Use::CHUNK, table_)) {
      if (memory.bytes() < region_bytes(next_chunks())) throw std::invalid_argument("rows of another size");
      put(std::move(memory));
    }
    if (size_ > chunks_.size() << bit_) throw std::invalid_argument("fewer rows than were counted");
  }

  // In kept memory only, in growing steps: a table of ten rows costs little, and a large one gets whole huge pages.
  void back_more() {
    const size_t number = size_ >> bit_, begin = size_ - (number << bit_), used = begin * value_stride_;
    const size_t step = number == 0 ? std::clamp(used, kFirstBacked, Mapping::kHugePage) : Mapping::kHugePage;
    const size_t end = std::min(std::max((used + step) / value_stride_, begin + 1), chunk_rows());
    // The first region has one chunk.
    Region& memory = regions_[(number + kChunksTogether - 1) / kChunksTogether];
    const auto back = [&](const char* chunk, size_t stride) {
      const auto at = static_cast<size_t>(chunk - memory.address());
      memory.back(at + begin * stride, at + end * stride);
    };
    if (together_ == 0) back(chunks_[number].values, value_stride_);
    back(chunks_[number].ids, id_stride_);
    backed_ = (number << bit_) + end;
  }

  size_t row_bytes_, id_bytes_;
  size_t together_;  // see bytes_together
  size_t value_stride_, id_stride_;
  unsigned bit_ = 0;
  bool large_ = false;
  Memory* memory_;
  uint32_t table_;
  uint64_t* kept_size_;  // null in private memory
  size_t size_ = 0;
  size_t backed_ = 0;  // rows that may be written
  std::vector<Region> regions_;
  std::vector<Chunk> chunks_;
};

}  // namespace elasticdl
