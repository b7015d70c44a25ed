// Non-blocking TCP sockets as values that close themselves.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "elasticdl/rpc/native/tls.h"

namespace elasticdl {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)), tls_(std::move(other.tls_)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(tls_, other.tls_);
    return *this;
  }
  ~Socket() { close(); }

  int fd() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void close();

  // Ends the connection; the descriptor stays ours, and becomes readable and writable.
  void shutdown() const;

  // From now on bytes travel encrypted, after a handshake. A client expects the peer to be `name`, a server gives ''.
  void secure(const TlsContext& context, const std::string& name);
  // One step of the handshake; see Tls.
  bool handshake() const { return tls_->handshake(); }
  std::string handshake_problem() const { return tls_->problem(); }

  // As recv and writev, whatever interrupts them. EAGAIN: nothing for now.
  ssize_t receive_some(char* data, size_t bytes) const;
  ssize_t send_some(const iovec* parts, size_t count) const;
  // Sends what is encrypted but has not left; false: see errno.
  bool flush() const { return tls_ == nullptr || tls_->flush(); }
  // The peer sends at least so much more, or ends: the socket need not be readable for less. Clear text only.
  void expect(size_t bytes) const;
  bool pending() const { return tls_ != nullptr && tls_->pending(); }
  // Whether bytes may wait here of which the system does not know.
  bool buffered() const { return tls_ != nullptr && tls_->buffered(); }

 private:
  int fd_ = -1;
  std::unique_ptr<Tls> tls_;
};

// Listens on host:port (0: any); throws UserError when that is not possible. `port` receives the number.
Socket listen_on(const std::string& host, int port, int* bound_port);

// The next connection, TCP_NODELAY and keepalive set; empty if there is none: see errno, as of accept.
Socket accept_from(const Socket& listener);

// Starts a non-blocking connect. Throws TransientError if the address cannot be used.
Socket begin_connect(const std::string& address);

// After the socket became writable: '' when connected, else the system's error message.
std::string connect_problem(const Socket& socket);

}  // namespace elasticdl
