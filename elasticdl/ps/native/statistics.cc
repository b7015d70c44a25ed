#include "elasticdl/ps/native/statistics.h"

#include <algorithm>
#include <cmath>

namespace elasticdl::ps {

void Latencies::add(std::chrono::nanoseconds duration) {
  double microseconds = std::max(static_cast<double>(duration.count()) / 1000.0, 1.0);
  int bucket = std::min(static_cast<int>(2.0 * std::log2(microseconds)), kBuckets - 1);
  counts_[static_cast<size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
}

std::array<uint64_t, Latencies::kBuckets> Latencies::counts() const {
  std::array<uint64_t, kBuckets> counts{};
  for (size_t i = 0; i < counts.size(); ++i) counts[i] = counts_[i].load(std::memory_order_relaxed);
  return counts;
}

void Statistics::count_staleness(int64_t updates) {
  auto bucket = static_cast<size_t>(std::clamp<int64_t>(updates, 0, kStalenesses - 1));
  staleness[bucket].fetch_add(1, std::memory_order_relaxed);
}

}  // namespace elasticdl::ps
