// A few threads for any number of sockets. Each waits until one of its sources is ready, runs one slice of its work, and waits
// again.
//
// After a slice a source is heard of again only when it was armed. The kernel lists sources in the order in which they became
// ready, and one that is armed while it is ready goes to the end of that list: whoever leaves the rest of its work for another
// slice lets all others pass. A slice must not wait for another source's.
//
// A source stays with one thread, and that stays on one core: the peer of a connection works on another one meanwhile. Threads
// that take turns at one list make large pulls 15 % slower.
#pragma once

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace elasticdl::ps {

class Source {
 public:
  virtual ~Source() = default;
  virtual void slice() = 0;
};

// When a source gets its next slice. `soon`: as soon as the others had theirs.
enum class When { readable, writable, soon };

class Poller {
 public:
  // Throws std::system_error.
  Poller();
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // Throws std::system_error. The source must outlive its slices; it has none before it is armed.
  void add(int fd, Source& source);
  // From any thread, once for each slice, which may begin before this returns.
  void arm(int fd, Source& source, When when);
  void remove(int fd);
  // Runs slices until the loop is stopped.
  void run();

 private:
  friend class Loop;
  int fd_;
};

class Loop {
 public:
  // Throws std::system_error.
  explicit Loop(unsigned threads);
  ~Loop();

  // Of one of the threads; neighbours have different ones. Sources may keep it beyond the loop.
  const std::shared_ptr<Poller>& poller(uint64_t number) const { return pollers_[number % pollers_.size()]; }
  void start();
  // Returns when no slice is under way; there is none afterwards.
  void stop();

 private:
  std::vector<std::shared_ptr<Poller>> pollers_;
  int stop_;
  std::vector<std::thread> threads_;
};

// Two for each core, so that a long slice on one of them leaves the core to another; at least one for each connection of two
// workers.
unsigned loop_threads();

}  // namespace elasticdl::ps
