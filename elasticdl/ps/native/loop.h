// A few threads for any number of sockets. Each waits until some source is ready, gives it one turn, and waits again.
//
// A source that had a turn is heard of again only after it was armed, so it has one turn at a time, on any thread. The kernel
// lists sources in the order in which they became ready, and one that is armed while it is ready goes to the end of that
// list: whoever leaves the rest of its work for another turn lets all others pass. A turn must not wait for another source's.
#pragma once

#include <memory>
#include <thread>
#include <vector>

namespace elasticdl::ps {

class Source {
 public:
  virtual ~Source() = default;
  virtual void turn() = 0;
};

// When a source gets its next turn. `soon`: as soon as the others had theirs.
enum class When { readable, writable, soon };

class Poller {
 public:
  // Throws std::system_error.
  Poller();
  ~Poller();
  Poller(const Poller&) = delete;
  Poller& operator=(const Poller&) = delete;

  // Throws std::system_error. The source must outlive its turns; it has none before it is armed.
  void add(int fd, Source& source);
  // From any thread, once for each turn. It may begin before this returns.
  void arm(int fd, Source& source, When when);
  void remove(int fd);

 private:
  friend class Loop;
  int fd_;
};

class Loop {
 public:
  Loop();
  ~Loop();

  // Sources may keep it beyond the loop.
  const std::shared_ptr<Poller>& poller() const { return poller_; }
  void start(unsigned threads);
  // Returns when no turn is under way; there is none afterwards.
  void stop();

 private:
  void run();

  std::shared_ptr<Poller> poller_;
  int stop_;
  std::vector<std::thread> threads_;
};

// Enough that all cores work while some threads wait for the lock of a table.
unsigned loop_threads();

}  // namespace elasticdl::ps
