#include "elasticdl/rpc/native/lane.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "elasticdl/rpc/native/link.h"

namespace elasticdl {
namespace {

constexpr auto kSlice = std::chrono::milliseconds(200);

Time now() { return std::chrono::steady_clock::now(); }

std::string seconds(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s", value);
  return text;
}

// However a run ends, no link may keep a pointer to its parts.
struct Abandon {
  const std::vector<std::unique_ptr<Link>>& links;
  ~Abandon() {
    for (const auto& link : links) {
      if (link->waiting()) link->abandon();
    }
  }
};

}  // namespace

Lane::Lane(Identity identity, std::vector<std::string> addresses, std::function<void()> idle)
    : identity_(std::move(identity)), idle_(std::move(idle)), wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  uint32_t count = static_cast<uint32_t>(addresses.size());
  for (uint32_t k = 0; k < count; ++k) links_.push_back(std::make_unique<Link>(identity_, k, count, addresses[k]));
  answered_s_.resize(count);
  met_at_.resize(count);
}

Lane::~Lane() { ::close(wake_); }

void Lane::run(std::vector<Part>& parts, const Seed& seed, double timeout_s, const char* what) {
  run(parts, seed, timeout_s, what, Until::answered);
}

void Lane::meet(const Seed& seed, double timeout_s) {
  std::vector<Part> parts(links_.size());
  for (uint32_t k = 0; k < servers(); ++k) {
    parts[k].server = k;
    parts[k].kind = wire::Kind::push;
    // Some servers may have acknowledged this one in a run that failed. The caller makes it again.
    parts[k].sequence = acknowledged() + 1;
  }
  run(parts, seed, timeout_s, "greeting", Until::met);
}

void Lane::run(std::vector<Part>& parts, const Seed& seed, double timeout_s, const char* what, Until until) {
  Time begin = now(), deadline = begin + std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(timeout_s));
  listen_to_owner();
  Abandon abandon{links_};
  bool held = identity_.pushes;
  for (Part& part : parts) links_[part.server]->start(part, seed, held);
  for (;;) {
    bool waiting = false, all_met = true;
    for (size_t k = 0; k < links_.size(); ++k) {
      const auto& link = links_[k];
      if (link->waiting()) {
        link->advance(now());
        if (!link->waiting()) answered_s_[k] = std::chrono::duration<double>(now() - begin).count();
        if (!link->waiting() || link->met()) note_met(k);
      }
      waiting = waiting || link->waiting();
      all_met = all_met && (!link->waiting() || link->met());
    }
    if (!waiting) return;
    if (held && all_met) {
      if (until == Until::met) return;
      held = false;
      for (Part& part : parts) links_[part.server]->release();
      continue;
    }
    if (now() >= deadline) give_up(timeout_s, what);
    wait(deadline);
  }
}

void Lane::note_met(size_t server) {
  const std::string& address = links_[server]->address();
  if (!identity_.pushes || met_at_[server] == address) return;
  met_at_[server] = address;
  met_.push_back({address, links_[server]->take_lacks()});
}

std::vector<Met> Lane::take_rest() {
  std::vector<Met> rest = take_met();
  for (const auto& link : links_) {
    if (const int64_t lacks = link->take_lacks(); lacks > 0) rest.push_back({link->lacks_at(), lacks});
  }
  return rest;
}

bool Lane::crowded() const {
  return std::any_of(links_.begin(), links_.end(), [](const auto& link) { return link->log().crowded(); });
}

size_t Lane::too_large() const {
  size_t most = 0;
  for (const auto& link : links_) most = std::max(most, link->log().too_large());
  return most;
}

int64_t Lane::acknowledged() const {
  int64_t least = INT64_MAX;
  for (const auto& link : links_) least = std::min(least, link->log().last());
  return least;
}

void Lane::begin_after(int64_t sequence) {
  for (const auto& link : links_) link->log().begin_after(sequence);
}

void Lane::wait(Time deadline) {
  std::vector<pollfd> fds{{wake_, POLLIN, 0}};
  Time until = std::min(deadline, now() + kSlice);
  for (const auto& link : links_) {
    if (!link->waiting() || link->met()) continue;
    if (!link->away()) fds.push_back({link->fd(), link->events(), 0});
    else if (link->reachable()) until = std::min(until, link->retry_at());
  }
  auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(until - now());
  if (left.count() < 0) left = std::chrono::nanoseconds(0);
  timespec limit{static_cast<time_t>(left.count() / 1'000'000'000), static_cast<long>(left.count() % 1'000'000'000)};
  if (::ppoll(fds.data(), fds.size(), &limit, nullptr) <= 0 && idle_) idle_();
  if (fds[0].revents != 0) listen_to_owner();
}

void Lane::listen_to_owner() {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t count;
  while (::read(wake_, &count, sizeof count) > 0) {
  }
  if (closed_) throw TransientError("the connections to the parameter servers were closed");
  for (size_t k = 0; k < moved_.size(); ++k) links_[k]->move(moved_[k]);
  moved_.clear();
}

void Lane::move(std::vector<std::string> addresses) {
  std::lock_guard<std::mutex> lock(mutex_);
  moved_ = std::move(addresses);
  uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof one);
}

void Lane::close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  uint64_t one = 1;
  (void)!::write(wake_, &one, sizeof one);
}

void Lane::give_up(double timeout_s, const char* what) {
  std::string text = std::string(what) + " of " + identity_.name + " was not answered within " + seconds(timeout_s) + " by ";
  bool first = true;
  for (const auto& link : links_) {
    if (!link->waiting() || link->met()) continue;
    text += (first ? "" : "; ") + link->story();
    first = false;
  }
  throw TransientError(text);
}

}  // namespace elasticdl
