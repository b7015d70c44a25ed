// Counters for the status: amounts, durations, staleness. They only grow; readers take differences.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace elasticdl::ps {

// Durations in buckets of powers of sqrt(2) microseconds, from 1 us to 70 s.
class Latencies {
 public:
  static constexpr int kBuckets = 52;

  void add(std::chrono::nanoseconds duration);
  std::array<uint64_t, kBuckets> counts() const;

 private:
  std::array<std::atomic<uint64_t>, kBuckets> counts_{};
};

struct Statistics {
  static constexpr int kStalenesses = 32;  // the last counts all above, too

  std::atomic<uint64_t> pulls{0}, pulled_rows{0}, pulled_bytes{0};
  std::atomic<uint64_t> pushes{0}, pushed_rows{0}, pushed_bytes{0}, repeated_pushes{0};
  std::atomic<uint64_t> refused{0}, bad_frames{0}, connections{0};
  std::array<std::atomic<uint64_t>, kStalenesses> staleness{};
  Latencies pull_time, push_time;

  void count_staleness(int64_t updates);
};

}  // namespace elasticdl::ps
