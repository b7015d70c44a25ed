// CRC-32C (Castagnoli), as TFRecord frames use it, and TFRecord's masked form.
#pragma once
#include <cstddef>
#include <cstdint>

namespace elasticdl::data {

// Continues from `crc`, which is 0 at the start. Uses the processor's instruction where there is one.
uint32_t crc32c(const void* bytes, size_t size, uint32_t crc = 0);

// A checksum of bytes that hold checksums is weak, so TFRecord stores it rotated and shifted.
inline uint32_t masked(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

}  // namespace elasticdl::data
