// SHA-256 and HMAC-SHA256 (RFC 2104) of short texts, by OpenSSL, and random digests.
#pragma once

#include <array>
#include <string_view>

namespace elasticdl {

using Digest = std::array<unsigned char, 32>;

Digest sha256(std::string_view text);
Digest hmac_sha256(std::string_view key, std::string_view message);

// Compares in constant time.
bool same_digest(const Digest& a, const Digest& b);

// From the kernel's generator.
Digest random_digest();

}  // namespace elasticdl
