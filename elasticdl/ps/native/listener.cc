#include <pthread.h>
#include <signal.h>

#include "elasticdl/ps/native/connection.h"

namespace elasticdl::ps {
namespace {

constexpr size_t kMaxConnections = 1024;
constexpr uint64_t kMaxReceivingBytes = uint64_t{4} << 30;

// Signals are for Python's threads: one that lands here would be handled late.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

Listener::Listener(Server& server) : server_(server), budget_(kMaxReceivingBytes) {}

Listener::~Listener() { stop(); }

int Listener::listen(const std::string& host, int port) {
  int bound = 0;
  listener_ = listen_on(host, port, &bound);
  SignalsBlocked blocked;
  acceptor_ = std::thread([this] { accept(); });
  return bound;
}

void Listener::accept() {
  for (;;) {
    Socket socket = accept_from(listener_);
    if (!socket) return;
    take(std::move(socket));
  }
}

void Listener::take(Socket socket) {
  reap();
  std::lock_guard<std::mutex> lock(mutex_);
  // One too many is closed at once: its client comes back with a back-off.
  if (stopped_ || served_.size() >= kMaxConnections) return;
  Served& served = served_.emplace_back();
  served.connection = std::make_unique<Connection>(server_, budget_, std::move(socket));
  ++server_.statistics().connections;
  try {
    served.thread = std::thread([this, &served] {
      served.connection->serve();
      --server_.statistics().connections;
      served.done = true;
    });
  } catch (const std::system_error&) {
    --server_.statistics().connections;
    served_.pop_back();
  }
}

void Listener::reap() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto served = served_.begin(); served != served_.end();) {
    if (!served->done) {
      ++served;
      continue;
    }
    served->thread.join();
    served = served_.erase(served);
  }
}

void Listener::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    for (Served& served : served_) served.connection->stop();
  }
  server_.admission().stop();
  listener_.shutdown();
  if (acceptor_.joinable()) acceptor_.join();
  for (Served& served : served_) served.thread.join();
  served_.clear();
  listener_.close();
}

}  // namespace elasticdl::ps
