#include "elasticdl/ps/native/loop.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>

namespace elasticdl::ps {
namespace {

// Python's threads handle signals: one delivered to these threads would be handled late.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

[[noreturn]] void fail(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

uint32_t events(When when) {
  // A socket that waits for nothing else can nearly always be written to.
  return when == When::readable ? EPOLLIN : when == When::writable ? EPOLLOUT : EPOLLIN | EPOLLOUT;
}

}  // namespace

Poller::Poller() : fd_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (fd_ < 0) fail("epoll_create1");
}

Poller::~Poller() { ::close(fd_); }

void Poller::add(int fd, Source& source) {
  epoll_event event{EPOLLONESHOT, {&source}};
  if (::epoll_ctl(fd_, EPOLL_CTL_ADD, fd, &event) != 0) fail("epoll_ctl");
}

void Poller::arm(int fd, Source& source, When when) {
  epoll_event event{events(when) | EPOLLONESHOT, {&source}};
  ::epoll_ctl(fd_, EPOLL_CTL_MOD, fd, &event);
}

void Poller::remove(int fd) { ::epoll_ctl(fd_, EPOLL_CTL_DEL, fd, nullptr); }

void Poller::run() {
  for (;;) {
    epoll_event event;
    if (::epoll_wait(fd_, &event, 1, -1) != 1) continue;
    if (event.data.ptr == nullptr) return;
    static_cast<Source*>(event.data.ptr)->slice();
  }
}

Loop::Loop(unsigned threads) : stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (stop_ < 0) fail("eventfd");
  while (pollers_.size() < threads) {
    pollers_.push_back(std::make_shared<Poller>());
    epoll_event event{EPOLLIN, {nullptr}};  // stays ready: every thread sees it
    if (::epoll_ctl(pollers_.back()->fd_, EPOLL_CTL_ADD, stop_, &event) != 0) fail("epoll_ctl");
  }
}

Loop::~Loop() {
  stop();
  ::close(stop_);
}

void Loop::start() {
  SignalsBlocked blocked;
  for (const auto& poller : pollers_) threads_.emplace_back([poller] { poller->run(); });
}

void Loop::stop() {
  const uint64_t one = 1;
  (void)!::write(stop_, &one, sizeof one);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

unsigned loop_threads() { return std::clamp(2 * std::thread::hardware_concurrency(), 4u, 16u); }

}  // namespace elasticdl::ps
