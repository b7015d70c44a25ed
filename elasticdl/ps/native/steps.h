// Synchronous training: keeps the gradients of an open step, and applies the mean of those that the master names, once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "elasticdl/ps/native/admission.h"
#include "elasticdl/ps/native/model.h"
#include "elasticdl/rpc/native/buffer.h"

namespace elasticdl::ps {

// A push that waits for its step. `update` is in what the frame was received into: `buffer`, or `redo` in kept memory.
struct Gradient {
  PushStamp stamp;
  Update update;
  size_t bytes;
  Buffer buffer;
  Redo redo;

  // Nobody needs it any more, not even the next process.
  void drop() {
    if (redo) redo.free();
  }
};

// One gradient of a step, by the number of its push, and the examples that it is the mean of.
struct Contribution {
  std::string worker;
  int64_t sequence = 0;
  double examples = 0;
};

// A step that was applied: the gradients that this server had of it.
struct AppliedStep {
  int64_t number = 0;
  std::vector<Contribution> contributions;
};

class Steps {
 public:
  // `turns`: of one step, at most. `kept` may be null.
  Steps(Admission& admission, uint32_t turns, KeptState* kept)
      : admission_(admission), kept_(kept), turns_(turns), most_(2 * size_t{turns} + 8) {}

  // Takes a push and keeps it until its step. False if it was applied before. Nothing, and nothing taken, if it has to try
  // again when it is woken: a step is being applied. Throws as Admission::check_push.
  std::optional<bool> stage(const std::string& worker, Gradient& gradient, Waiter& waiter);
  // Applies the mean of these gradients as one update, and forgets all others. A repeated number does nothing. A
  // gradient that this server does not have is left out: it was lost with the server's previous process. Returns the version.
  // Throws UserError for more gradients than there are turns, and std::bad_alloc; both before it has changed anything.
  int64_t apply(Model& model, int64_t number, const std::vector<Contribution>& contributions);

  // The newest ones, in their order: a master that takes over asks for them.
  std::vector<AppliedStep> recent() const;

  // Takes on what the process before has kept: its last steps, a push that waits, and a step that it had begun.
  // `forget` drops that again.
  void take_on();
  void forget();
  void take_on_staged(const Model& model, Redo redo);
  void take_on_step(Model& model, Redo redo);

 private:
  struct Share {
    const Gradient* gradient;
    double examples;
  };
  class Applying;
  std::vector<Share> take(const std::vector<Contribution>& contributions, std::vector<CountedPush>& pushes) const;
  void keep(const std::string& worker, Gradient gradient);
  // Ends the process if memory runs out: the next one does this again.
  void end(int64_t number, const std::vector<CountedPush>& pushes, Redo& redo) noexcept;

  Admission& admission_;
  KeptState* const kept_;
  const size_t turns_;
  const size_t most_;        // gradients kept of a worker
  mutable std::mutex mutex_;    // guards all below
  // While a step is applied its thread reads `staged_` without the mutex, and nobody changes it.
  bool applying_ = false;
  std::condition_variable ended_;
  Waiters waiters_;  // for its end
  int64_t applied_ = 0;  // number of the last step
  std::deque<AppliedStep> recent_;
  std::map<std::string, std::map<int64_t, Gradient>> staged_;  // by worker, by sequence
};

}  // namespace elasticdl::ps
