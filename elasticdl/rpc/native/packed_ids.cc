#include "elasticdl/rpc/native/packed_ids.h"

#include <algorithm>
#include <array>
#include <utility>

namespace elasticdl {
namespace {

constexpr size_t kLongestDifference = 10;  // bytes of 64 bits

struct Key {
  uint64_t id;  // above the least
  uint32_t place;
};

// By the digits of 11 bits that occur, the lowest first: three times as fast as std::sort for 10,000 ids of 20 bits.
std::vector<Key> sorted(Ids ids, int64_t least, uint64_t range) {
  constexpr unsigned kBits = 11;
  std::vector<Key> keys(ids.count), other(ids.count);
  for (size_t i = 0; i < ids.count; ++i) keys[i] = {static_cast<uint64_t>(ids.data[i]) - static_cast<uint64_t>(least), static_cast<uint32_t>(i)};
  for (unsigned shift = 0; shift < 64 && range >> shift > 0; shift += kBits) {
    std::array<uint32_t, size_t{1} << kBits> begins{};
    const auto digit = [&](const Key& key) { return static_cast<size_t>(key.id >> shift) & (begins.size() - 1); };
    for (const Key& key : keys) ++begins[digit(key)];
    uint32_t sum = 0;
    for (uint32_t& begin : begins) begin = std::exchange(sum, sum + begin);
    for (const Key& key : keys) other[begins[digit(key)]++] = key;
    std::swap(keys, other);
  }
  return keys;
}

}  // namespace

std::vector<uint32_t> pack_ids(Ids ids, wire::Writer& writer) {
  if (ids.count > UINT32_MAX) throw UserError("more than 2^32 - 1 ids in one request");
  writer.put<uint64_t>(ids.count);
  std::vector<uint32_t> places(ids.count);
  if (ids.count == 0) return places;
  const auto [least, greatest] = std::minmax_element(ids.data, ids.data + ids.count);
  writer.put(*least);
  const std::vector<Key> keys = sorted(ids, *least, static_cast<uint64_t>(*greatest) - static_cast<uint64_t>(*least));
  std::string& bytes = writer.bytes();
  size_t at = bytes.size();
  bytes.resize(at + (ids.count - 1) * kLongestDifference);
  places[0] = keys[0].place;
  for (size_t i = 1; i < keys.size(); ++i) {
    places[i] = keys[i].place;
    uint64_t difference = keys[i].id - keys[i - 1].id;
    for (; difference >= 0x80; difference >>= 7) bytes[at++] = static_cast<char>(difference | 0x80);
    bytes[at++] = static_cast<char>(difference);
  }
  bytes.resize(at);
  return places;
}

std::vector<int64_t> unpack_ids(wire::Cursor& cursor) {
  const auto count = cursor.take<uint64_t>();
  // Before any allocation: each id has at least a byte in the frame.
  if (count > cursor.left()) throw UserError("a frame with fewer ids than it says");
  std::vector<int64_t> ids(count);
  if (count == 0) return ids;
  ids[0] = cursor.take<int64_t>();
  for (size_t i = 1; i < count; ++i) {
    ids[i] = static_cast<int64_t>(static_cast<uint64_t>(ids[i - 1]) + cursor.varint());
    if (ids[i] < ids[i - 1]) throw UserError("a frame with ids beyond 64 bits");
  }
  return ids;
}

PackedIds::PackedIds(wire::Cursor& cursor, uint32_t tables) {
  for (uint32_t t = 0; t < tables; ++t) {
    const auto like = cursor.take<uint32_t>();
    if (like > t) throw UserError("a frame in which table " + std::to_string(t) + " has the ids of table " + std::to_string(like));
    like_.push_back(like == t ? t : like_[like]);
    packed_.push_back(cursor);
    counts_.push_back(like == t ? cursor.take<uint64_t>() : 0);
    if (const uint64_t count = counts_.back(); count > 0) {
      if (count > cursor.left()) throw UserError("a frame with fewer ids than it says");
      bytes_ += count * sizeof(int64_t);
      if (bytes_ > wire::kMaxPayload) throw UserError("a packed frame with ids of more than 1 GiB");
      cursor.take<int64_t>();
      cursor.skip_varints(count - 1);
    }
  }
}

void PackedIds::unpack() {
  for (size_t t = 0; t < tables(); ++t) ids_.push_back(like_[t] == t ? unpack_ids(packed_[t]) : std::vector<int64_t>());
}

}  // namespace elasticdl
