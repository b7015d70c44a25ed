// Leaves the processors to training while a file is written that nobody waits for.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

namespace elasticdl::checkpoint {

// Whether somebody waits for what is written. Thread-safe.
class Haste {
 public:
  // From now on nobody pauses.
  void hurry();
  // Waits for this time, or until somebody waits for the file. Returns the seconds that passed.
  double pause(double seconds);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool hurried_ = false;
};

// Constructed on the writing thread, which then uses at most a twentieth of a processor. A lower priority would not do: the
// thread holds the lock of a table while it reads rows, and pushes would wait until it gets its turn.
class Pace {
 public:
  // Pauses no more than `most_s` for each byte, and no longer if `over()`.
  Pace(Haste& haste, double most_s, std::function<bool()> over);

  // After each piece of the file.
  void rest(uint64_t bytes);
  double paused_s() const { return paused_s_; }

 private:
  Haste& haste_;
  const double most_s_;
  const std::function<bool()> over_;
  const double begin_s_;  // processor time of this thread
  uint64_t bytes_ = 0;
  double paused_s_ = 0;
};

}  // namespace elasticdl::checkpoint
