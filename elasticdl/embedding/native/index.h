// id -> row number: open addressing in buckets of one cache line. The id itself is kept with the row; the index has
// 32 bits of its hash, so nearly every probe is settled without looking there, and by one compare of a whole bucket:
// a branch for each slot is mispredicted every other time, which costs more than the cache miss.
#pragma once
#include <cstdint>
#include <stdexcept>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "elasticdl/embedding/native/memory.h"

namespace elasticdl {

class Index {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // In kept memory `head` is where the place and the size of the buckets are kept, and an index of `count` rows that is there
  // already is taken on. Throws std::invalid_argument if it is of another size.
  explicit Index(Memory* memory = nullptr, uint32_t table = 0, uint64_t* head = nullptr, size_t count = 0)
      : memory_(memory), table_(table), head_(head) {
    if (head == nullptr || *head == 0) {
      buckets_ = take(bits_);
      keep();
      return;
    }
    bits_ = static_cast<unsigned>(*head & kBitsMask);
    buckets_ = memory->held_at(*head & ~kBitsMask);
    count_ = count;
    if (bits_ > 32 || buckets_.bytes() < sizeof(Bucket) << bits_ || count > (mask() + 1) * kSlots) throw std::invalid_argument("an index of another size");
  }

  // A bijection (MurmurHash3's fmix64): different ids differ, high bits are well mixed.
  static uint64_t hash(int64_t id) {
    auto x = static_cast<uint64_t>(id);
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdULL;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ULL;
    return x ^ (x >> 33);
  }

  [[gnu::always_inline]] void prefetch(uint64_t hash) const { __builtin_prefetch(&bucket(home(tag(hash)))); }

  // The first row under this hash's 32 bits that `is_it(row)`, kNone if there is none.
  template <class IsIt>
  uint32_t find(uint64_t hash, IsIt is_it) const {
    const uint32_t tag = this->tag(hash);
    for (size_t at = home(tag);; at = (at + 1) & mask()) {
      const Bucket& b = bucket(at);
      for (unsigned hits = matches(b, tag); hits != 0; hits &= hits - 1) {
        const uint32_t row_plus_one = b.row_plus_one[__builtin_ctz(hits)];
        if (row_plus_one != 0 && is_it(row_plus_one - 1)) return row_plus_one - 1;
      }
      if (b.row_plus_one[kSlots - 1] == 0) return kNone;  // slots fill in order: this bucket never overflowed
    }
  }

  // The row must not be there yet. Throws std::bad_alloc, and then nothing has changed.
  void add(uint64_t hash, uint32_t row) {
    if ((count_ + 1) * 4 > (mask() + 1) * kSlots * 3) grow();
    put(tag(hash), row + 1);
    ++count_;
  }

  size_t memory_bytes() const { return buckets_.bytes(); }

 private:
  static constexpr size_t kSlots = 8;

  struct Bucket {
    uint32_t tag[kSlots];
    uint32_t row_plus_one[kSlots];  // 0: empty, as fresh memory is
  };

  static uint32_t tag(uint64_t hash) { return static_cast<uint32_t>(hash >> 32); }
  // The home is the tag's top bits, so growing reads and writes buckets in order and needs no id.
  size_t home(uint32_t tag) const { return tag >> (32 - bits_); }
  size_t mask() const { return (size_t{1} << bits_) - 1; }
  Bucket& bucket(size_t at) const { return reinterpret_cast<Bucket*>(buckets_.address())[at]; }

  // One bit for each slot of that tag, full or empty.
  static unsigned matches(const Bucket& b, uint32_t tag) {
#if defined(__SSE2__)
    const __m128i wanted = _mm_set1_epi32(static_cast<int>(tag));
    const __m128i low = _mm_cmpeq_epi32(wanted, _mm_load_si128(reinterpret_cast<const __m128i*>(b.tag)));
    const __m128i high = _mm_cmpeq_epi32(wanted, _mm_load_si128(reinterpret_cast<const __m128i*>(b.tag + 4)));
    return static_cast<unsigned>(_mm_movemask_epi8(_mm_packs_epi16(_mm_packs_epi32(low, high), _mm_setzero_si128())));
#else
    unsigned hits = 0;
    for (size_t slot = 0; slot < kSlots; ++slot) hits |= static_cast<unsigned>(b.tag[slot] == tag) << slot;
    return hits;
#endif
  }

  void put(uint32_t tag, uint32_t row_plus_one) {
    for (size_t at = home(tag);; at = (at + 1) & mask()) {
      Bucket& b = bucket(at);
      for (size_t slot = 0; slot < kSlots; ++slot) {
        if (b.row_plus_one[slot] != 0) continue;
        b.tag[slot] = tag;
        in_order();
        b.row_plus_one[slot] = row_plus_one;
        return;
      }
    }
  }

  Region take(unsigned bits) const {
    const size_t bytes = sizeof(Bucket) << bits;
    return backed(take_region(memory_, {Use::INDEX, table_, bits}, bytes, bytes >= 2 * Mapping::kHugePage), bytes);
  }

  // One store: a process that is killed leaves the old index or the new one, and the next frees the other.
  void keep() {
    if (head_ == nullptr) return;
    in_order();
    *head_ = buckets_.offset() | bits_;
    in_order();
  }

  void grow() {
    Region old = take(bits_ + 1);
    std::swap(old, buckets_);
    const size_t count = mask() + 1;
    ++bits_;
    const Bucket* from = reinterpret_cast<const Bucket*>(old.address());
    for (size_t at = 0; at < count; ++at) {
      for (size_t slot = 0; slot < kSlots; ++slot) {
        if (from[at].row_plus_one[slot] != 0) put(from[at].tag[slot], from[at].row_plus_one[slot]);
      }
    }
    keep();
    old.release();
  }

  static constexpr uint64_t kBitsMask = 63;  // regions begin at multiples of more

  Memory* memory_;
  uint32_t table_;
  uint64_t* head_;  // null in private memory
  unsigned bits_ = 6;
  size_t count_ = 0;
  Region buckets_;
};

}  // namespace elasticdl
