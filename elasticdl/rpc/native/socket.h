// TCP sockets as values that close themselves. Blocking calls are for the server's threads; the client polls.
#pragma once

#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

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

  // Wakes every thread that is blocked on this socket; the descriptor stays ours.
  void shutdown() const;

  // From now on bytes travel encrypted, after a handshake. A client expects the peer to be `name`, a server gives ''.
  void secure(const TlsContext& context, const std::string& name);
  // One step of the handshake; see Tls.
  bool handshake() const { return tls_->handshake(); }
  std::string handshake_problem() const { return tls_->problem(); }
  // Blocking: the whole handshake; false if it failed or did not end in time.
  bool handshake_by(std::chrono::steady_clock::time_point deadline) const;

  // As recv and writev, whatever interrupts them. EAGAIN: nothing for now.
  ssize_t receive_some(char* data, size_t bytes) const;
  ssize_t send_some(const iovec* parts, size_t count) const;
  // Sends what is encrypted but has not left; false: see errno.
  bool flush() const { return tls_ == nullptr || tls_->flush(); }
  bool pending() const { return tls_ != nullptr && tls_->pending(); }

  // Blocking: all bytes, or false when the peer is gone, stalled for longer than the socket's time limit, or shut down.
  bool receive(char* data, size_t bytes) const;
  // As above, but complete before `deadline`, however the bytes arrive. Changes the socket's time limit.
  bool receive_by(std::chrono::steady_clock::time_point deadline, char* data, size_t bytes) const;
  bool send(std::vector<iovec> parts) const;
  bool send(const char* data, size_t bytes) const;

  // Time limits of one blocking receive or send; 0 is none.
  void limit_receive_s(double seconds) const;
  void limit_send_s(double seconds) const;

 private:
  int fd_ = -1;
  std::unique_ptr<Tls> tls_;
};

// Listens on host:port (0: any); throws UserError when that is not possible. `port` receives the number.
Socket listen_on(const std::string& host, int port, int* bound_port);

// The next connection, TCP_NODELAY and keepalive set; empty when the listener was shut down.
Socket accept_from(const Socket& listener);

// Starts a non-blocking connect. Throws TransientError if the address cannot be used.
Socket begin_connect(const std::string& address);

// After the socket became writable: '' when connected, else the system's error message.
std::string connect_problem(const Socket& socket);

}  // namespace elasticdl
