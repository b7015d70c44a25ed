// Frozen states of a model, by snapshot number.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "elasticdl/checkpoint/native/pace.h"
#include "elasticdl/ps/native/admission.h"
#include "elasticdl/ps/native/model.h"

namespace elasticdl::ps {

// One frozen state. It lives until it is dropped and its last reader is done.
class View {
 public:
  View(std::shared_ptr<Model> model, int slot, std::function<void(int)> release);
  ~View();
  View(const View&) = delete;
  View& operator=(const View&) = delete;

  const Model& model() const { return *model_; }
  const Dense& dense() const { return *dense_; }
  int slot() const { return slot_; }  // the view's index in the tables
  // Whether the tables' rows that were written since take half as much memory in it as all rows do.
  bool is_large() const;

  int64_t version = 0;
  int64_t step_base = 0;
  std::map<std::string, Pushes> pushes;
  checkpoint::Haste haste;  // lets whoever waits stop the writers' pauses

 private:
  std::shared_ptr<Model> model_;
  std::shared_ptr<const Dense> dense_;
  const int slot_;
  std::function<void(int)> release_;
};

class Views {
 public:
  // Freezes the model. Throws TransientError if Table::kViews views exist already.
  std::shared_ptr<View> freeze(const std::shared_ptr<Model>& model);
  // Makes the view visible to `find`.
  void publish(int64_t snapshot, std::shared_ptr<View> view);
  // Returns nullptr if there is none.
  std::shared_ptr<View> find(int64_t snapshot) const;
  // Throws Gone if there is none.
  std::shared_ptr<View> get(int64_t snapshot) const;
  // Who writes a view that is removed pauses no longer: the view's slot and copies are held until it is written.
  void drop(int64_t snapshot);

 private:
  // Outlives the container: a view returns its slot when its last reader is done.
  struct Slots {
    std::mutex mutex;
    bool taken[Table::kViews] = {};
  };
  std::shared_ptr<Slots> slots_ = std::make_shared<Slots>();
  mutable std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<View>> views_;
};

}  // namespace elasticdl::ps
