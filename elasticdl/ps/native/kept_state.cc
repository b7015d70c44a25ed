#include "elasticdl/ps/native/kept_state.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "elasticdl/data/native/crc32c.h"
#include "elasticdl/rpc/native/errors.h"

namespace elasticdl::ps {
namespace {

constexpr uint32_t kFormat = 6;  // of all structures in kept memory
constexpr uint64_t kMostTrials = 8;
constexpr size_t kAtOnce = 64;  // heads or workers in a region
constexpr size_t kMostSpare = size_t{256} << 20;  // one payload is kept whatever its size

// Not 0, which stands for no memory.
uint64_t random_id() {
  uint64_t id = 0;
  const Digest random = random_digest();
  std::memcpy(&id, random.data(), sizeof id);
  return id | 1;
}

static_assert(std::is_trivially_copyable_v<WorkerState> && std::is_trivially_copyable_v<RedoHead> && std::is_trivially_copyable_v<StepPush>);

}  // namespace

void KeptWorker::keep(const WorkerState& state) {
  const uint32_t other = 1 - (which & 1);
  states[other] = state;
  in_order();
  which = other;
  in_order();
}

Redo::~Redo() {
  if (head_ != nullptr) state_->give_back(head_, std::move(payload_));
}

char* Redo::room(size_t bytes) {
  if (bytes > payload_.bytes()) {
    state_->spare(std::move(payload_));
    payload_ = Region();
    payload_ = state_->payload(bytes);
  }
  return payload_.address();
}

void Redo::trim(size_t bytes) {
  if (payload_.bytes() <= bytes) return;
  state_->spare(std::move(payload_));
  payload_ = Region();
}

void Redo::stage(uint64_t worker, const PushStamp& stamp, uint64_t bytes) {
  *head_ = {RedoHead::FREE, state_->next_serial(), 0, payload_.offset(), bytes, worker, stamp, 0, 0, 0, 0};
  in_order();
  head_->state = RedoHead::STAGED;
  in_order();
}

void Redo::begin(uint64_t worker, const PushStamp& stamp, int64_t step, uint64_t bytes) {
  *head_ = {RedoHead::FREE, state_->next_serial(), 0, payload_.offset(), bytes, worker, stamp, step, 0, 0, 0};
  in_order();
  head_->state = RedoHead::BEGUN;
  in_order();
}

void Redo::begin_step(int64_t number, int64_t step, uint64_t bytes, uint64_t pushes) {
  *head_ = {RedoHead::FREE, state_->next_serial(), 0, payload_.offset(), bytes, 0, {}, step, number, pushes, 0};
  in_order();
  head_->state = RedoHead::BEGUN;
  in_order();
}

void Redo::end(int64_t version) {
  head_->version = version;
  in_order();
  head_->state = RedoHead::ENDING;
  in_order();
}

void Redo::free() {
  in_order();
  head_->state = RedoHead::FREE;
  in_order();
}

KeptState::KeptState(const std::string& path, double patience_s, Identity identity) : identity_(std::move(identity)), id_(random_id()), memory_(path, patience_s) {
  static_assert(sizeof(Root) <= KeptMemory::kRootBytes);
  if (!memory_.used()) begin();
}

void KeptState::begin() {
  Root& root = this->root();
  root.run = sha256(identity_.run);
  root.id = id_;
  root.server = identity_.server;
  root.servers = identity_.servers;
  root.steps = identity_.steps;
  in_order();
  root.format = kFormat;
}

void KeptState::take_on() {
  memory_.take_on();
  Root& root = this->root();
  if (root.format != kFormat) throw Corrupted("it is of another version of ElasticDL");
  if (root.run != sha256(identity_.run)) throw Corrupted("it is of another run");
  if (root.server != identity_.server || root.servers != identity_.servers || root.steps != static_cast<uint32_t>(identity_.steps)) {
    throw Corrupted("it is of server " + std::to_string(root.server) + " of " + std::to_string(root.servers) + ", or of another way to train");
  }
  if (root.complete == 0) throw Corrupted("the process before this one had no complete model yet");
  if (root.trials >= kMostTrials) throw Corrupted(std::to_string(kMostTrials) + " processes ended while they took it on");
  ++root.trials;
  id_ = root.id;
  std::lock_guard<std::mutex> lock(mutex_);
  worker_pages_ = memory_.held(Use::WORKERS, 0);
  redo_pages_ = memory_.held(Use::REDO, 0);
  std::vector<Region> spec = memory_.held(Use::SPEC, 0);
  if (root.workers > worker_pages_.size() * kAtOnce || spec.size() != 1 || spec.front().bytes() < root.spec_bytes) throw Corrupted("it lacks a part");
  spec_ = std::move(spec.front());
}

void KeptState::settle() {
  root().trials = 0;
  memory_.sweep();
}

void KeptState::reset(bool of_another) {
  if (of_another) id_ = random_id();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    worker_pages_.clear();
    redo_pages_.clear();
    free_.clear();
    spare_.clear();
    spare_bytes_ = 0;
    spec_ = Region();
    steps_ = Region();
    step_bytes_ = 0;
  }
  memory_.reset();
  begin();
}

void KeptState::begin_model(const Spec& spec) {
  const std::string bytes = spec.encode();
  spec_ = backed(memory_.take({Use::SPEC, 0, 0}, bytes.size(), false), bytes.size());
  std::memcpy(spec_.address(), bytes.data(), bytes.size());
  root().spec_bytes = bytes.size();
  root().spec_crc = data::crc32c(bytes.data(), bytes.size());
}

Spec KeptState::spec() const {
  const Root& root = this->root();
  if (data::crc32c(spec_.address(), root.spec_bytes) != root.spec_crc) throw Corrupted("its model is damaged");
  return Spec::decode(spec_.address(), root.spec_bytes);
}

void KeptState::complete_model(int64_t version, int64_t step_base, bool replays) {
  root().replays = replays;
  root().version = version;
  root().step_base = step_base;
  in_order();
  root().complete = 1;
  in_order();
}

bool KeptState::complete() const { return root().complete != 0; }

void KeptState::keep_dense(uint64_t offset) {
  in_order();
  root().dense = offset;
  in_order();
}

KeptStep& KeptState::step_at(int64_t number) const {
  return *reinterpret_cast<KeptStep*>(steps_.address() + static_cast<size_t>(number) % kSteps * step_bytes_);
}

void KeptState::prepare_steps(size_t most) {
  if (step_bytes_ != 0) return;
  const size_t bytes = sizeof(KeptStep) + most * sizeof(KeptStep::Push);
  steps_ = backed(memory_.take({Use::STEPS, 0, 0}, kSteps * bytes, false), kSteps * bytes);
  step_bytes_ = bytes;
}

void KeptState::keep_step(int64_t number, const std::vector<KeptStep::Push>& pushes) {
  KeptStep& step = step_at(number);
  step.number = 0;
  in_order();
  step.count = pushes.size();
  std::copy(pushes.begin(), pushes.end(), step.pushes());
  in_order();
  step.number = number;
  in_order();
  root().step = number;
  in_order();
}

std::vector<std::pair<int64_t, std::vector<KeptStep::Push>>> KeptState::steps(size_t most) {
  std::vector<std::pair<int64_t, std::vector<KeptStep::Push>>> found;
  std::vector<Region> rings = memory_.held(Use::STEPS, 0);
  if (rings.empty()) return found;
  step_bytes_ = sizeof(KeptStep) + most * sizeof(KeptStep::Push);
  steps_ = std::move(rings.front());
  if (steps_.bytes() < kSteps * step_bytes_) throw Corrupted("its steps are of another size");
  for (int64_t number = std::max<int64_t>(step() - static_cast<int64_t>(kSteps), 0) + 1; number <= step(); ++number) {
    KeptStep& kept = step_at(number);
    if (kept.number != number) continue;
    if (kept.count > most) throw Corrupted("a step in it is damaged");
    found.emplace_back(number, std::vector<KeptStep::Push>(kept.pushes(), kept.pushes() + kept.count));
  }
  return found;
}

uint64_t KeptState::add_worker(const std::string& name, const WorkerState& state) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t number = root().workers;
  if (number / kAtOnce == worker_pages_.size()) {
    worker_pages_.push_back(memory_.take({Use::WORKERS, 0, worker_pages_.size()}, kAtOnce * sizeof(KeptWorker), false));
  }
  const size_t at = number % kAtOnce * sizeof(KeptWorker);
  worker_pages_[number / kAtOnce].back(at, at + sizeof(KeptWorker));
  auto& worker = *reinterpret_cast<KeptWorker*>(worker_pages_[number / kAtOnce].address() + at);
  worker.which = 0;
  std::memset(worker.name, 0, sizeof worker.name);
  std::memcpy(worker.name, name.data(), std::min(name.size(), KeptWorker::kMostName));
  worker.states[0] = state;
  in_order();
  root().workers = number + 1;
  in_order();
  return number;
}

KeptWorker& KeptState::worker(uint64_t number) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (number >= root().workers) throw Corrupted("it names a worker that is not there");
  return *reinterpret_cast<KeptWorker*>(worker_pages_[number / kAtOnce].address() + number % kAtOnce * sizeof(KeptWorker));
}

uint64_t KeptState::next_serial() {
  std::lock_guard<std::mutex> lock(mutex_);
  return ++serial_;
}

Redo KeptState::take_redo() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) {
    const size_t bytes = kAtOnce * sizeof(RedoHead);
    Region page = backed(memory_.take({Use::REDO, 0, redo_pages_.size()}, bytes, false), bytes);
    for (size_t i = 0; i < kAtOnce; ++i) free_.emplace_back(reinterpret_cast<RedoHead*>(page.address()) + i, Region());
    redo_pages_.push_back(std::move(page));
  }
  auto [head, payload] = std::move(free_.back());
  free_.pop_back();
  return Redo(*this, *head, std::move(payload));
}

std::vector<Redo> KeptState::left_redos() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Redo> left;
  for (const Region& page : redo_pages_) {
    for (size_t i = 0; i < kAtOnce; ++i) {
      RedoHead& head = reinterpret_cast<RedoHead*>(page.address())[i];
      serial_ = std::max(serial_, head.serial);
      if (head.state == RedoHead::FREE) {
        free_.emplace_back(&head, Region());
        continue;
      }
      Region payload = memory_.held_at(head.payload);
      const bool possible = head.state <= RedoHead::ENDING && head.bytes <= wire::kMaxPayload && head.pushes <= wire::kMaxPayload / sizeof(StepPush);
      if (!possible || Redo::bytes_with(head.bytes, head.pushes) > payload.bytes()) throw Corrupted("an update in it is damaged");
      left.push_back(Redo(*this, head, std::move(payload)));
    }
  }
  std::sort(left.begin(), left.end(), [](const Redo& a, const Redo& b) { return a.head().serial < b.head().serial; });
  return left;
}

bool KeptState::torn(uint64_t serial, uint64_t item) const {
  for (const Region& page : redo_pages_) {
    for (size_t i = 0; i < kAtOnce; ++i) {
      const RedoHead& head = reinterpret_cast<const RedoHead*>(page.address())[i];
      if (head.state == RedoHead::BEGUN && head.serial == serial && head.done + 1 == item) return true;
    }
  }
  return false;
}

void KeptState::give_back(RedoHead* head, Region payload) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  // What is not free is for the next process: this one ends.
  if (head->state == RedoHead::FREE) free_.emplace_back(head, std::move(payload));
}

// The smallest spare one that is large enough and not much larger, or a new one.
Region KeptState::payload(size_t bytes) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    auto best = spare_.end();
    for (auto one = spare_.begin(); one != spare_.end(); ++one) {
      if (one->bytes() < bytes || one->bytes() / 2 > bytes) continue;
      if (best == spare_.end() || one->bytes() < best->bytes()) best = one;
    }
    if (best != spare_.end()) {
      Region found = std::move(*best);
      spare_.erase(best);
      spare_bytes_ -= found.bytes();
      return found;
    }
  }
  const size_t most = bytes + bytes / 8, huge = Mapping::kHugePage;
  const size_t rounded = most < huge ? most : (most + huge - 1) / huge * huge;
  Region made = memory_.take({Use::PAYLOAD, 0, 0}, rounded, most >= huge);
  const size_t all = made.bytes();
  return backed(std::move(made), all);
}

void KeptState::spare(Region payload) noexcept {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (payload.bytes() >= Mapping::kHugePage && (spare_bytes_ == 0 || spare_bytes_ + payload.bytes() <= kMostSpare)) {
      spare_bytes_ += payload.bytes();
      spare_.push_back(std::move(payload));
      return;
    }
  }
  payload.release();
}

}  // namespace elasticdl::ps
