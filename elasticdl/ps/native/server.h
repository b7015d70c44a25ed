// One parameter server: the model, admission of pushes, frozen views, and the bulk plane that serves them.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
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
};

class Server {
 public:
  explicit Server(ServerConfig config) : config_(std::move(config)), admission_(config_.turns > 0) {}

  const ServerConfig& config() const { return config_; }
  Admission& admission() { return admission_; }
  Steps& steps() { return steps_; }
  Statistics& statistics() { return statistics_; }
  Views& views() { return views_; }

  // nullptr until the server gets parameters, which it gets once.
  std::shared_ptr<Model> model() const { return std::atomic_load(&model_); }
  // False if the server had parameters already.
  bool give(std::shared_ptr<Model> model, int64_t version, int64_t step_base);

  // One update of synchronous training: see Steps::apply.
  int64_t apply_step(int64_t number, const std::vector<Contribution>& contributions);
  // With the gate closed. Idempotent: repeating a snapshot number returns the earlier result.
  std::shared_ptr<View> cut(int64_t snapshot, const Sequences& admit_until, Admission::Seconds timeout);
  // A private view of the present state: rows of a table are read from it.
  std::shared_ptr<View> look();

 private:
  const ServerConfig config_;
  std::mutex mutex_;
  std::shared_ptr<Model> model_;
  Admission admission_;
  Steps steps_{admission_, config_.turns};
  Views views_;
  Statistics statistics_;
};

}  // namespace elasticdl::ps
