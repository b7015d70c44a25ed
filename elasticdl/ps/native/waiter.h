// Who waits for another's work without a thread of its own.
#pragma once

#include <memory>
#include <utility>
#include <vector>

namespace elasticdl::ps {

class Waiter : public std::enable_shared_from_this<Waiter> {
 public:
  virtual ~Waiter() = default;
  // What it waits for may have happened: it tries again. From any thread, any number of times; it must not block.
  virtual void wake() = 0;
};

// Guarded by whoever guards what they wait for. One that is gone is left out.
class Waiters {
 public:
  void add(Waiter& one) { all_.push_back(one.weak_from_this()); }
  void wake() {
    for (const auto& one : std::exchange(all_, {})) {
      if (auto alive = one.lock()) alive->wake();
    }
  }

 private:
  std::vector<std::weak_ptr<Waiter>> all_;
};

}  // namespace elasticdl::ps
