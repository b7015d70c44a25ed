// Where rows, indexes and dense weights are: in private memory, or in memory that outlives the process, which has an
// implementation in ps/native/kept_memory.h.
#pragma once
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "elasticdl/embedding/native/kill_point.h"
#include "elasticdl/embedding/native/mapping.h"

namespace elasticdl {

class Memory;

// What a region is for. The next process finds it by this.
struct Use {
  enum Kind : uint32_t { FREE, SPEC, DENSE, DENSE_UNDO, TABLE, CHUNK, INDEX, WORKERS, REDO, PAYLOAD, STEPS };
  Kind kind = FREE;
  uint32_t table = 0;
  uint64_t number = 0;
};

// A killed process loses no store that it has made, and no other process sees its memory before it is gone. So it is
// enough that the compiler keeps the order of what comes before and after this.
inline void in_order() {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  kill_point();
}

// Zeroed memory that never moves. Private memory is returned with the region; kept memory stays until `release`.
class Region {
 public:
  Region() = default;
  explicit Region(Mapping memory) : private_(std::move(memory)), address_(private_.address()), bytes_(private_.bytes()) {}
  Region(Memory& memory, char* address, size_t bytes, bool huge) : memory_(&memory), address_(address), bytes_(bytes), huge_(huge) {}
  Region(Region&& other) noexcept { *this = std::move(other); }
  Region& operator=(Region&& other) noexcept {
    std::swap(private_, other.private_);
    std::swap(memory_, other.memory_);
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    std::swap(huge_, other.huge_);
    return *this;
  }

  char* address() const { return address_; }
  size_t bytes() const { return bytes_; }
  // Its place in kept memory; 0 for private memory.
  uint64_t offset() const;

  // Must be called before the first store to [begin, end). Throws std::bad_alloc: a store to kept memory that is not
  // backed would end the process where memory is short.
  void back(size_t begin, size_t end);
  // Returns kept memory for other uses.
  void release() noexcept;

 private:
  Mapping private_;
  Memory* memory_ = nullptr;  // null: private
  char* address_ = nullptr;
  size_t bytes_ = 0;
  bool huge_ = false;
};

// Memory that the next process finds again. Thread-safe.
class Memory {
 public:
  virtual ~Memory() = default;

  // Throws std::bad_alloc.
  virtual Region take(const Use& use, size_t bytes, bool huge) = 0;
  // The regions of this kind and table that an earlier process left, by their number. Each is given out once.
  virtual std::vector<Region> held(Use::Kind kind, uint32_t table) = 0;
  // The region at this offset; an empty one if there is none.
  virtual Region held_at(uint64_t offset) = 0;

 private:
  friend class Region;
  // `end_of_region`: for huge pages, else null.
  virtual void back(char* begin, char* end, char* end_of_region) = 0;
  virtual void release(char* address) noexcept = 0;
  virtual uint64_t offset_of(const char* address) const = 0;
};

inline uint64_t Region::offset() const { return memory_ == nullptr ? 0 : memory_->offset_of(address_); }

inline void Region::back(size_t begin, size_t end) {
  if (memory_ != nullptr && begin < end) memory_->back(address_ + begin, address_ + end, huge_ ? address_ + bytes_ : nullptr);
}

inline void Region::release() noexcept {
  if (memory_ != nullptr && address_ != nullptr) memory_->release(address_);
  *this = Region();
}

// Of `memory`; private if that is null. Throws std::bad_alloc.
inline Region take_region(Memory* memory, const Use& use, size_t bytes, bool huge) {
  return memory == nullptr ? Region(Mapping(bytes, huge)) : memory->take(use, bytes, huge);
}

// The region with memory for its first `bytes`. Without it the region is released: no later process must find it. Throws
// std::bad_alloc.
inline Region backed(Region region, size_t bytes) {
  try {
    region.back(0, bytes);
  } catch (...) {
    region.release();
    throw;
  }
  return region;
}

// The progress of an update that has to survive the process. Its items are counted from 0: blocks of dense weights, then
// rows of each table.
struct Progress {
  uint64_t serial = 0;       // tells this update from all others
  uint64_t* done = nullptr;  // kept: items done
  uint64_t first = 0;        // number of the first item of a call
};

// Kept: how the values of a row or block were that an item of update `serial` is about to change. They follow this head. An
// undo counts only while its item is the next one that is to be done, so the values of another may be written over it then.
struct Undo {
  uint64_t serial;
  uint64_t mark;  // item << 32 | place: items count from 1, and 0 stands for none
  uint64_t padding[2];

  char* values() { return reinterpret_cast<char*>(this) + sizeof(Undo); }
  uint64_t item() const { return mark >> 32; }
  uint64_t place() const { return mark & UINT32_MAX; }

  // For items of this update from now on.
  void begin(uint64_t of) {
    mark = 0;
    in_order();
    serial = of;
    in_order();
  }

  // The values are there. One store: fewer stores wait behind those of rows.
  void set(uint64_t item, uint64_t place) {
    in_order();
    mark = item << 32 | place;
    in_order();
  }

  void clear() {
    in_order();
    mark = 0;
  }
};

}  // namespace elasticdl
