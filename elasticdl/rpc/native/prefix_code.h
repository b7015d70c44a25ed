// A prefix code for bytes (Huffman, codes of at most 11 bits), made for each block of bytes. Exponents of weights take 2 to 3
// bits in it.
//
//   u8 symbols - 1, (u8 symbol, u8 length) by ascending length, u32 bytes of each of 4 streams, the streams
//
// Stream s has the codes of bytes [n * s / 4, n * (s + 1) / 4), the highest bit first: four at once decode faster. A block of one
// symbol has a code of length 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "elasticdl/rpc/native/wire.h"

namespace elasticdl {

class PrefixCode {
 public:
  // Bytes that may be read, and ignored, behind what `encode` has written.
  static constexpr size_t kSlack = 8;

  // What `encode` of n bytes needs at `out`.
  static constexpr size_t bound(size_t n) { return 1 + 512 + 16 + n + n / 2 + 64; }
  // Returns how many bytes it wrote.
  static size_t encode(const uint8_t* bytes, size_t n, char* out);
  // At least kSlack bytes must follow in the frame. Throws UserError for anything that `encode` cannot have written.
  static void decode(wire::Cursor& cursor, size_t n, uint8_t* out);
};

}  // namespace elasticdl
