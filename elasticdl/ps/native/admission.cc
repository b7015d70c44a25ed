#include "elasticdl/ps/native/admission.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "elasticdl/rpc/native/errors.h"

namespace elasticdl::ps {
namespace {

std::chrono::steady_clock::time_point after(Admission::Seconds wait) {
  using Clock = std::chrono::steady_clock;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
}

}  // namespace

// Not there yet: it is added, in kept memory first.
Admission::Worker& Admission::worker(const std::string& name) {
  const auto found = workers_.find(name);
  if (found != workers_.end()) return found->second;
  Worker added;
  if (keeping_) added.number = kept_->add_worker(name, added.state);
  return workers_.emplace(name, added).first->second;
}

void Admission::keep(const Worker& worker) {
  if (keeping_) kept_->worker(worker.number).keep(worker.state);
}

void Admission::keep_version() {
  if (keeping_) kept_->keep_version(version_);
}

void Admission::start(int64_t version, int64_t step_base) {
  Lock lock(mutex_);
  version_ = begun_ = version;
  step_base_ = step_base;
  if (kept_ == nullptr) return;
  for (auto& [name, worker] : workers_) worker.number = kept_->add_worker(name, worker.state);
  keeping_ = true;
}

void Admission::restore(const std::string& name, const Pushes& pushes) {
  Lock lock(mutex_);
  Worker& worker = this->worker(name);
  worker.state.pushes = pushes;
  worker.covered = pushes.sequence;
  keep(worker);
}

void Admission::take_on() {
  Lock lock(mutex_);
  keeping_ = true;
  version_ = begun_ = kept_->version();
  step_base_ = kept_->step_base();
  for (uint64_t number = 0; number < kept_->workers(); ++number) {
    const KeptWorker& kept = kept_->worker(number);
    Worker worker;
    worker.state = kept.state();
    worker.number = number;
    worker.here = worker.state.pushes.session != 0;
    workers_.emplace(kept_name(number), worker);
  }
}

void Admission::forget() {
  Lock lock(mutex_);
  keeping_ = false;
  workers_.clear();
  version_ = begun_ = step_base_ = 0;
}

void Admission::refuse_fenced(const std::string& name, const Worker& worker) const {
  if (worker.state.fenced) throw Refused(name + " was fenced: its shards went to other workers");
}

void Admission::check(const std::string& worker) const {
  Lock lock(mutex_);
  auto found = workers_.find(worker);
  if (found != workers_.end()) refuse_fenced(worker, found->second);
}

std::optional<int64_t> Admission::greet(const std::string& name, uint64_t session, int64_t gone, Waiter& waiter) {
  Lock lock(mutex_);
  Worker& worker = this->worker(name);
  WorkerState& state = worker.state;
  refuse_fenced(name, worker);
  if (session == 0) return 0;
  if (std::find(std::begin(state.retired), std::end(state.retired), session) != std::end(state.retired)) {
    throw Refused(name + " has connected anew since: its earlier connections are void");
  }
  // One thread at a time may change a worker's count.
  if (worker.busy) {
    worker.waiters.add(waiter);
    return std::nullopt;
  }
  if (state.pushes.session != session) {
    if (state.pushes.session != 0) state.retired[state.next_retired++ % WorkerState::kRetired] = state.pushes.session;
    state.pushes.session = session;
    state.pushes.sequence = 0;
    worker.covered = 0;
    keep(worker);
  }
  worker.here = true;
  worker.gone = gone;
  changed_.notify_all();
  return state.pushes.sequence;
}

void Admission::cover(const std::map<std::string, Pushes>& all) {
  Lock lock(mutex_);
  for (const auto& [name, pushes] : all) {
    const auto found = workers_.find(name);
    if (found == workers_.end() || found->second.state.pushes.session != pushes.session) continue;
    found->second.covered = std::max(found->second.covered, pushes.sequence);
  }
}

int64_t Admission::covered(const std::string& name) const {
  Lock lock(mutex_);
  const auto found = workers_.find(name);
  return found == workers_.end() ? 0 : found->second.covered;
}

// The gate opens by timeout: a caller after the deadline finds it open.
bool Admission::gated() {
  if (closed_ && Clock::now() >= opens_at_) {
    closed_ = false;
    changed_.notify_all();
    kept_out_.wake();
  }
  return closed_;
}

bool Admission::kept_out(const std::string& name, int64_t sequence) {
  if (!gated()) return false;
  auto found = admit_until_.find(name);
  return found == admit_until_.end() || sequence > found->second;
}

std::optional<Outcome> Admission::admit(const std::string& name, const PushStamp& stamp, Waiter& waiter, Redo* redo, uint64_t bytes) {
  Lock lock(mutex_);
  Worker& worker = this->worker(name);
  if (stopped_) throw TransientError("the server is shutting down");
  refuse_fenced(name, worker);
  if (stamp.session != worker.state.pushes.session) throw Refused(name + " has connected anew since: this push came too late");
  if (worker.busy) {
    worker.waiters.add(waiter);
    return std::nullopt;
  }
  if (stamp.sequence <= worker.state.pushes.sequence) {
    Outcome outcome = worker.state.last;
    outcome.repeated = true;
    outcome.version = std::max(outcome.version, version_);
    return outcome;
  }
  if (kept_out(name, stamp.sequence)) {
    if (stamp.sequence > worker.queued) {
      worker.queued = stamp.sequence;
      changed_.notify_all();  // a cut may wait for a push that, as this one shows, will never come
    }
    kept_out_.add(waiter);
    return std::nullopt;
  }
  worker.queued = 0;
  worker.busy = true;
  ++under_way_;
  Outcome outcome;
  outcome.staleness = staleness(worker, stamp.version);
  outcome.step = ++begun_ - step_base_;
  if (redo != nullptr) redo->begin(worker.number, stamp, outcome.step, bytes);
  return outcome;
}

int64_t Admission::staleness(const Worker& worker, int64_t told) const {
  const int64_t pulled = std::clamp<int64_t>(told, 0, version_);  // a client may send any number
  int64_t since = version_ - pulled;
  for (int64_t own : worker.state.own) since -= own > pulled ? 1 : 0;
  return std::max<int64_t>(since, 0);
}

void Admission::count(Worker& worker, const PushStamp& stamp, Outcome& outcome) {
  WorkerState& state = worker.state;
  outcome.version = version_;
  state.pushes = {stamp.session, stamp.sequence, stamp.applied, true};
  state.last = outcome;
  state.own[state.next_own++ % WorkerState::kOwn] = version_;
  keep_version();
  keep(worker);
}

void Admission::finish(const std::string& name, const PushStamp& stamp, Outcome& outcome, Redo* redo) {
  Lock lock(mutex_);
  Worker& worker = this->worker(name);
  worker.busy = false;
  --under_way_;
  ++version_;
  if (redo != nullptr) redo->end(version_);
  count(worker, stamp, outcome);
  // Here, so that no later push of this worker is counted before: the next process would count this one after it.
  if (redo != nullptr) redo->free();
  changed_.notify_all();
  worker.waiters.wake();
}

void Admission::finish_left(Redo& redo) {
  Lock lock(mutex_);
  if (redo.head().state == RedoHead::ENDING) version_ = redo.head().version;
  else redo.end(++version_);
  begun_ = version_;
  if (redo.head().number != 0) return count_step(left_pushes(redo));
  Outcome outcome;
  outcome.step = redo.head().step;
  count(worker(kept_name(redo.head().worker)), redo.head().stamp, outcome);
  redo.free();
}

std::string Admission::kept_name(uint64_t number) const {
  const char* name = kept_->worker(number).name;
  return std::string(name, strnlen(name, KeptWorker::kMostName));
}

std::vector<CountedPush> Admission::left_pushes(const Redo& redo) const {
  std::vector<CountedPush> pushes;
  for (const StepPush* one = redo.pushes(); one < redo.pushes() + redo.head().pushes; ++one) pushes.push_back({kept_name(one->worker), one->stamp, one->examples});
  return pushes;
}

bool Admission::check_push(const std::string& name, const PushStamp& stamp) const {
  Lock lock(mutex_);
  if (stopped_) throw TransientError("the server is shutting down");
  auto found = workers_.find(name);
  if (found == workers_.end()) throw Refused(name + " has not greeted this server");
  refuse_fenced(name, found->second);
  const Pushes& pushes = found->second.state.pushes;
  if (stamp.session != pushes.session) throw Refused(name + " has connected anew since: this push came too late");
  return stamp.sequence > pushes.sequence;
}

uint64_t Admission::kept_number(const std::string& name) const {
  Lock lock(mutex_);
  return workers_.at(name).number;
}

int64_t Admission::begin_step() {
  Lock lock(mutex_);
  while (gated() && !stopped_) changed_.wait_until(lock, opens_at_);
  if (stopped_) throw TransientError("the server is shutting down");
  ++under_way_;
  return ++begun_ - step_base_;
}

int64_t Admission::finish_step(const std::vector<CountedPush>& pushes, Redo* redo) {
  Lock lock(mutex_);
  --under_way_;
  ++version_;
  if (redo != nullptr) redo->end(version_);
  count_step(pushes);
  changed_.notify_all();
  return version_;
}

void Admission::count_step(const std::vector<CountedPush>& pushes) {
  keep_version();
  for (const auto& [name, stamp, examples] : pushes) {
    Worker& worker = this->worker(name);
    Pushes& counted = worker.state.pushes;
    // A worker may have several pushes in a step, in any order.
    if (stamp.session != counted.session || stamp.sequence <= counted.sequence) continue;
    counted = {stamp.session, stamp.sequence, stamp.applied, true};
    keep(worker);
  }
}

Pushes Admission::fence(const std::string& name) {
  Lock lock(mutex_);
  Worker& worker = this->worker(name);
  worker.state.fenced = true;
  keep(worker);
  wake_all();
  changed_.wait(lock, [&] { return !worker.busy || stopped_; });
  return worker.state.pushes;
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
    if (worker.state.pushes.any) sequences[name] = worker.state.pushes.sequence;
  }
  return sequences;
}

void Admission::open() {
  Lock lock(mutex_);
  closed_ = false;
  admit_until_.clear();
  wake_all();
}

void Admission::open_in_time() {
  Lock lock(mutex_);
  gated();
}

void Admission::wake_all() {
  changed_.notify_all();
  kept_out_.wake();
}

// Fenced workers, and workers that never connected to this process, push nothing more. A worker whose next push waits
// here already, or which has said so, has skipped the missing ones: this server was away when they were made.
std::string Admission::missing(const Sequences& admit_until) const {
  // The master takes no cut between the servers of a step.
  if (steps_) return under_way_ == 0 ? "" : "a step is under way";
  for (const auto& [name, number] : admit_until) {
    auto found = workers_.find(name);
    if (found == workers_.end()) continue;
    const Worker& worker = found->second;
    const WorkerState& state = worker.state;
    if (!worker.here || state.fenced || worker.queued > number || std::max(worker.gone, state.pushes.sequence) >= number) continue;
    return name + " is at push " + std::to_string(state.pushes.sequence) + " of " + std::to_string(number);
  }
  return under_way_ == 0 ? "" : "a push is under way";
}

void Admission::cut(const Sequences& admit_until, Seconds timeout, const Freeze& freeze) {
  Lock lock(mutex_);
  if (!gated()) throw TransientError("no cut: the gate is open");
  admit_until_ = admit_until;
  wake_all();
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
    if (worker.state.pushes.any) all[name] = worker.state.pushes;
  }
  freeze(version_, step_base_, all);
}

void Admission::stop() {
  Lock lock(mutex_);
  stopped_ = true;
  wake_all();
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
