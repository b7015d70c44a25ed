// Admits pushes: each once, none of a fenced worker, and at a checkpoint's gate only those that belong to the cut.
//
// Every push is one atomic unit here: it is admitted, applied by one thread, and then counted. A cut sees no push half
// applied. A push that is kept out holds no thread: its connection is woken to try again. With kept memory all but the gate
// survives the process, and so does a push that was admitted.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "elasticdl/ps/native/kept_state.h"
#include "elasticdl/ps/native/pushes.h"
#include "elasticdl/ps/native/waiter.h"

namespace elasticdl::ps {

using Sequences = std::map<std::string, int64_t>;
// (version, step_base, pushes of every worker)
using Freeze = std::function<void(int64_t, int64_t, const std::map<std::string, Pushes>&)>;

class Admission {
 public:
  using Seconds = std::chrono::duration<double>;

  // `steps`: the master applies whole steps, so that a cut has no push to wait for. `kept` may be null.
  explicit Admission(bool steps = false, KeptState* kept = nullptr) : steps_(steps), kept_(kept) {}

  // The optimizer's step of a push is its version minus `step_base`.
  void start(int64_t version, int64_t step_base);
  // Restores a worker's counts from a checkpoint. Only before the first push.
  void restore(const std::string& worker, const Pushes& pushes);
  // Takes on what the process before has kept, but for updates under way; `forget` drops that again.
  void take_on();
  void forget();

  // A worker's connection; `session` of one that pushes, else 0. No push up to `gone` comes again. Returns the number of the
  // session's last push, or nothing if it has to try again when it is woken. Throws Refused if the worker was fenced.
  std::optional<int64_t> greet(const std::string& worker, uint64_t session, int64_t gone, Waiter& waiter);
  void check(const std::string& worker) const;

  // Nothing if the push has to try again when it is woken: the gate keeps it out, or another push of the worker is being applied.
  // Unless it is repeated, `finish` must follow, in the next process if need be: then `redo` has the push, of `bytes`. Throws
  // Refused or, when the server stops, TransientError.
  std::optional<Outcome> admit(const std::string& worker, const PushStamp& stamp, Waiter& waiter, Redo* redo = nullptr, uint64_t bytes = 0);
  void finish(const std::string& worker, const PushStamp& stamp, Outcome& outcome, Redo* redo = nullptr);
  // Counts an update that the process before had begun, and which is applied now. A step's redo is ending after it.
  void finish_left(Redo& redo);
  // The pushes of a step that the process before had begun.
  std::vector<CountedPush> left_pushes(const Redo& redo) const;
  std::string kept_name(uint64_t number) const;

  // Synchronous training, where pushes wait for their step (steps.h) and only steps change the model. False if the push
  // was applied before. Throws Refused or, when the server stops, TransientError.
  bool check_push(const std::string& worker, const PushStamp& stamp) const;
  // The number of a worker that has greeted in kept memory.
  uint64_t kept_number(const std::string& worker) const;
  // Blocks while the gate is closed; returns the step's number for the optimizer. `finish_step` must follow.
  int64_t begin_step();
  // Counts one update and these pushes as applied. Returns the version. `redo` is ending after it.
  int64_t finish_step(const std::vector<CountedPush>& pushes, Redo* redo = nullptr);

  // These pushes are in a complete checkpoint.
  void cover(const std::map<std::string, Pushes>& pushes);
  // The last push of a worker's session that is in one; 0: none that this process knows.
  int64_t covered(const std::string& worker) const;

  // Refuses the worker from now on; returns its last push.
  Pushes fence(const std::string& worker);

  // Keeps new pushes out until `open` or a timeout; returns when no push is being applied.
  Sequences close(Seconds timeout);
  void open();
  // Opens the gate if its time is over; to be called now and then.
  void open_in_time();
  // With the gate closed: admits pushes up to the given numbers, and calls `freeze` when all are applied.
  // Throws TransientError, which names the workers whose pushes are missing.
  void cut(const Sequences& admit_until, Seconds timeout, const Freeze& freeze);

  // Ends every wait.
  void stop();

  int64_t version() const;
  int64_t step_base() const;

 private:
  using Clock = std::chrono::steady_clock;
  using Lock = std::unique_lock<std::mutex>;

  struct Worker {
    WorkerState state;
    uint64_t number = 0;                 // in kept memory
    int64_t queued = 0;                  // greatest sequence that waits at the gate
    int64_t gone = 0;                    // no push of its session up to this one comes
    int64_t covered = 0;                 // last push of its session in a complete checkpoint
    bool here = false;                   // it has connected with push permission, and will again if this process is not the first
    bool busy = false;                   // one of its pushes is being applied
    Waiters waiters;                     // for that to end
  };

  Worker& worker(const std::string& name);
  void keep(const Worker& worker);
  void keep_version();
  void count(Worker& worker, const PushStamp& stamp, Outcome& outcome);
  void count_step(const std::vector<CountedPush>& pushes);
  bool gated();
  void wake_all();
  bool kept_out(const std::string& name, int64_t sequence);
  void refuse_fenced(const std::string& name, const Worker& worker) const;
  std::string missing(const Sequences& admit_until) const;
  int64_t staleness(const Worker& worker, int64_t told) const;

  const bool steps_;
  KeptState* const kept_;
  bool keeping_ = false;  // workers are in kept memory, too: once there is a model
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Worker> workers_;
  int64_t version_ = 0;
  int64_t begun_ = 0;  // pushes that were admitted; >= version_
  int64_t step_base_ = 0;
  int under_way_ = 0;
  bool closed_ = false;
  Clock::time_point opens_at_{};
  Sequences admit_until_;
  Waiters kept_out_;
  bool stopped_ = false;
};

}  // namespace elasticdl::ps
