#include "elasticdl/checkpoint/native/pace.h"

#include <time.h>

#include <algorithm>
#include <chrono>

namespace elasticdl::checkpoint {
namespace {

// Pauses of so many times the work: a twentieth of a processor remains for it.
constexpr double kPauses = 19;

double thread_s() {
  timespec spent{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
}

}  // namespace

void Haste::hurry() {
  std::lock_guard<std::mutex> lock(mutex_);
  hurried_ = true;
  changed_.notify_all();
}

double Haste::pause(double seconds) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (hurried_) return 0;
  const auto begin = std::chrono::steady_clock::now();
  changed_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return hurried_; });
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

Pace::Pace(Haste& haste, double most_s, std::function<bool()> over)
    : haste_(haste), most_s_(most_s), over_(std::move(over)), begin_s_(thread_s()) {}

void Pace::rest(uint64_t bytes) {
  bytes_ += bytes;
  // Sums, so that a pause that was too long or too short counts for the next one.
  const double most_s = most_s_ * static_cast<double>(bytes_) - paused_s_;
  if (most_s <= 0) return;
  const double due_s = std::min(kPauses * (thread_s() - begin_s_) - paused_s_, most_s);
  if (due_s > 0 && !over_()) paused_s_ += haste_.pause(due_s);
}

}  // namespace elasticdl::checkpoint
