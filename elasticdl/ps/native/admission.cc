#include "elasticdl/ps/native/admission.h"

#include <algorithm>

#include "elasticdl/rpc/native/errors.h"

namespace elasticdl::ps {
namespace {

constexpr size_t kOwnKept = 16;      // more than --max-staleness may be
constexpr size_t kRetiredKept = 16;

std::chrono::steady_clock::time_point after(Admission::Seconds wait) {
  using Clock = std::chrono::steady_clock;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
}

}  // namespace

void Admission::start(int64_t version, int64_t step_base) {
  Lock lock(mutex_);
  version_ = begun_ = version;
  step_base_ = step_base;
}

void Admission::restore(const std::string& worker, const Pushes& pushes) {
  Lock lock(mutex_);
  workers_[worker].pushes = pushes;
}

void Admission::refuse_fenced(const std::string& name, const Worker& worker) const {
  if (worker.fenced) throw Refused(name + " was fenced: its shards went to other workers");
}

void Admission::check(const std::string& worker) const {
  Lock lock(mutex_);
  auto found = workers_.find(worker);
  if (found != workers_.end()) refuse_fenced(worker, found->second);
}

void Admission::greet(const std::string& name, uint64_t session) {
  Lock lock(mutex_);
  Worker& worker = workers_[name];
  refuse_fenced(name, worker);
  if (session == 0) return;
  if (worker.retired.count(session) != 0) throw Refused(name + " has connected anew since: its earlier connections are void");
  // One thread at a time may change a worker's count.
  changed_.wait(lock, [&] { return !worker.busy || stopped_; });
  if (worker.pushes.session != session) {
    if (worker.pushes.session != 0) worker.retired.insert(worker.pushes.session);
    if (worker.retired.size() > kRetiredKept) worker.retired.erase(worker.retired.begin());
    worker.pushes.session = session;
    worker.pushes.sequence = 0;
  }
  worker.here = true;
}

// The gate opens by timeout: a caller after the deadline finds it open.
bool Admission::gated() {
  if (closed_ && Clock::now() >= opens_at_) {
    closed_ = false;
    changed_.notify_all();
  }
  return closed_;
}

bool Admission::kept_out(const std::string& name, int64_t sequence) {
  if (!gated()) return false;
  auto found = admit_until_.find(name);
  return found == admit_until_.end() || sequence > found->second;
}

Outcome Admission::admit(const std::string& name, const PushStamp& stamp) {
  Lock lock(mutex_);
  Worker& worker = workers_[name];
  for (;;) {
    if (stopped_) throw TransientError("the server is shutting down");
    refuse_fenced(name, worker);
    if (stamp.session != worker.pushes.session) throw Refused(name + " has connected anew since: this push came too late");
    if (!worker.busy && stamp.sequence <= worker.pushes.sequence) {
      Outcome outcome = worker.last;
      outcome.repeated = true;
      outcome.version = std::max(outcome.version, version_);
      return outcome;
    }
    if (worker.busy) {
      changed_.wait(lock);
    } else if (kept_out(name, stamp.sequence)) {
      if (stamp.sequence > worker.queued) {
        worker.queued = stamp.sequence;
        changed_.notify_all();  // a cut may wait for a push that, as this one shows, will never come
      }
      changed_.wait_until(lock, opens_at_);
    } else {
      break;
    }
  }
  worker.queued = 0;
  worker.busy = true;
  ++under_way_;
  Outcome outcome;
  outcome.staleness = staleness(worker, stamp.version);
  outcome.step = ++begun_ - step_base_;
  return outcome;
}

int64_t Admission::staleness(const Worker& worker, int64_t told) const {
  const int64_t pulled = std::clamp<int64_t>(told, 0, version_);  // a client may send any number
  int64_t since = version_ - pulled;
  for (int64_t own : worker.own) since -= own > pulled ? 1 : 0;
  return std::max<int64_t>(since, 0);
}

void Admission::finish(const std::string& name, const PushStamp& stamp, Outcome& outcome) {
  Lock lock(mutex_);
  Worker& worker = workers_[name];
  worker.busy = false;
  --under_way_;
  outcome.version = ++version_;
  worker.pushes = {stamp.session, stamp.sequence, stamp.applied, true};
  worker.last = outcome;
  worker.own.push_back(version_);
  if (worker.own.size() > kOwnKept) worker.own.pop_front();
  changed_.notify_all();
}

bool Admission::check_push(const std::string& name, const PushStamp& stamp) const {
  Lock lock(mutex_);
  if (stopped_) throw TransientError("the server is shutting down");
  auto found = workers_.find(name);
  if (found == workers_.end()) throw Refused(name + " has not greeted this server");
  refuse_fenced(name, found->second);
  if (stamp.session != found->second.pushes.session) throw Refused(name + " has connected anew since: this push came too late");
  return stamp.sequence > found->second.pushes.sequence;
}

int64_t Admission::begin_step() {
  Lock lock(mutex_);
  while (gated() && !stopped_) changed_.wait_until(lock, opens_at_);
  if (stopped_) throw TransientError("the server is shutting down");
  ++under_way_;
  return ++begun_ - step_base_;
}

int64_t Admission::finish_step(const std::vector<std::pair<std::string, PushStamp>>& pushes) {
  Lock lock(mutex_);
  for (const auto& [name, stamp] : pushes) {
    Worker& worker = workers_[name];
    // A worker may have several pushes in a step, in any order.
    if (stamp.session != worker.pushes.session || stamp.sequence <= worker.pushes.sequence) continue;
    worker.pushes = {stamp.session, stamp.sequence, stamp.applied, true};
  }
  --under_way_;
  ++version_;
  changed_.notify_all();
  return version_;
}

Pushes Admission::fence(const std::string& name) {
  Lock lock(mutex_);
  Worker& worker = workers_[name];
  worker.fenced = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return !worker.busy || stopped_; });
  return worker.pushes;
}

Sequences Admission::close(Seconds timeout) {
  Lock lock(mutex_);
  closed_ = true;
  opens_at_ = after(timeout);
  admit_until_.clear();
  bool quiet = changed_.wait_until(lock, opens_at_, [&] { return under_way_ == 0 || stopped_; });
  if (stopped_) throw TransientError("the server is shutting down");
  if (!quiet) {
    gated();
    throw TransientError("pushes in progress did not finish before the gate timed out");
  }
  Sequences sequences;
  for (const auto& [name, worker] : workers_) {
    if (worker.pushes.any) sequences[name] = worker.pushes.sequence;
  }
  return sequences;
}

void Admission::open() {
  Lock lock(mutex_);
  closed_ = false;
  admit_until_.clear();
  changed_.notify_all();
}

// Fenced workers, and workers that never connected to this process, push nothing more. A worker whose next push waits
// here already has skipped the missing ones: this server was away when they were made.
std::string Admission::missing(const Sequences& admit_until) const {
  // The master takes no cut between the servers of a step.
  if (steps_) return under_way_ == 0 ? "" : "a step is under way";
  for (const auto& [name, number] : admit_until) {
    auto found = workers_.find(name);
    if (found == workers_.end()) continue;
    const Worker& worker = found->second;
    if (!worker.here || worker.fenced || worker.queued > number || worker.pushes.sequence >= number) continue;
    return name + " is at push " + std::to_string(worker.pushes.sequence) + " of " + std::to_string(number);
  }
  return under_way_ == 0 ? "" : "a push is under way";
}

void Admission::cut(const Sequences& admit_until, Seconds timeout, const Freeze& freeze) {
  Lock lock(mutex_);
  if (!gated()) throw TransientError("no cut: the gate is open");
  admit_until_ = admit_until;
  changed_.notify_all();
  auto deadline = std::min(after(timeout), opens_at_);
  std::string still;
  while (!(still = missing(admit_until)).empty() && closed_ && !stopped_) {
    if (changed_.wait_until(lock, deadline) == std::cv_status::timeout) break;
  }
  if (stopped_) throw TransientError("the server is shutting down");
  if (!gated()) throw TransientError("no cut: the gate opened before all pushes were in" + (still.empty() ? "" : ": " + still));
  if (!missing(admit_until).empty()) throw TransientError("no cut: " + missing(admit_until));
  std::map<std::string, Pushes> all;
  for (const auto& [name, worker] : workers_) {
    if (worker.pushes.any) all[name] = worker.pushes;
  }
  freeze(version_, step_base_, all);
}

void Admission::stop() {
  Lock lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

int64_t Admission::version() const {
  Lock lock(mutex_);
  return version_;
}

int64_t Admission::step_base() const {
  Lock lock(mutex_);
  return step_base_;
}

}  // namespace elasticdl::ps
