#include "elasticdl/rpc/native/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <sys/random.h>

#include <new>

namespace elasticdl {
namespace {

// See `context` in tls.cc.
void initialise() { ::OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_NO_LOAD_CONFIG, nullptr); }

const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

}  // namespace

Digest sha256(std::string_view text) {
  initialise();
  Digest digest;
  if (::SHA256(bytes_of(text), text.size(), digest.data()) == nullptr) throw std::bad_alloc();
  return digest;
}

Digest hmac_sha256(std::string_view key, std::string_view message) {
  initialise();
  Digest digest;
  const void* made =
      ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes_of(message), message.size(), digest.data(), nullptr);
  if (made == nullptr) throw std::bad_alloc();
  return digest;
}

bool same_digest(const Digest& a, const Digest& b) { return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

Digest random_digest() {
  Digest random;
  while (::getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
  }
  return random;
}

}  // namespace elasticdl
