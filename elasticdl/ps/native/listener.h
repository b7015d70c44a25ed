// The bulk plane of a server: accepts connections, and has a few threads serve all of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "elasticdl/ps/native/connections.h"
#include "elasticdl/ps/native/loop.h"

namespace elasticdl::ps {

class Listener {
 public:
  explicit Listener(Server& server);
  ~Listener();

  // Begins to accept. Returns the port.
  int listen(const std::string& host, int port);
  void stop();
  // The connections of workers that it serves at once; two for each.
  size_t most_connections() const { return connections_.most(); }

 private:
  // Accepts while there are places. What has no place waits in the system's queue.
  class Acceptor : public Source {
   public:
    explicit Acceptor(Listener& owner) : owner_(owner) {}
    void slice() override { owner_.accept(); }

   private:
    Listener& owner_;
  };
  // Looks after what has a time limit.
  class Ticker : public Source {
   public:
    explicit Ticker(Listener& owner);
    ~Ticker() override;
    void start();
    void slice() override;

   private:
    Listener& owner_;
    int fd_;
  };

  void accept();
  bool accept_one();
  void pause();
  void resume();

  Server& server_;
  Budget frames_;
  Budget unpacked_;
  Budget replies_;
  Loop loop_;
  Connections connections_;
  Acceptor acceptor_;
  Ticker ticker_;
  Socket listener_;
  uint64_t accepted_ = 0;  // of the acceptor's slices
  std::atomic<bool> paused_{false};
  bool stopped_ = false;
};

}  // namespace elasticdl::ps
