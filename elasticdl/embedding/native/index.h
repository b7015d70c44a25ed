// id -> row number: open addressing, 8 bytes a slot, eight slots a cache line. The id itself is kept with the row;
// a slot has 32 bits of its hash, so nearly every probe is settled without looking there.
#pragma once
#include <cstdint>

#include "elasticdl/embedding/native/mapping.h"

namespace elasticdl {

class Index {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  Index() : slots_(sizeof(Slot) << bits_) {}

  // A bijection (MurmurHash3's fmix64): different ids differ, high bits are well mixed.
  static uint64_t hash(int64_t id) {
    auto x = static_cast<uint64_t>(id);
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 33);
  }

  void prefetch(uint64_t hash) const { __builtin_prefetch(&slots()[home(tag(hash))]); }

  // The first row in this hash's run that `is_it(row)`, kNone if there is none.
  template <class IsIt>
  uint32_t find(uint64_t hash, IsIt is_it) const {
    const uint32_t tag = this->tag(hash);
    for (size_t at = home(tag);; at = (at + 1) & mask()) {
      const Slot slot = slots()[at];
      if (slot.row_plus_one == 0) return kNone;
      if (slot.tag == tag && is_it(slot.row_plus_one - 1)) return slot.row_plus_one - 1;
    }
  }

  // The row must not be there yet. Throws std::bad_alloc, and then nothing has changed.
  void add(uint64_t hash, uint32_t row) {
    if ((count_ + 1) * 4 > (mask() + 1) * 3) grow();
    put({tag(hash), row + 1});
    ++count_;
  }

  size_t memory_bytes() const { return slots_.bytes(); }

 private:
  struct Slot {
    uint32_t tag;
    uint32_t row_plus_one;  // 0: empty, as fresh memory is
  };

  static uint32_t tag(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }
  // The home is the tag's top bits, so growing reads and writes slots in order and needs no id.
  size_t home(uint32_t tag) const { return tag >> (32 - bits_); }
  size_t mask() const { return (size_t{1} << bits_) - 1; }
  Slot* slots() const { return reinterpret_cast<Slot*>(slots_.address()); }

  void put(Slot slot) {
    size_t at = home(slot.tag);
    while (slots()[at].row_plus_one != 0) at = (at + 1) & mask();
    slots()[at] = slot;
  }

  void grow() {
    const size_t bytes = sizeof(Slot) << (bits_ + 1);
    Mapping old(bytes, bytes >= 2 * Mapping::kHugePage);
    std::swap(old, slots_);
    const size_t count = mask() + 1;
    ++bits_;
    const Slot* from = reinterpret_cast<const Slot*>(old.address());
    for (size_t i = 0; i < count; ++i) {
      if (from[i].row_plus_one != 0) put(from[i]);
    }
  }

  unsigned bits_ = 9;
  size_t count_ = 0;
  Mapping slots_;
};

}  // namespace elasticdl
