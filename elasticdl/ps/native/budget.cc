#include "elasticdl/ps/native/budget.h"

#include <algorithm>
#include <string>

#include "elasticdl/rpc/native/errors.h"

namespace elasticdl::ps {

bool Budget::take(Waiter& who, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (granted_.erase(&who) > 0) return true;
  // It would wait for ever, and all others behind it.
  if (bytes > total_) throw UserError("a request needs " + std::to_string(bytes) + " bytes of room, and there are " + std::to_string(total_));
  if (queue_.empty() && bytes <= left_) {
    left_ -= bytes;
    return true;
  }
  const bool asked = std::any_of(queue_.begin(), queue_.end(), [&](const Asked& one) { return one.who == &who; });
  if (!asked) queue_.push_back({&who, who.weak_from_this(), bytes});
  return false;
}

void Budget::give_back(uint64_t bytes) {
  if (bytes == 0) return;
  std::vector<std::shared_ptr<Waiter>> seen;
  std::lock_guard<std::mutex> lock(mutex_);
  left_ += bytes;
  seen = grant();
}

void Budget::cancel(Waiter& who) {
  std::vector<std::shared_ptr<Waiter>> seen;
  std::lock_guard<std::mutex> lock(mutex_);
  queue_.erase(std::remove_if(queue_.begin(), queue_.end(), [&](const Asked& one) { return one.who == &who; }), queue_.end());
  if (const auto found = granted_.find(&who); found != granted_.end()) {
    left_ += found->second;
    granted_.erase(found);
  }
  seen = grant();
}

std::vector<std::shared_ptr<Waiter>> Budget::grant() {
  std::vector<std::shared_ptr<Waiter>> seen;
  for (; !queue_.empty(); queue_.pop_front()) {
    const Asked& first = queue_.front();
    const auto& alive = seen.emplace_back(first.alive.lock());
    if (alive == nullptr) continue;
    if (first.bytes > left_) break;
    left_ -= first.bytes;
    granted_.emplace(first.who, first.bytes);
    alive->wake();
  }
  return seen;
}

}  // namespace elasticdl::ps
