// The places for connections: as many as the process may open files, few of them for strangers.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "elasticdl/ps/native/connection.h"

namespace elasticdl::ps {

// How many connections that proved who they are a process with so many files may have.
size_t most_members(uint64_t open_files);

// Thread-safe.
class Connections {
 public:
  using Clock = Connection::Clock;

  // Reads the limit of open files of the process. `freed` is called when a stranger has left its place.
  Connections(Statistics& statistics, std::function<void()> freed);

  // A place for one more stranger. When there are too many the oldest one is hung up on, unless it is so new that it may be
  // about to prove who it is: false then.
  bool place(Clock::time_point now);
  void add(std::shared_ptr<Connection> connection);
  // A stranger has proved who it is; again and again if it has to. False if there is no place for it.
  bool admit(Connection& connection);
  void remove(Connection& connection);
  void hang_up_on_late(Clock::time_point now);
  void clear();

  size_t most() const { return most_; }
  // What the peer is told when there is no place, and on stderr now and then.
  std::string full(uint32_t server);

 private:
  using ByNumber = std::map<uint64_t, std::shared_ptr<Connection>>;

  Statistics& statistics_;
  const std::function<void()> freed_;
  const uint64_t open_files_;
  const size_t most_;
  std::mutex mutex_;   // guards all below
  ByNumber strangers_;
  ByNumber leaving_;   // strangers that were hung up on
  ByNumber members_;
  Clock::time_point told_{};
};

}  // namespace elasticdl::ps
