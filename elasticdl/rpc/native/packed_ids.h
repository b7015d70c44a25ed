// Ids as they cross a slow link: in ascending order, each as the difference from the one before, and once for all tables that
// look up the same ones.
//
//   by table: u32 like (an earlier table with the same ids, or this one); of this one: u64 count, i64 first id, differences
//
// A difference takes a byte for every 7 bits, the lowest first; all but its last byte have the top bit set.
#pragma once

#include <cstdint>
#include <vector>

#include "elasticdl/rpc/native/wire.h"

namespace elasticdl {

struct Ids {
  const int64_t* data;
  size_t count;

  bool operator==(const Ids& other) const { return data == other.data && count == other.count; }
};

// Writes ids, which need not be distinct. Returns the place in `ids` of each one that it wrote.
std::vector<uint32_t> pack_ids(Ids ids, wire::Writer& writer);
// Reads the ids that `pack_ids` wrote. Throws UserError for anything else.
std::vector<int64_t> unpack_ids(wire::Cursor& cursor);

// The ids of all tables of a frame: counted at first, so that there may be room for them before they are unpacked.
class PackedIds {
 public:
  // Throws UserError if the frame does not have so many, or they are larger than a plain frame may be.
  PackedIds(wire::Cursor& cursor, uint32_t tables);

  size_t tables() const { return like_.size(); }
  size_t count(size_t table) const { return counts_[like_[table]]; }
  // What `unpack` allocates.
  uint64_t bytes() const { return bytes_; }
  // Throws UserError if they are not what `pack_ids` wrote.
  void unpack();
  // After `unpack`.
  const std::vector<int64_t>& of(size_t table) const { return ids_[like_[table]]; }

 private:
  std::vector<uint32_t> like_;
  std::vector<uint64_t> counts_;       // 0 of a table that is like another, as in all below
  std::vector<wire::Cursor> packed_;   // where the ids of each table begin
  std::vector<std::vector<int64_t>> ids_;
  uint64_t bytes_ = 0;
};

}  // namespace elasticdl
