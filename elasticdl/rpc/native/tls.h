// TLS 1.3 for the bulk plane, with OpenSSL. Contexts are shared by all connections of an end; a `Tls` belongs to one connection.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

struct ssl_st;
struct ssl_ctx_st;

namespace elasticdl {

using TlsContext = std::shared_ptr<ssl_ctx_st>;

// Both take PEM and return null for an empty `certificate` or `authority`: clear text. They throw UserError for invalid PEM.
TlsContext server_tls(const std::string& certificate, const std::string& key);
// Trusts this authority only.
TlsContext client_tls(const std::string& authority);

// Encrypts what goes through a non-blocking socket that it does not own. Calls fail with EAGAIN as the socket's would.
//
// Records are encrypted into a buffer and leave in large pieces, since a system call for each record of 16 KiB would cost a third
// of the time. So bytes that were written may still be `pending`: only `flush` says that all have left.
class Tls {
 public:
  // `name` is whom a client expects; '' for a server.
  Tls(const TlsContext& context, int fd, const std::string& name);
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  // True when complete. False: see errno; EAGAIN if it waits for the peer, anything else if it failed, and `problem` says why.
  bool handshake();
  const std::string& problem() const { return problem_; }

  // As recv and writev: -1 with errno, 0 for the end.
  ssize_t read(char* data, size_t bytes);
  ssize_t write(const iovec* parts, size_t count);
  bool flush();
  bool pending() const { return sent_ < encrypted_.size(); }
  // Whether bytes were taken from the socket that no read has returned.
  bool buffered() const;

 private:
  friend struct TlsBio;
  bool encrypt(const char* data, size_t bytes);
  void explain();
  ssize_t receive(char* data, size_t bytes);

  struct Free {
    void operator()(ssl_st* ssl) const;
  };
  std::unique_ptr<ssl_st, Free> ssl_;
  const int fd_;
  std::vector<char> encrypted_;
  size_t sent_ = 0;
  std::string problem_;
};

}  // namespace elasticdl
