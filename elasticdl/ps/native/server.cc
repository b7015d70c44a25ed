#include "elasticdl/ps/native/server.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "elasticdl/rpc/native/errors.h"

namespace elasticdl::ps {
namespace {

constexpr double kPatienceS = 10.0;  // for the process before to be gone; its end takes as long as to free its memory

std::unique_ptr<KeptState> kept_state(const ServerConfig& config) {
  if (config.memory.empty()) return nullptr;
  return std::make_unique<KeptState>(config.memory, kPatienceS, Identity{config.run, config.server, config.servers, config.turns > 0});
}

// A push that fails half-way leaves inconsistent parameters, so the process ends: the job starts another one, from what was
// kept or from a checkpoint.
class OrDie {
 public:
  ~OrDie() {
    if (succeeded) return;
    std::fputs("ps: cannot complete a push (out of memory, or a table above 2^31 rows); exiting\n", stderr);
    std::abort();
  }
  bool succeeded = false;
};

}  // namespace

Server::Server(ServerConfig config)
    : config_(std::move(config)), kept_(kept_state(config_)), admission_(config_.turns > 0, kept_.get()),
      steps_(admission_, config_.turns, kept_.get()) {}

bool Server::take_on() {
  if (kept_ == nullptr || !kept_->used()) return false;
  try {
    kept_->take_on();
    auto model = std::make_shared<Model>(kept_->spec(), config_.server, config_.servers, kept_.get());
    model->repair([&](uint64_t serial, uint64_t item) { return kept_->torn(serial, item); });
    complete(model);
    kept_->settle();
    replays_ = kept_->replays();
    std::atomic_store(&model_, std::move(model));
    return true;
  } catch (const std::bad_alloc&) {
    discarded_ = "there is not enough memory to complete its updates";
  } catch (const std::exception& error) {
    discarded_ = error.what();
  }
  steps_.forget();
  admission_.forget();
  kept_->reset(true);
  return false;
}

// First what had begun to be counted, then what had begun, in its order.
void Server::complete(const std::shared_ptr<Model>& model) {
  admission_.take_on();
  model->advance(admission_.version() - admission_.step_base());
  steps_.take_on();
  std::vector<Redo> left = kept_->left_redos();
  std::stable_partition(left.begin(), left.end(), [](const Redo& redo) { return redo.head().state != RedoHead::BEGUN; });
  for (Redo& redo : left) {
    if (redo.head().state == RedoHead::STAGED) steps_.take_on_staged(*model, std::move(redo));
  }
  for (Redo& redo : left) {
    if (!redo) continue;
    if (redo.head().number != 0) {
      steps_.take_on_step(*model, std::move(redo));
      continue;
    }
    if (redo.head().state == RedoHead::BEGUN) {
      const Update update = Update::read(redo.data(), redo.head().bytes, *model);
      model->apply(update, {update.head.learning_rate, redo.head().step}, &redo);
    }
    admission_.finish_left(redo);
  }
}

std::shared_ptr<Model> Server::new_model(const Spec& spec) {
  if (kept_ != nullptr) {
    kept_->reset(false);
    kept_->begin_model(spec);
  }
  return std::make_shared<Model>(spec, config_.server, config_.servers, kept_.get());
}

void Server::give(std::shared_ptr<Model> model, int64_t version, int64_t step_base, bool replays) {
  admission_.start(version, step_base);
  model->begin_at(version - step_base);
  replays_ = replays;
  if (kept_ != nullptr) kept_->complete_model(version, step_base, replays);
  std::atomic_store(&model_, std::move(model));
}

bool Server::initialise(Spec spec, const void* dense, uint64_t count, int64_t version) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (model() != nullptr) return false;
  if (kept_ != nullptr) {
    kept_->reset(false);  // of a try that failed
    kept_->begin_model(spec);
  }
  give(std::make_shared<Model>(std::move(spec), config_.server, config_.servers, dense, count, kept_.get()), version, version, false);
  return true;
}

std::optional<Outcome> Server::push(const std::string& worker, const PushStamp& stamp, const Update& update, size_t bytes, Redo* redo,
                                    Waiter& waiter, std::chrono::steady_clock::time_point& admitted) {
  std::optional<Outcome> outcome = admission_.admit(worker, stamp, waiter, redo, bytes);
  if (!outcome || outcome->repeated) return outcome;
  admitted = std::chrono::steady_clock::now();
  OrDie applying;
  model()->apply(update, {update.head.learning_rate, outcome->step}, redo);
  applying.succeeded = true;
  admission_.finish(worker, stamp, *outcome, redo);
  return outcome;
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

void Server::saved(int64_t snapshot) {
  const auto view = views_.find(snapshot);
  if (view == nullptr) return;
  for (size_t t = 0; t < view->model().tables(); ++t) model()->table(t).set_base(view->slot(), snapshot);
  admission_.cover(view->pushes);
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
