// The bytes that all connections share for large frames, or for large replies, in transit. Who finds too few left waits, and
// is served in the order of asking: a large share is not overtaken for ever by small ones.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "elasticdl/ps/native/waiter.h"

namespace elasticdl::ps {

class Budget {
 public:
  explicit Budget(uint64_t bytes) : total_(bytes), left_(bytes) {}

  // False: `who` is woken when it has the bytes, and asks again. At most all of the budget.
  bool take(Waiter& who, uint64_t bytes);
  void give_back(uint64_t bytes);
  // `who` takes nothing: it asks no more, and gives back what it was granted and has not taken.
  void cancel(Waiter& who);

 private:
  struct Asked {
    Waiter* who;
    std::weak_ptr<Waiter> alive;
    uint64_t bytes;
  };

  // Grants what is left, in order. Returns whom to let go of without the mutex: it may be the last to hold them.
  std::vector<std::shared_ptr<Waiter>> grant();

  std::mutex mutex_;  // guards all below
  const uint64_t total_;
  uint64_t left_;
  std::deque<Asked> queue_;
  std::map<Waiter*, uint64_t> granted_;  // have their bytes and do not know it yet
};

}  // namespace elasticdl::ps
