#include "elasticdl/ps/native/views.h"

#include "elasticdl/rpc/native/errors.h"

namespace elasticdl::ps {

View::View(std::shared_ptr<Model> model, int slot, std::function<void(int)> release)
    : model_(std::move(model)), dense_(model_->freeze_dense()), slot_(slot), release_(std::move(release)) {
  for (size_t t = 0; t < model_->tables(); ++t) model_->table(t).begin_view(slot_);
}

View::~View() {
  for (size_t t = 0; t < model_->tables(); ++t) model_->table(t).end_view(slot_);
  release_(slot_);
}

bool View::is_large() const {
  size_t copied = 0, all = 0;
  for (size_t t = 0; t < model_->tables(); ++t) {
    const Table& table = model_->table(t);
    copied += table.copied_rows(slot_) * table.row_bytes();
    all += table.view_rows(slot_) * table.row_bytes();
  }
  return 2 * copied > all;
}

std::shared_ptr<View> Views::freeze(const std::shared_ptr<Model>& model) {
  int slot = 0;
  {
    std::lock_guard<std::mutex> lock(slots_->mutex);
    while (slot < Table::kViews && slots_->taken[slot]) ++slot;
    if (slot == Table::kViews) {
      throw TransientError(std::to_string(Table::kViews) + " frozen views are alive already: one must be dropped first");
    }
    slots_->taken[slot] = true;
  }
  return std::make_shared<View>(model, slot, [slots = slots_](int freed) {
    std::lock_guard<std::mutex> lock(slots->mutex);
    slots->taken[freed] = false;
  });
}

void Views::publish(int64_t snapshot, std::shared_ptr<View> view) {
  std::lock_guard<std::mutex> lock(mutex_);
  views_[snapshot] = std::move(view);
}

std::shared_ptr<View> Views::find(int64_t snapshot) const {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = views_.find(snapshot);
  return found == views_.end() ? nullptr : found->second;
}

std::shared_ptr<View> Views::get(int64_t snapshot) const {
  auto view = find(snapshot);
  if (view == nullptr) throw Gone("there is no snapshot " + std::to_string(snapshot) + " here: it was dropped or lost");
  return view;
}

void Views::drop(int64_t snapshot) {
  std::shared_ptr<View> last;  // declared first, so destroyed after the lock is released
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = views_.find(snapshot);
  if (found == views_.end()) return;
  last = std::move(found->second);
  views_.erase(found);
  // Nobody can end the pauses of its writer from now on.
  last->haste.hurry();
}

}  // namespace elasticdl::ps
