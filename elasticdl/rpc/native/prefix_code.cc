#include "elasticdl/rpc/native/prefix_code.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace elasticdl {
namespace {

constexpr unsigned kLongest = 11;
constexpr size_t kEntries = size_t{1} << kLongest;
constexpr size_t kStreams = 4;
constexpr size_t kAtOnce = 5;  // codes in the 57 bits that 8 bytes hold at least, wherever the first begins

using Counts = std::array<uint32_t, 256>;

struct Symbol {
  uint8_t value;
  uint8_t length;
};

uint64_t load(const char* from) {
  uint64_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return __builtin_bswap64(bits);
}

void store(char* to, uint64_t bits) {
  bits = __builtin_bswap64(bits);
  std::memcpy(to, &bits, sizeof bits);
}

struct Range {
  size_t begin, end;
};
Range stream(size_t n, size_t s) { return {n * s / kStreams, n * (s + 1) / kStreams}; }

// Several counters for each symbol: successive equal bytes would wait for one another.
Counts count(const uint8_t* bytes, size_t n) {
  std::array<Counts, 4> parts{};
  for (size_t i = 0; i < n; ++i) ++parts[i & 3][bytes[i]];
  for (size_t s = 0; s < 256; ++s) parts[0][s] += parts[1][s] + parts[2][s] + parts[3][s];
  return parts[0];
}

// Depths of the leaves of Huffman's tree; its symbols are those that occur.
std::vector<Symbol> tree(const Counts& counts) {
  using Node = std::pair<uint64_t, size_t>;  // weight, index
  std::vector<Symbol> symbols;
  std::priority_queue<Node, std::vector<Node>, std::greater<>> open;
  std::vector<size_t> parent;
  for (size_t value = 0; value < counts.size(); ++value) {
    if (counts[value] == 0) continue;
    open.emplace(counts[value], parent.size());
    parent.push_back(0);
    symbols.push_back({static_cast<uint8_t>(value), 0});
  }
  while (open.size() > 1) {
    const Node first = open.top();
    open.pop();
    const Node second = open.top();
    open.pop();
    parent[first.second] = parent[second.second] = parent.size();
    open.emplace(first.first + second.first, parent.size());
    parent.push_back(0);
  }
  std::vector<uint8_t> depth(parent.size());
  for (size_t node = parent.size() - 1; node-- > 0;) depth[node] = static_cast<uint8_t>(depth[parent[node]] + 1);
  for (size_t s = 0; s < symbols.size(); ++s) symbols[s].length = depth[s];
  return symbols;
}

// Flatter counts give a flatter tree, until it fits.
std::vector<Symbol> code_of(Counts counts) {
  for (;;) {
    std::vector<Symbol> symbols = tree(counts);
    std::stable_sort(symbols.begin(), symbols.end(), [](const Symbol& a, const Symbol& b) { return a.length < b.length; });
    if (symbols.back().length <= kLongest) return symbols;
    for (uint32_t& one : counts) one = one / 2 + (one > 0 ? 1 : 0);
  }
}

size_t encode_stream(const uint8_t* bytes, size_t n, const std::array<uint32_t, 256>& codes, const std::array<uint8_t, 256>& lengths,
                     char* out) {
  char* at = out;
  uint64_t bits = 0;
  unsigned filled = 0;  // of `bits`, from the top: below 8 between rounds
  for (size_t i = 0; i < n;) {
    const size_t end = std::min(n, i + kAtOnce);
    for (; i < end; ++i) {
      const uint8_t byte = bytes[i];
      filled += lengths[byte];
      bits |= static_cast<uint64_t>(codes[byte]) << (64 - kLongest) >> (filled - lengths[byte]);
    }
    store(at, bits);
    at += filled / 8;
    bits <<= filled / 8 * 8;
    filled %= 8;
  }
  store(at, bits);
  return static_cast<size_t>(at - out) + (filled > 0 ? 1 : 0);
}

class Decoder {
 public:
  explicit Decoder(wire::Cursor& cursor) {
    const size_t symbols = size_t{cursor.take<uint8_t>()} + 1;
    size_t at = 0;
    uint8_t last = 0;
    for (size_t s = 0; s < symbols; ++s) {
      const auto symbol = cursor.take<Symbol>();
      // Codes in any other order, or that leave bits without a meaning, are of no encoder.
      if (symbol.length > kLongest || symbol.length < last || at + (kEntries >> symbol.length) > kEntries) wrong();
      last = symbol.length;
      std::fill_n(entries_.begin() + static_cast<std::ptrdiff_t>(at), kEntries >> symbol.length, symbol);
      at += kEntries >> symbol.length;
    }
    if (at != kEntries) wrong();
  }

  void decode(wire::Cursor& cursor, size_t n, uint8_t* out) const {
    std::array<Stream, kStreams> streams;
    std::array<uint32_t, kStreams> bytes;
    for (uint32_t& one : bytes) one = cursor.take<uint32_t>();
    for (size_t s = 0; s < kStreams; ++s) {
      const Range range = stream(n, s);
      streams[s] = {cursor.array<char>(bytes[s]), uint64_t{bytes[s]} * 8, 0, out + range.begin, out + range.end};
    }
    if (cursor.left() < PrefixCode::kSlack) wrong();
    for (size_t rounds = n / kStreams / kAtOnce; rounds > 0; --rounds) {
      for (Stream& one : streams) round(one, kAtOnce);
    }
    for (Stream& one : streams) {
      while (one.out < one.end) round(one, std::min<size_t>(kAtOnce, static_cast<size_t>(one.end - one.out)));
      if ((one.position + 7) / 8 * 8 != one.bits) wrong();
    }
  }

 private:
  struct Stream {
    const char* data;
    uint64_t bits, position;
    uint8_t *out, *end;
  };

  // Reads up to kSlack bytes from a position within the stream.
  void round(Stream& one, size_t count) const {
    if (one.position > one.bits) wrong();
    uint64_t bits = load(one.data + one.position / 8) << one.position % 8;
    for (size_t i = 0; i < count; ++i) {
      const Symbol symbol = entries_[bits >> (64 - kLongest)];
      bits <<= symbol.length;
      one.position += symbol.length;
      *one.out++ = symbol.value;
    }
  }

  [[noreturn]] static void wrong() { throw UserError("a frame with packed weights that no client and no server of ours packs"); }

  std::array<Symbol, kEntries> entries_;
};

}  // namespace

size_t PrefixCode::encode(const uint8_t* bytes, size_t n, char* out) {
  const std::vector<Symbol> symbols = code_of(count(bytes, n));
  std::array<uint32_t, 256> codes{};
  std::array<uint8_t, 256> lengths{};
  char* at = out;
  *at++ = static_cast<char>(symbols.size() - 1);
  uint32_t next = 0;
  for (const Symbol& symbol : symbols) {
    codes[symbol.value] = next;
    lengths[symbol.value] = symbol.length;
    next += static_cast<uint32_t>(kEntries >> symbol.length);
    std::memcpy(at, &symbol, sizeof symbol);
    at += sizeof symbol;
  }
  char* const sizes = at;
  at += kStreams * sizeof(uint32_t);
  for (size_t s = 0; s < kStreams; ++s) {
    const Range range = stream(n, s);
    const size_t written = encode_stream(bytes + range.begin, range.end - range.begin, codes, lengths, at);
    const auto size = static_cast<uint32_t>(written);
    std::memcpy(sizes + s * sizeof size, &size, sizeof size);
    at += written;
  }
  return static_cast<size_t>(at - out);
}

void PrefixCode::decode(wire::Cursor& cursor, size_t n, uint8_t* out) { Decoder(cursor).decode(cursor, n, out); }

}  // namespace elasticdl
