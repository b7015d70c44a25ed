// A readers-writer lock without writer starvation: glibc's prefers readers while any of them holds it.
#pragma once
#include <mutex>
#include <shared_mutex>

namespace elasticdl {

// Every thread passes the turnstile; a writer holds it until the present readers have left.
class Turnstile {
 public:
  void lock() {
    std::lock_guard<std::mutex> pass(entrance_);
    inside_.lock();
  }
  void unlock() { inside_.unlock(); }
  void lock_shared() {
    std::lock_guard<std::mutex> pass(entrance_);
    inside_.lock_shared();
  }
  void unlock_shared() { inside_.unlock_shared(); }

 private:
  std::mutex entrance_;
  std::shared_mutex inside_;
};

}  // namespace elasticdl
