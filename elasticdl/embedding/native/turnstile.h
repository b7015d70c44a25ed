// A readers-writer lock under which writers do not starve: glibc's prefers readers for as long as any is inside.
#pragma once
#include <mutex>
#include <shared_mutex>

namespace elasticdl {

// Whoever comes passes the turnstile; a writer holds it until the readers inside have left.
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
