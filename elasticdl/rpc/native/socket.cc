#include "elasticdl/rpc/native/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
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

}  // namespace

void Socket::close() {
  tls_.reset();
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void Socket::shutdown() const {
  if (fd_ >= 0) ::shutdown(fd_, SHUT_RDWR);
}

void Socket::expect(size_t bytes) const {
  const int least = static_cast<int>(bytes);
  if (tls_ == nullptr) ::setsockopt(fd_, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
}

void Socket::secure(const TlsContext& context, const std::string& name) { tls_ = std::make_unique<Tls>(context, fd_, name); }

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

Socket listen_on(const std::string& host, int port, int* bound_port) {
  Addresses found = resolve(host, std::to_string(port), true);
  Socket socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int yes = 1;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (::bind(socket.fd(), found->ai_addr, found->ai_addrlen) != 0 || ::listen(socket.fd(), SOMAXCONN) != 0) {
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
    int fd = ::accept4(listener.fd(), reinterpret_cast<sockaddr*>(&peer), &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0) {
      tune(fd, reinterpret_cast<sockaddr*>(&peer));
      return Socket(fd);
    }
    // Otherwise the connection ended before it was accepted.
    switch (errno) {
      case EAGAIN: case EMFILE: case ENFILE: case ENOBUFS: case ENOMEM: case EBADF: case EINVAL: case ENOTSOCK: return Socket();
      default: break;
    }
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
