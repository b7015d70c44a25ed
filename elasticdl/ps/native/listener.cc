#include <pthread.h>
#include <signal.h>

#include "elasticdl/ps/native/connection.h"

namespace elasticdl::ps {
namespace {

// Two for each of MAX_WORKERS (elasticdl/flag_values.py), plus stale ones of restarted workers, plus unauthenticated ones.
constexpr size_t kMaxConnections = 21120;
constexpr size_t kMaxStrangers = 256;
constexpr uint64_t kMaxReceivingBytes = uint64_t{4} << 30;

// Python's threads handle signals: one delivered to this thread would be handled late.
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
  make_room();
  // Closes a connection above the limit at once: its client retries with back-off.
  if (stopped_ || clients_.size() >= kMaxConnections) return;
  Client& client = clients_.emplace_back();
  client.connection = std::make_unique<Connection>(server_, budget_, std::move(socket));
  ++server_.statistics().connections;
  try {
    client.thread = std::thread([this, &client] {
      client.connection->serve();
      --server_.statistics().connections;
      client.done = true;
    });
  } catch (const std::system_error&) {
    --server_.statistics().connections;
    clients_.pop_back();
  }
}

// Unauthenticated connections must not lock out workers: above the limit, the oldest of them is closed.
void Listener::make_room() {
  size_t strangers = 0;
  Client* oldest = nullptr;
  for (Client& client : clients_) {
    if (client.done || client.hung_up || client.connection->known()) continue;
    if (oldest == nullptr) oldest = &client;
    ++strangers;
  }
  if (strangers < kMaxStrangers) return;
  oldest->hung_up = true;
  oldest->connection->stop();
}

void Listener::reap() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto client = clients_.begin(); client != clients_.end();) {
    if (!client->done) {
      ++client;
      continue;
    }
    client->thread.join();
    client = clients_.erase(client);
  }
}

void Listener::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
    for (Client& client : clients_) client.connection->stop();
  }
  server_.admission().stop();
  listener_.shutdown();
  if (acceptor_.joinable()) acceptor_.join();
  for (Client& client : clients_) client.thread.join();
  clients_.clear();
  listener_.close();
}

}  // namespace elasticdl::ps
