// One parameter server: the model, who may change it, frozen views of it, and the bulk plane that serves it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "elasticdl/ps/native/admission.h"
#include "elasticdl/ps/native/model.h"
#include "elasticdl/ps/native/statistics.h"
#include "elasticdl/ps/native/views.h"

namespace elasticdl::ps {

struct Facts {
  uint32_t server = 0;
  uint32_t servers = 1;
  std::string token;
  uint64_t instance = 0;  // random
};

class Server {
 public:
  explicit Server(Facts facts) : facts_(std::move(facts)) {}

  const Facts& facts() const { return facts_; }
  Admission& admission() { return admission_; }
  Statistics& statistics() { return statistics_; }
  Views& views() { return views_; }

  // nullptr before the server was given parameters. Once given, they stay.
  std::shared_ptr<Model> model() const { return std::atomic_load(&model_); }
  // False if there were parameters already.
  bool give(std::shared_ptr<Model> model, int64_t version, int64_t step_base);

  // Behind the closed gate; the same snapshot again is answered as before.
  std::shared_ptr<View> cut(int64_t snapshot, const Sequences& admit_until, Admission::Seconds timeout);
  // A view of now, known to nobody else: rows of a table are read from it.
  std::shared_ptr<View> look();

 private:
  const Facts facts_;
  std::mutex mutex_;
  std::shared_ptr<Model> model_;
  Admission admission_;
  Views views_;
  Statistics statistics_;
};

}  // namespace elasticdl::ps
