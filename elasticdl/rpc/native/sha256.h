// SHA-256 (FIPS 180-4) and HMAC-SHA256 (RFC 2104), because no linked library has them. Only greetings use them, so the
// code is short rather than fast.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace elasticdl {

using Digest = std::array<unsigned char, 32>;

class Sha256 {
 public:
  Sha256& add(const void* data, size_t bytes);
  Sha256& add(std::string_view text) { return add(text.data(), text.size()); }
  // Nothing may be added afterwards.
  Digest finish();

 private:
  void block(const unsigned char* at);

  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char rest_[64];
  uint64_t bytes_ = 0;
};

Digest hmac_sha256(std::string_view key, std::string_view message);

// Compares in constant time.
bool same_digest(const Digest& a, const Digest& b);

// From the kernel's generator.
Digest random_digest();

}  // namespace elasticdl
