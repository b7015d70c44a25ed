#include "elasticdl/ps/native/connections.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>

namespace elasticdl::ps {
namespace {

constexpr size_t kMostStrangers = 256;
constexpr uint64_t kOthers = 128;  // files of a process beside its connections
// A peer on a busy machine needs a moment between the frames of its greeting.
constexpr std::chrono::milliseconds kNew{250};
constexpr std::chrono::minutes kTellEvery{1};

uint64_t open_files() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 1024;
}

}  // namespace

// gRPC takes up to half (rpc/channel.py).
size_t most_members(uint64_t open_files) {
  const uint64_t half = open_files / 2, taken = kOthers + kMostStrangers;
  return std::max<uint64_t>(half > taken ? half - taken : 0, 32);
}

Connections::Connections(Statistics& statistics, std::function<void()> freed)
    : statistics_(statistics), freed_(std::move(freed)), open_files_(open_files()), most_(most_members(open_files_)) {}

bool Connections::place(Clock::time_point now) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (strangers_.size() < kMostStrangers) return true;
  const auto oldest = strangers_.begin();
  if (now - oldest->second->since() < kNew) return false;
  oldest->second->hang_up();
  leaving_.insert(strangers_.extract(oldest));
  return true;
}

void Connections::add(std::shared_ptr<Connection> connection) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t number = connection->number();
  strangers_.emplace(number, std::move(connection));
  ++statistics_.connections;
}

bool Connections::admit(Connection& connection) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = strangers_.find(connection.number());
    if (found == strangers_.end()) return members_.count(connection.number()) > 0;
    if (members_.size() >= most_) return false;
    members_.insert(strangers_.extract(found));
  }
  freed_();
  return true;
}

void Connections::remove(Connection& connection) {
  ByNumber::node_type last;  // destroyed without the mutex
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (ByNumber* all : {&members_, &strangers_, &leaving_}) {
      if (last.empty()) last = all->extract(connection.number());
    }
    --statistics_.connections;
  }
  freed_();
}

void Connections::hang_up_on_late(Clock::time_point now) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (ByNumber* all : {&members_, &strangers_}) {
    for (const auto& [number, connection] : *all) {
      if (connection->late(now)) connection->hang_up();
    }
  }
}

void Connections::clear() {
  ByNumber all;
  std::lock_guard<std::mutex> lock(mutex_);
  for (ByNumber* some : {&members_, &strangers_, &leaving_}) {
    all.merge(*some);
    some->clear();
  }
  statistics_.connections -= all.size();
}

std::string Connections::full(uint32_t server) {
  const std::string files = std::to_string(open_files_);
  const std::string text = "no place for another connection: it has " + std::to_string(most_) + ", as many as its limit of " + files +
                           " open files allows. Raise that limit (`ulimit -Hn`, or LimitNOFILE of the container runtime), or use fewer workers";
  std::lock_guard<std::mutex> lock(mutex_);
  if (const auto now = Clock::now(); now - told_ > kTellEvery) {
    told_ = now;
    std::fprintf(stderr, "ps-%u: %s\n", server, text.c_str());
  }
  return text;
}

}  // namespace elasticdl::ps
