#include "elasticdl/ps/native/budget.h"

#include <algorithm>

namespace elasticdl::ps {

bool Budget::take(Waiter& who, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (granted_.erase(&who) > 0) return true;
  if (queue_.empty() && bytes <= left_) {
    left_ -= bytes;
    return true;
  }
  const bool asked = std::any_of(queue_.begin(), queue_.end(), [&](const Asked& one) { return one.who == &who; });
  if (!asked) queue_.push_back({&who, who.weak_from_this(), bytes});
  return false;
}

void Budget::give_back(uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  left_ += bytes;
  for (; !queue_.empty(); queue_.pop_front()) {
    const Asked& first = queue_.front();
    const auto alive = first.alive.lock();
    if (alive == nullptr) continue;
    if (first.bytes > left_) return;
    left_ -= first.bytes;
    granted_.insert(first.who);
    alive->wake();
  }
}

}  // namespace elasticdl::ps
