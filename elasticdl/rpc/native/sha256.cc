#include "elasticdl/rpc/native/sha256.h"

#include <sys/random.h>

#include <algorithm>
#include <cstring>

namespace elasticdl {
namespace {

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
    0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
    0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
    0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
    0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
    0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t turned(uint32_t x, unsigned by) { return (x >> by) | (x << (32 - by)); }

}  // namespace

void Sha256::block(const unsigned char* at) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i) {
    w[i] = uint32_t{at[4 * i]} << 24 | uint32_t{at[4 * i + 1]} << 16 | uint32_t{at[4 * i + 2]} << 8 | uint32_t{at[4 * i + 3]};
  }
  for (int i = 16; i < 64; ++i) {
    const uint32_t a = turned(w[i - 15], 7) ^ turned(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t b = turned(w[i - 2], 17) ^ turned(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  uint32_t s[8];
  std::copy_n(state_, 8, s);
  for (int i = 0; i < 64; ++i) {
    const uint32_t sum1 = turned(s[4], 6) ^ turned(s[4], 11) ^ turned(s[4], 25);
    const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const uint32_t one = s[7] + sum1 + choice + kRound[i] + w[i];
    const uint32_t sum0 = turned(s[0], 2) ^ turned(s[0], 13) ^ turned(s[0], 22);
    const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    std::copy_backward(s, s + 7, s + 8);
    s[4] += one;
    s[0] = one + sum0 + majority;
  }
  for (int i = 0; i < 8; ++i) state_[i] += s[i];
}

Sha256& Sha256::add(const void* data, size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(data);
  while (bytes > 0) {
    const size_t have = bytes_ % 64, taken = std::min(bytes, 64 - have);
    std::memcpy(rest_ + have, at, taken);
    bytes_ += taken;
    at += taken;
    bytes -= taken;
    if (have + taken == 64) block(rest_);
  }
  return *this;
}

Digest Sha256::finish() {
  const uint64_t bits = bytes_ * 8;
  add("\x80", 1);
  while (bytes_ % 64 != 56) add("\0", 1);
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(bits >> (56 - 8 * i));
  add(length, 8);
  Digest digest;
  for (size_t i = 0; i < 32; ++i) digest[i] = static_cast<unsigned char>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

Digest hmac_sha256(std::string_view key, std::string_view message) {
  unsigned char padded[64] = {};
  if (key.size() > 64) {
    const Digest shorter = Sha256().add(key).finish();
    std::copy(shorter.begin(), shorter.end(), padded);
  } else {
    std::copy(key.begin(), key.end(), padded);
  }
  unsigned char inner[64], outer[64];
  for (int i = 0; i < 64; ++i) {
    inner[i] = padded[i] ^ 0x36;
    outer[i] = padded[i] ^ 0x5c;
  }
  const Digest first = Sha256().add(inner, 64).add(message).finish();
  return Sha256().add(outer, 64).add(first.data(), first.size()).finish();
}

bool same_digest(const Digest& a, const Digest& b) {
  unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

Digest random_digest() {
  Digest random;
  while (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
  }
  return random;
}

}  // namespace elasticdl
