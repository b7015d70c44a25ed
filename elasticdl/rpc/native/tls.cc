#include "elasticdl/rpc/native/tls.h"

#include <errno.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "elasticdl/rpc/native/errors.h"

namespace elasticdl {
namespace {

constexpr size_t kRecord = 16 << 10;      // the largest of TLS
constexpr size_t kAtOnce = 8 * kRecord;   // encrypted before any of it is sent
constexpr size_t kReadAtOnce = 4 * kRecord;
// Kept of the buffer between messages: thousands of workers may be connected.
constexpr size_t kKept = 2 * kRecord;

struct FreeBio {
  void operator()(BIO* bio) const { ::BIO_free(bio); }
};
struct FreeCertificate {
  void operator()(X509* certificate) const { ::X509_free(certificate); }
};
struct FreeKey {
  void operator()(EVP_PKEY* key) const { ::EVP_PKEY_free(key); }
};
using Certificate = std::unique_ptr<X509, FreeCertificate>;
using Memory = std::unique_ptr<BIO, FreeBio>;

std::string reason() {
  const unsigned long code = ::ERR_peek_last_error();
  const char* text = code == 0 ? nullptr : ::ERR_reason_error_string(code);
  return text == nullptr ? "unknown error" : text;
}

void require(bool holds, const char* what) {
  if (!holds) throw UserError(std::string(what) + ": " + reason());
}

Memory memory(const std::string& text) { return Memory(::BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

Certificate certificate_of(const std::string& pem, const char* what) {
  Certificate certificate(::PEM_read_bio_X509(memory(pem).get(), nullptr, nullptr, nullptr));
  require(certificate != nullptr, what);
  return certificate;
}

TlsContext context(const SSL_METHOD* method) {
  // No cleanup at exit, when threads may still serve; and no settings of the machine, which are for its own OpenSSL.
  ::OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT | OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  ::ERR_clear_error();
  TlsContext made(::SSL_CTX_new(method), ::SSL_CTX_free);
  require(made != nullptr, "TLS is not available");
  ::SSL_CTX_set_min_proto_version(made.get(), TLS1_3_VERSION);
  // 128 bits first: as safe for a job's life, and a quarter faster.
  ::SSL_CTX_set_ciphersuites(made.get(), "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256:TLS_AES_256_GCM_SHA384");
  ::SSL_CTX_set_mode(made.get(), SSL_MODE_RELEASE_BUFFERS);
  ::SSL_CTX_set_read_ahead(made.get(), 1);
  ::SSL_CTX_set_default_read_buffer_len(made.get(), kReadAtOnce);
  // Every connection has a session of its own; nothing is resumed.
  ::SSL_CTX_set_session_cache_mode(made.get(), SSL_SESS_CACHE_OFF);
  ::SSL_CTX_set_num_tickets(made.get(), 0);
  return made;
}

}  // namespace

TlsContext server_tls(const std::string& certificate, const std::string& key) {
  if (certificate.empty()) return nullptr;
  TlsContext made = context(::TLS_server_method());
  Certificate own = certificate_of(certificate, "the server's certificate is invalid");
  std::unique_ptr<EVP_PKEY, FreeKey> secret(::PEM_read_bio_PrivateKey(memory(key).get(), nullptr, nullptr, nullptr));
  require(secret != nullptr && ::SSL_CTX_use_certificate(made.get(), own.get()) == 1 &&
              ::SSL_CTX_use_PrivateKey(made.get(), secret.get()) == 1,
          "the server's private key is invalid, or does not fit its certificate");
  return made;
}

TlsContext client_tls(const std::string& authority) {
  if (authority.empty()) return nullptr;
  TlsContext made = context(::TLS_client_method());
  Certificate trusted = certificate_of(authority, "the certificate of the job's authority is invalid");
  require(::X509_STORE_add_cert(::SSL_CTX_get_cert_store(made.get()), trusted.get()) == 1,
          "the certificate of the job's authority is invalid");
  ::SSL_CTX_set_verify(made.get(), SSL_VERIFY_PEER, nullptr);
  return made;
}

// OpenSSL's way to the socket. Its own would raise SIGPIPE, and would send each record by itself.
struct TlsBio {
  static Tls* of(BIO* bio) { return static_cast<Tls*>(::BIO_get_data(bio)); }

  static int write(BIO* bio, const char* data, int bytes) {
    std::vector<char>& to = of(bio)->encrypted_;
    to.insert(to.end(), data, data + bytes);
    return bytes;
  }

  static int read(BIO* bio, char* data, int bytes) {
    ::BIO_clear_retry_flags(bio);
    ssize_t got = of(bio)->receive(data, static_cast<size_t>(bytes));
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) ::BIO_set_retry_read(bio);
    return static_cast<int>(got);
  }

  static long control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

  static const BIO_METHOD* method() {
    static const BIO_METHOD* const made = [] {
      BIO_METHOD* bio = ::BIO_meth_new(::BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
      ::BIO_meth_set_write(bio, write);
      ::BIO_meth_set_read(bio, read);
      ::BIO_meth_set_ctrl(bio, control);
      return bio;
    }();
    return made;
  }
};

void Tls::Free::operator()(ssl_st* ssl) const { ::SSL_free(ssl); }

Tls::Tls(const TlsContext& context, int fd, const std::string& name) : ssl_(::SSL_new(context.get())), fd_(fd) {
  BIO* bio = ::BIO_new(TlsBio::method());
  if (ssl_ == nullptr || bio == nullptr) throw std::bad_alloc();
  ::BIO_set_data(bio, this);
  ::BIO_set_init(bio, 1);
  ::SSL_set_bio(ssl_.get(), bio, bio);
  if (name.empty()) {
    ::SSL_set_accept_state(ssl_.get());
    return;
  }
  ::SSL_set_connect_state(ssl_.get());
  ::SSL_set_hostflags(ssl_.get(), X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  if (::SSL_set1_host(ssl_.get(), name.c_str()) != 1) throw std::bad_alloc();
}

Tls::~Tls() = default;

bool Tls::handshake() {
  ::ERR_clear_error();
  errno = 0;
  const int result = ::SSL_do_handshake(ssl_.get());
  const int before = errno;
  const int error = ::SSL_get_error(ssl_.get(), result);
  // An alert has to go out even if the handshake failed.
  const bool flushed = flush();
  if (result == 1) return flushed;
  if (error == SSL_ERROR_WANT_READ) {
    errno = EAGAIN;
    return false;
  }
  explain();
  errno = before != 0 && before != EAGAIN ? before : EPROTO;
  return false;
}

void Tls::explain() {
  const long verdict = ::SSL_get_verify_result(ssl_.get());
  if (verdict != X509_V_OK) {
    problem_ = std::string("its TLS certificate is refused: ") + ::X509_verify_cert_error_string(verdict);
  } else if (::ERR_peek_last_error() == 0) {
    problem_ = "it ended the TLS handshake";
  } else {
    problem_ = "the TLS handshake failed: " + reason();
  }
}

ssize_t Tls::receive(char* data, size_t bytes) {
  // The peer may wait for it: a handshake writes and reads in one call.
  if (!flush() && errno != EAGAIN && errno != EWOULDBLOCK) return -1;
  return ::recv(fd_, data, bytes, 0);
}

ssize_t Tls::read(char* data, size_t bytes) {
  if (bytes == 0) return 0;
  ::ERR_clear_error();
  errno = 0;
  size_t got = 0;
  const int result = ::SSL_read_ex(ssl_.get(), data, bytes, &got);
  if (result == 1) return static_cast<ssize_t>(got);
  const int before = errno;
  switch (::SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      errno = EAGAIN;
      return -1;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    default:
      // The end of the connection without a farewell, as when a process dies; or a forged record.
      errno = before != 0 && before != EAGAIN ? before : ECONNRESET;
      return -1;
  }
}

bool Tls::buffered() const { return ::SSL_has_pending(ssl_.get()) == 1; }

bool Tls::flush() {
  while (pending()) {
    ssize_t sent = ::send(fd_, encrypted_.data() + sent_, encrypted_.size() - sent_, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    sent_ += static_cast<size_t>(sent);
  }
  encrypted_.clear();
  sent_ = 0;
  return true;
}

// SSL_write takes any amount, since its records only go into memory.
bool Tls::encrypt(const char* data, size_t bytes) {
  size_t written = 0;
  ::ERR_clear_error();
  if (::SSL_write_ex(ssl_.get(), data, bytes, &written) == 1 && written == bytes) return true;
  errno = EPROTO;  // the session is over: the handshake failed, or the peer sent a forged record
  return false;
}

ssize_t Tls::write(const iovec* parts, size_t count) {
  if (!flush()) return -1;
  size_t taken = 0;
  char small[kRecord];
  size_t gathered = 0;
  for (size_t k = 0; k < count && taken < kAtOnce; ++k) {
    const char* data = static_cast<const char*>(parts[k].iov_base);
    size_t left = std::min(parts[k].iov_len, kAtOnce - taken);
    taken += left;
    // Small parts share a record; of a large one whole records go out as they are.
    while (left > 0) {
      if (gathered == 0 && left >= kRecord) {
        const size_t whole = left / kRecord * kRecord;
        if (!encrypt(data, whole)) return -1;
        data += whole;
        left -= whole;
        continue;
      }
      const size_t some = std::min(left, kRecord - gathered);
      std::memcpy(small + gathered, data, some);
      gathered += some;
      data += some;
      left -= some;
      if (gathered == kRecord && !encrypt(small, std::exchange(gathered, 0))) return -1;
    }
  }
  if (gathered > 0 && !encrypt(small, gathered)) return -1;
  if (!flush() && errno != EAGAIN && errno != EWOULDBLOCK) return -1;
  if (!pending() && taken < kKept && encrypted_.capacity() > 2 * kKept) encrypted_.shrink_to_fit();
  return static_cast<ssize_t>(taken);
}

}  // namespace elasticdl
