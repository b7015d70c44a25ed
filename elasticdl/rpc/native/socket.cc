#include "elasticdl/rpc/native/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "elasticdl/rpc/native/errors.h"

namespace elasticdl {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const std::string& host, const std::string& port, bool passive) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = passive ? AI_PASSIVE : 0;
  addrinfo* list = nullptr;
  int code = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &list);
  if (code != 0) throw TransientError("address " + host + ":" + port + " cannot be resolved: " + ::gai_strerror(code));
  return Addresses(list);
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET) return (ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24) == 127;
  return address->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
}

void tune(int fd, const sockaddr* peer) {
  int yes = 1, idle_s = 30, interval_s = 10, probes = 3;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
  // BBR, the default of some machines, sends half as much over loopback: it paces by round trips of microseconds.
  if (is_loopback(peer)) ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
}

void limit(int fd, int option, double seconds) {
  timeval value{static_cast<time_t>(seconds), static_cast<suseconds_t>((seconds - static_cast<time_t>(seconds)) * 1e6)};
  ::setsockopt(fd, SOL_SOCKET, option, &value, sizeof value);
}

// Receives all bytes. `prepare` runs before each part; false from it ends the receive.
template <class Prepare>
bool receive_all(const Socket& socket, char* data, size_t bytes, Prepare prepare) {
  while (bytes > 0) {
    if (!prepare()) return false;
    ssize_t got = socket.receive_some(data, bytes);
    if (got <= 0) return false;
    data += got;
    bytes -= static_cast<size_t>(got);
  }
  return true;
}

}  // namespace

void Socket::close() {
  tls_.reset();
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void Socket::shutdown() const {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

void Socket::secure(const TlsContext& context, const std::string& name) { tls_ = std::make_unique<Tls>(context, fd_, name); }

bool Socket::handshake_by(std::chrono::steady_clock::time_point deadline) const {
  tls_->expect_by(deadline);
  bool done = tls_->handshake();
  while (!done && (errno == EAGAIN || errno == EINTR) && std::chrono::steady_clock::now() < deadline) done = tls_->handshake();
  return done;
}

ssize_t Socket::receive_some(char* data, size_t bytes) const {
  for (;;) {
    ssize_t got = tls_ != nullptr ? tls_->read(data, bytes) : ::recv(fd_, data, bytes, 0);
    if (got >= 0 || errno != EINTR) return got;
  }
}

ssize_t Socket::send_some(const iovec* parts, size_t count) const {
  if (tls_ != nullptr) return tls_->write(parts, count);
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = std::min<size_t>(count, 64);
  for (;;) {
    ssize_t sent = ::sendmsg(fd_, &message, MSG_NOSIGNAL);
    if (sent >= 0 || errno != EINTR) return sent;
  }
}

bool Socket::receive(char* data, size_t bytes) const {
  return receive_all(*this, data, bytes, [] { return true; });
}

bool Socket::receive_by(std::chrono::steady_clock::time_point deadline, char* data, size_t bytes) const {
  if (tls_ != nullptr) {
    // Parts of one record may arrive, each in time for the socket's own limit.
    tls_->expect_by(deadline);
    return receive(data, bytes);
  }
  return receive_all(*this, data, bytes, [&] {
    const double left_s = std::chrono::duration<double>(deadline - std::chrono::steady_clock::now()).count();
    if (left_s < 1e-3) return false;  // the kernel reads 0 as no limit
    limit_receive_s(left_s);
    return true;
  });
}

bool Socket::send(const char* data, size_t bytes) const { return send({{const_cast<char*>(data), bytes}}); }

bool Socket::send(std::vector<iovec> parts) const {
  size_t at = 0;
  while (at < parts.size()) {
    ssize_t sent = send_some(parts.data() + at, parts.size() - at);
    if (sent < 0) return false;
    size_t left = static_cast<size_t>(sent);
    while (at < parts.size() && left >= parts[at].iov_len) left -= parts[at++].iov_len;
    if (at < parts.size()) {
      parts[at].iov_base = static_cast<char*>(parts[at].iov_base) + left;
      parts[at].iov_len -= left;
    }
  }
  return flush();
}

void Socket::limit_receive_s(double seconds) const {
  if (tls_ != nullptr) tls_->expect_any_time();
  limit(fd_, SO_RCVTIMEO, seconds);
}
void Socket::limit_send_s(double seconds) const { limit(fd_, SO_SNDTIMEO, seconds); }

Socket listen_on(const std::string& host, int port, int* bound_port) {
  Addresses found = resolve(host, std::to_string(port), true);
  Socket socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  int yes = 1;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(socket.fd(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(socket.fd(), 256) != 0) {
    throw UserError("cannot listen on " + host + ":" + std::to_string(port) + ": " + std::strerror(errno));
  }
  sockaddr_storage bound{};
  socklen_t length = sizeof bound;
  ::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound), &length);
  *bound_port = ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&bound)->sin6_port
                                                  : reinterpret_cast<sockaddr_in*>(&bound)->sin_port);
  return socket;
}

Socket accept_from(const Socket& listener) {
  for (;;) {
    sockaddr_storage peer{};
    socklen_t bytes = sizeof peer;
    int fd = ::accept4(listener.fd(), reinterpret_cast<sockaddr*>(&peer), &bytes, SOCK_CLOEXEC);
    if (fd >= 0) {
      tune(fd, reinterpret_cast<sockaddr*>(&peer));
      return Socket(fd);
    }
    // The connection ended before it was accepted, or descriptors ran out for a moment: neither ends a server.
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) ::usleep(10'000);
    else if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK) return Socket();
  }
}

Socket begin_connect(const std::string& address) {
  size_t colon = address.rfind(':');
  if (colon == std::string::npos) throw TransientError("address '" + address + "' is not host:port");
  std::string host = address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  Addresses found = resolve(host, address.substr(colon + 1), false);
  Socket socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) throw TransientError(std::string("no socket: ") + std::strerror(errno));
  tune(socket.fd(), found->ai_addr);
  if (::connect(socket.fd(), found->ai_addr, found->ai_addrlen) != 0 && errno != EINPROGRESS) {
    throw TransientError(address + ": " + std::strerror(errno));
  }
  return socket;
}

std::string connect_problem(const Socket& socket) {
  int problem = 0;
  socklen_t length = sizeof problem;
  ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &problem, &length);
  if (problem != 0) return std::strerror(problem);
  // On loopback a connect to a free port of the ephemeral range can meet itself.
  sockaddr_storage here{}, there{};
  socklen_t here_length = sizeof here, there_length = sizeof there;
  if (::getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&here), &here_length) != 0 ||
      ::getpeername(socket.fd(), reinterpret_cast<sockaddr*>(&there), &there_length) != 0) {
    return std::strerror(errno);
  }
  bool itself = here_length == there_length && std::memcmp(&here, &there, here_length) == 0;
  return itself ? "nobody listens there" : "";
}

}  // namespace elasticdl
