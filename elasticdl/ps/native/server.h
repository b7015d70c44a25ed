// One parameter server: the model, admission of pushes, frozen views, and the bulk plane that serves them.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "elasticdl/ps/native/admission.h"
#include "elasticdl/ps/native/model.h"
#include "elasticdl/ps/native/statistics.h"
#include "elasticdl/ps/native/steps.h"
#include "elasticdl/ps/native/views.h"
#include "elasticdl/rpc/native/tls.h"

namespace elasticdl::ps {

struct ServerConfig {
  uint32_t server = 0;
  uint32_t servers = 1;
  std::string key;  // from which the token of any worker at this server is derived
  uint64_t instance = 0;  // random
  TlsContext tls = nullptr;  // null: clear text
  uint32_t turns = 0;     // of a step of synchronous training (see steps.h); 0: no steps
  std::string memory;     // a file without a disk that outlives the process (see kept_memory.h); empty: private memory
  std::string run;        // of the job: memory of another run is of no use
};

class Server {
 public:
  // Throws TransientError if the process before this one does not end, std::system_error.
  explicit Server(ServerConfig config);

  const ServerConfig& config() const { return config_; }
  Admission& admission() { return admission_; }
  Steps& steps() { return steps_; }
  Statistics& statistics() { return statistics_; }
  Views& views() { return views_; }

  // Null in private memory.
  KeptState* kept() { return kept_.get(); }
  // Takes on what the process before this one has kept, and completes its updates; before anything else. False if there is
  // nothing, or nothing of use: `discarded` says why.
  bool take_on();
  const std::string& discarded() const { return discarded_; }

  // nullptr until the server gets parameters, which it gets once.
  std::shared_ptr<Model> model() const { return std::atomic_load(&model_); }
  // A model to restore, which `give` completes. What an earlier one left is dropped.
  std::shared_ptr<Model> new_model(const Spec& spec);
  // `replays`: it is that of a checkpoint.
  void give(std::shared_ptr<Model> model, int64_t version, int64_t step_base, bool replays);
  // Gives the server its first parameters, unless it has some: false then. Throws UserError if `count` is not the slice's.
  bool initialise(Spec spec, const void* dense, uint64_t count, int64_t version);

  // Applies a push once, now or in the next process. `redo` has it, or is null without kept memory.
  // `admitted` is set once it was. Nothing if it has to try again when it is woken.
  std::optional<Outcome> push(const std::string& worker, const PushStamp& stamp, const Update& update, size_t bytes, Redo* redo,
                              Waiter& waiter, std::chrono::steady_clock::time_point& admitted);
  // One update of synchronous training: see Steps::apply.
  int64_t apply_step(int64_t number, const std::vector<Contribution>& contributions);
  // With the gate closed. Idempotent: repeating a snapshot number returns the earlier result.
  std::shared_ptr<View> cut(int64_t snapshot, const Sequences& admit_until, Admission::Seconds timeout);
  // Whether the parameters began with a checkpoint: pushes that came after it may be made again. Those of a worker's present
  // values, which have them, must not.
  bool replays() const { return replays_; }
  // The view is in a complete checkpoint.
  void saved(int64_t snapshot);
  // A private view of the present state: rows of a table are read from it.
  std::shared_ptr<View> look();

 private:
  void complete(const std::shared_ptr<Model>& model);

  const ServerConfig config_;
  std::unique_ptr<KeptState> kept_;
  std::string discarded_;
  std::mutex mutex_;
  std::shared_ptr<Model> model_;
  std::atomic<bool> replays_{false};
  Admission admission_;
  Steps steps_;
  Views views_;
  Statistics statistics_;
};

}  // namespace elasticdl::ps
