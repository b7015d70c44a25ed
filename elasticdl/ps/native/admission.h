// Admits pushes: each once, none of a fenced worker, and at a checkpoint's gate only those that belong to the cut.
//
// Every push is one atomic unit here: it is admitted, applied by its connection's thread, and then counted. A cut sees
// no push half applied.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace elasticdl::ps {

struct Applied {
  int64_t shard = 0;
  int64_t attempt = 0;
  int64_t offset = 0;
};

// The progress of a worker's pushes.
struct Pushes {
  uint64_t session = 0;   // of the client object that numbers the pushes
  int64_t sequence = 0;   // of the last applied one; 0: none yet
  Applied applied;
  bool any = false;       // `applied` is set
};

struct PushStamp {
  uint64_t session;
  int64_t sequence;
  Applied applied;
  int64_t version;        // of the pull that it was computed on
};

struct Outcome {
  bool repeated = false;  // was applied before: nothing to do
  int64_t version = 0;    // after it
  int64_t staleness = 0;  // updates of others between pull and push
  int64_t step = 0;       // number of this update, for the optimizer
};

using Sequences = std::map<std::string, int64_t>;
// (version, step_base, pushes of every worker)
using Freeze = std::function<void(int64_t, int64_t, const std::map<std::string, Pushes>&)>;

class Admission {
 public:
  using Seconds = std::chrono::duration<double>;

  // `steps`: the master applies whole steps, so that a cut has no push to wait for.
  explicit Admission(bool steps = false) : steps_(steps) {}

  // The optimizer's step of a push is its version minus `step_base`.
  void start(int64_t version, int64_t step_base);
  // Restores a worker's counts from a checkpoint. Only before the first push.
  void restore(const std::string& worker, const Pushes& pushes);

  // A worker's connection; `session` of one that pushes, else 0. Throws Refused if the worker was fenced.
  void greet(const std::string& worker, uint64_t session);
  void check(const std::string& worker) const;

  // Blocks while the gate keeps the push out. Unless it is repeated, `finish` must follow. Throws Refused or, when the
  // server stops, TransientError.
  Outcome admit(const std::string& worker, const PushStamp& stamp);
  void finish(const std::string& worker, const PushStamp& stamp, Outcome& outcome);

  // Synchronous training, where pushes wait for their step (steps.h) and only steps change the model. False if the push
  // was applied before. Throws Refused or, when the server stops, TransientError.
  bool check_push(const std::string& worker, const PushStamp& stamp) const;
  // Blocks while the gate is closed; returns the step's number for the optimizer. `finish_step` must follow.
  int64_t begin_step();
  // Counts one update and these pushes as applied. Returns the version.
  int64_t finish_step(const std::vector<std::pair<std::string, PushStamp>>& pushes);

  // Refuses the worker from now on; returns its last push.
  Pushes fence(const std::string& worker);

  // Keeps new pushes out until `open` or a timeout; returns when no push is being applied.
  Sequences close(Seconds timeout);
  void open();
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
    Pushes pushes;
    std::set<uint64_t> retired;          // sessions that a newer one replaced
    std::deque<int64_t> own;             // versions after its newest pushes, to exclude its own updates from staleness
    Outcome last;
    int64_t queued = 0;                  // greatest sequence that waits at the gate
    bool here = false;                   // it has connected to this process with push permission
    bool fenced = false;
    bool busy = false;                   // one of its pushes is being applied
  };

  bool gated();
  bool kept_out(const std::string& name, int64_t sequence);
  void refuse_fenced(const std::string& name, const Worker& worker) const;
  std::string missing(const Sequences& admit_until) const;
  int64_t staleness(const Worker& worker, int64_t told) const;

  const bool steps_;
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
  bool stopped_ = false;
};

}  // namespace elasticdl::ps
