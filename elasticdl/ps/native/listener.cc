#include "elasticdl/ps/native/listener.h"

#include <errno.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <system_error>

namespace elasticdl::ps {
namespace {

constexpr uint64_t kMostInTransit = uint64_t{4} << 30;
// Few: between two slices those that were accepted get on with their greetings.
constexpr int kAcceptAtOnce = 16;
constexpr long kTickNs = 250'000'000;

}  // namespace

Listener::Ticker::Ticker(Listener& owner) : owner_(owner), fd_(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)) {
  if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "timerfd_create");
}

Listener::Ticker::~Ticker() { ::close(fd_); }

void Listener::Ticker::start() {
  const itimerspec each{{0, kTickNs}, {0, kTickNs}};
  ::timerfd_settime(fd_, 0, &each, nullptr);
  owner_.loop_.poller(0)->add(fd_, *this);
  owner_.loop_.poller(0)->arm(fd_, *this, When::readable);
}

void Listener::Ticker::slice() {
  uint64_t times;
  (void)!::read(fd_, &times, sizeof times);
  owner_.connections_.hang_up_on_late(Connection::Clock::now());
  owner_.server_.admission().open_in_time();
  owner_.resume();
  owner_.loop_.poller(0)->arm(fd_, *this, When::readable);
}

Listener::Listener(Server& server)
    : server_(server), frames_(kMostInTransit), unpacked_(kMostInTransit), replies_(kMostInTransit), loop_(loop_threads()),
      connections_(server.statistics(), [this] { resume(); }),
      acceptor_(*this), ticker_(*this) {}

Listener::~Listener() { stop(); }

int Listener::listen(const std::string& host, int port) {
  int bound = 0;
  listener_ = listen_on(host, port, &bound);
  loop_.poller(0)->add(listener_.fd(), acceptor_);
  loop_.poller(0)->arm(listener_.fd(), acceptor_, When::readable);
  ticker_.start();
  loop_.start();
  return bound;
}

void Listener::accept() {
  for (int count = 0; count < kAcceptAtOnce; ++count) {
    if (!connections_.place(Connection::Clock::now())) return pause();
    if (!accept_one()) {
      if (errno == EAGAIN) break;
      if (errno == EMFILE) connections_.full(server_.config().server);
      return pause();  // descriptors or memory ran out for a moment
    }
  }
  loop_.poller(0)->arm(listener_.fd(), acceptor_, When::readable);
}

// False: see errno.
bool Listener::accept_one() {
  Socket socket = accept_from(listener_);
  if (!socket) return false;
  try {
    ++accepted_;
    const Shared shared{server_, connections_, frames_, unpacked_, replies_};
    auto made = std::make_shared<Connection>(accepted_, shared, loop_.poller(accepted_), std::move(socket), Connection::Clock::now());
    connections_.add(made);
    made->start();
  } catch (const std::exception&) {
    errno = ENOMEM;
    return false;
  }
  return true;
}

void Listener::pause() { paused_ = true; }

void Listener::resume() {
  if (paused_.exchange(false)) loop_.poller(0)->arm(listener_.fd(), acceptor_, When::readable);
}

void Listener::stop() {
  if (std::exchange(stopped_, true)) return;
  loop_.stop();
  listener_.close();
  connections_.clear();
  server_.admission().stop();
}

}  // namespace elasticdl::ps
