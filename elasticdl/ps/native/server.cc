#include "elasticdl/ps/native/server.h"

#include "elasticdl/rpc/native/errors.h"

namespace elasticdl::ps {

bool Server::give(std::shared_ptr<Model> model, int64_t version, int64_t step_base) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (this->model() != nullptr) return false;
  admission_.start(version, step_base);
  std::atomic_store(&model_, std::move(model));
  return true;
}

std::shared_ptr<View> Server::cut(int64_t snapshot, const Sequences& admit_until, Admission::Seconds timeout) {
  if (auto made = views_.find(snapshot)) return made;
  auto model = this->model();
  if (model == nullptr) throw TransientError("no cut: this server has no parameters yet");
  std::shared_ptr<View> view;
  admission_.cut(admit_until, timeout, [&](int64_t version, int64_t step_base, const std::map<std::string, Pushes>& pushes) {
    view = views_.freeze(model);
    view->version = version;
    view->step_base = step_base;
    view->pushes = pushes;
  });
  views_.publish(snapshot, view);
  return view;
}

int64_t Server::apply_step(int64_t number, const std::vector<Contribution>& contributions) {
  auto model = this->model();
  if (model == nullptr) throw TransientError("no step: this server has no parameters yet");
  return steps_.apply(*model, number, contributions);
}

std::shared_ptr<View> Server::look() {
  auto model = this->model();
  if (model == nullptr) throw TransientError("this server has no parameters yet");
  auto view = views_.freeze(model);
  view->version = admission_.version();
  view->step_base = admission_.step_base();
  return view;
}

}  // namespace elasticdl::ps
