#include "elasticdl/ps/native/steps.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "elasticdl/rpc/native/errors.h"

namespace elasticdl::ps {
namespace {

struct Part {
  const char* values;
  double examples;
};

// The mean weighted by examples, summed in the order of the parts and in double precision.
void mean(Scalar scalar, const std::vector<Part>& parts, double examples, size_t size, char* out) {
  with_type(scalar, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < size; ++i) {
      double sum = 0;
      for (const Part& part : parts) sum += part.examples * reinterpret_cast<const T*>(part.values)[i];
      reinterpret_cast<T*>(out)[i] = static_cast<T>(sum / examples);
    }
  });
}

// Squares as a source of a mean has them. Null `squares`: of the gradient at `values`.
struct SquaredPart {
  const char* values;
  const char* squares;
  double share;  // of the examples
};

// In the mean each gradient is multiplied by the share of its source.
void mean_squares(Scalar scalar, const std::vector<SquaredPart>& parts, size_t size, char* out) {
  with_type(scalar, [&](auto zero) {
    using T = decltype(zero);
    const auto at = [](const char* from, size_t i) { return static_cast<double>(reinterpret_cast<const T*>(from)[i]); };
    for (size_t i = 0; i < size; ++i) {
      double sum = 0;
      for (const SquaredPart& part : parts) {
        sum += part.share * part.share * (part.squares != nullptr ? at(part.squares, i) : at(part.values, i) * at(part.values, i));
      }
      reinterpret_cast<T*>(out)[i] = static_cast<T>(sum);
    }
  });
}

// A row of a table in one gradient.
struct Row {
  int64_t id;
  size_t part;  // its gradient: rows of an id are summed in this order
  const char* values;
  const char* squares;  // null: the id comes once in its batch
};

// The mean of several gradients, as one push has it. Without a gradient that counts it is one of nothing.
class Mean {
 public:
  struct Source {
    const Update* update;
    double examples;
  };

  Mean(const Model& model, std::vector<Source> sources) : model_(model), sources_(std::move(sources)) {
    for (const Source& one : sources_) {
      examples_ += one.examples;
      if (one.update->dense != nullptr) dense_.push_back({one.update->dense, one.examples});
    }
    if (!(examples_ > 0)) {
      sources_.clear();
      dense_.clear();
    }
    for (const Source& one : sources_) shares_.push_back(one.examples / examples_);
    take_dense_squares();
    for (size_t t = 0; t < model.tables(); ++t) sort(t);
  }

  size_t bytes() const {
    size_t bytes = sizeof(wire::Push) + model_.tables() * sizeof(uint64_t) + (dense_.empty() ? 0 : model_.dense_bytes());
    bytes += spans_.count * sizeof(wire::Span) + spans_.size() * model_.weight_bytes();
    for (size_t t = 0; t < model_.tables(); ++t) {
      bytes += ids_[t] * (sizeof(int64_t) + model_.row_bytes(t));
      bytes += marks_[t].size() * sizeof(uint64_t) + Marks::count(marks_[t].data(), ids_[t]) * model_.row_bytes(t);
    }
    return bytes;
  }

  // Writes bytes(), which Update::read takes.
  void write(char* out) const {
    wire::Push head{};
    // All were computed at one version, so all have the same rate.
    if (!sources_.empty()) head.learning_rate = sources_.front().update->head.learning_rate;
    head.dense_count = dense_.empty() ? 0 : model_.dense_size();
    head.tables = static_cast<uint32_t>(model_.tables());
    head.spans = static_cast<uint32_t>(spans_.count);
    out = put(out, &head, sizeof head);
    for (size_t t = 0; t < model_.tables(); ++t) out = put(out, &ids_[t], sizeof(uint64_t));
    for (size_t t = 0; t < model_.tables(); ++t) {
      each_id(t, [&](const Row* first, const Row*) { out = put(out, &first->id, sizeof first->id); });
    }
    for (const std::vector<uint64_t>& marks : marks_) out = put(out, marks.data(), marks.size() * sizeof(uint64_t));
    out = put(out, spans_.spans, spans_.count * sizeof(wire::Span));
    const Scalar scalar = model_.spec().scalar;
    if (!dense_.empty()) mean(scalar, dense_, examples_, model_.dense_size(), std::exchange(out, out + model_.dense_bytes()));
    mean_squares(scalar, dense_squares_, spans_.size(), std::exchange(out, out + spans_.size() * model_.weight_bytes()));
    for (size_t t = 0; t < model_.tables(); ++t) {
      std::vector<Part> parts;
      each_id(t, [&](const Row* first, const Row* last) {
        parts.clear();
        for (const Row* row = first; row != last; ++row) parts.push_back({row->values, sources_[row->part].examples});
        mean(scalar, parts, examples_, model_.spec().tables[t].dim, std::exchange(out, out + model_.row_bytes(t)));
      });
    }
    std::vector<SquaredPart> squared;
    for (size_t t = 0; t < model_.tables(); ++t) {
      each_id(t, [&](const Row* first, const Row* last) {
        if (!repeats(t, first, last)) return;
        squared.clear();
        for (const Row* row = first; row != last; ++row) squared.push_back({row->values, row->squares, shares_[row->part]});
        mean_squares(scalar, squared, model_.spec().tables[t].dim, std::exchange(out, out + model_.row_bytes(t)));
      });
    }
  }

 private:
  static char* put(char* out, const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(out, from, bytes);
    return out + bytes;
  }

  // Workers compute the same model, so all have the same spans. If they differ, none are taken, and servers square the mean.
  void take_dense_squares() {
    for (size_t s = 0; s < sources_.size(); ++s) {
      const Update& update = *sources_[s].update;
      if (update.dense == nullptr) continue;
      if (dense_squares_.empty()) spans_ = update.dense_squares;
      if (!update.dense_squares.same_spans(spans_)) {
        spans_ = {};
        return;
      }
      dense_squares_.push_back({nullptr, update.dense_squares.values, shares_[s]});
    }
  }

  void sort(size_t t) {
    std::vector<Row> rows;
    for (size_t s = 0; s < sources_.size(); ++s) {
      const Update::Rows& part = sources_[s].update->tables[t];
      SquaresReader squares(part.marks, part.squares, model_.row_bytes(t));
      for (size_t i = 0; i < part.count; ++i) {
        rows.push_back({part.ids[i], s, part.gradients + i * model_.row_bytes(t), static_cast<const char*>(squares.next())});
      }
    }
    std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return std::tie(a.id, a.part) < std::tie(b.id, b.part); });
    rows_.push_back(std::move(rows));
    uint64_t ids = 0;
    std::vector<uint64_t> marks(Marks::words(rows_[t].size()));
    each_id(t, [&](const Row* first, const Row* last) {
      if (repeats(t, first, last)) Marks::set(marks.data(), ids);
      ++ids;
    });
    marks.resize(Marks::words(ids));
    ids_.push_back(ids);
    marks_.push_back(std::move(marks));
  }

  // Whether the id of these rows of table t comes several times in the batches of the step, and each gradient is squared.
  bool repeats(size_t t, const Row* first, const Row* last) const {
    if (!model_.spec().optimizer.squares() || model_.spec().tables[t].whole) return false;
    return last - first > 1 || first->squares != nullptr;
  }

  // visit(first, last) of the rows of each id.
  template <class Visit>
  void each_id(size_t t, Visit visit) const {
    const Row *at = rows_[t].data(), *end = at + rows_[t].size();
    while (at != end) {
      const Row* next = std::find_if(at, end, [&](const Row& row) { return row.id != at->id; });
      visit(std::exchange(at, next), next);
    }
  }

  const Model& model_;
  std::vector<Source> sources_;
  double examples_ = 0;
  std::vector<Part> dense_;
  Update::DenseSquares spans_;  // of each source; the values are those of one
  std::vector<SquaredPart> dense_squares_;
  std::vector<std::vector<Row>> rows_;  // by table, sorted
  std::vector<uint64_t> ids_;           // by table: distinct ones
  std::vector<std::vector<uint64_t>> marks_;  // by table: ids that repeat
  std::vector<double> shares_;          // by source: of the examples
};

}  // namespace

// From its construction to its end no other step is applied, and no push is staged.
class Steps::Applying {
 public:
  explicit Applying(Steps& steps) : steps_(steps), lock_(steps.mutex_) {
    steps_.ended_.wait(lock_, [&] { return !steps_.applying_; });
    steps_.applying_ = true;
    lock_.unlock();
  }
  ~Applying() {
    if (!lock_.owns_lock()) lock_.lock();
    steps_.applying_ = false;
    steps_.ended_.notify_one();
    steps_.waiters_.wake();
  }
  // From here on it holds the mutex.
  void end() { lock_.lock(); }

 private:
  Steps& steps_;
  std::unique_lock<std::mutex> lock_;
};

std::optional<bool> Steps::stage(const std::string& worker, Gradient& gradient, Waiter& waiter) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (applying_) {
    waiters_.add(waiter);
    return std::nullopt;
  }
  if (!admission_.check_push(worker, gradient.stamp)) return false;
  if (gradient.redo) gradient.redo.stage(admission_.kept_number(worker), gradient.stamp, gradient.bytes);
  keep(worker, std::move(gradient));
  return true;
}

void Steps::keep(const std::string& worker, Gradient gradient) {
  auto& mine = staged_[worker];
  const auto drop = [&](auto one) {
    one->second.drop();
    return mine.erase(one);
  };
  for (auto one = mine.begin(); one != mine.end();) {
    // Numbers of another session mean other pushes.
    one = one->first == gradient.stamp.sequence || one->second.stamp.session != gradient.stamp.session ? drop(one) : std::next(one);
  }
  const int64_t sequence = gradient.stamp.sequence;
  mine.emplace(sequence, std::move(gradient));
  // A worker has a turn for each push, so it has at most one step's here beside those that were late for the step
  // before. Only a worker that pushes without turns loses one.
  if (mine.size() > most_) drop(mine.begin());
}

std::vector<Steps::Share> Steps::take(const std::vector<Contribution>& contributions, std::vector<CountedPush>& pushes) const {
  std::vector<Share> shares;
  for (const Contribution& one : contributions) {
    auto worker = staged_.find(one.worker);
    if (worker == staged_.end()) continue;
    auto found = worker->second.find(one.sequence);
    if (found == worker->second.end()) continue;
    shares.push_back({&found->second, one.examples});
    pushes.push_back({one.worker, found->second.stamp, one.examples});
  }
  // In the order of the data, whoever computed what: the same gradients give the same bits.
  std::sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) {
    const Applied &left = a.gradient->stamp.applied, &right = b.gradient->stamp.applied;
    return std::tie(left.shard, left.offset) < std::tie(right.shard, right.offset);
  });
  return shares;
}

int64_t Steps::apply(Model& model, int64_t number, const std::vector<Contribution>& contributions) {
  Applying applying(*this);
  if (number <= applied_) return admission_.version();
  if (contributions.size() > turns_) {
    throw UserError("step " + std::to_string(number) + " of " + std::to_string(contributions.size()) + " gradients, but a step has " + std::to_string(turns_) + " turns");
  }
  if (kept_ != nullptr) kept_->prepare_steps(turns_);
  std::vector<CountedPush> pushes;
  std::vector<Mean::Source> sources;
  for (const Share& share : take(contributions, pushes)) sources.push_back({&share.gradient->update, share.examples});
  const Mean mean(model, std::move(sources));
  const size_t bytes = mean.bytes();
  Buffer buffer;
  Redo redo = kept_ != nullptr ? kept_->take_redo() : Redo();
  char* const at = redo ? redo.room(Redo::bytes_with(bytes, pushes.size())) : buffer.room(bytes);
  mean.write(at);
  if (redo) {
    auto* push = reinterpret_cast<StepPush*>(at + Redo::bytes_with(bytes, 0));
    for (const auto& [worker, stamp, examples] : pushes) *push++ = {admission_.kept_number(worker), stamp, examples};
  }
  const Update update = Update::read(at, bytes, model);
  const int64_t step = admission_.begin_step();
  // Ends the process if memory runs out half-way, as a push does: the job starts another one.
  [&]() noexcept {
    if (redo) redo.begin_step(number, step, bytes, pushes.size());
    model.apply(update, {update.head.learning_rate, step}, redo ? &redo : nullptr);
  }();
  const int64_t version = admission_.finish_step(pushes, redo ? &redo : nullptr);
  applying.end();
  end(number, pushes, redo);
  return version;
}

void Steps::end(int64_t number, const std::vector<CountedPush>& pushes, Redo& redo) noexcept {
  applied_ = number;
  AppliedStep& applied = recent_.emplace_back();
  applied.number = number;
  for (const CountedPush& one : pushes) applied.contributions.push_back({one.worker, one.stamp.sequence, one.examples});
  if (recent_.size() > KeptState::kSteps) recent_.pop_front();
  if (kept_ != nullptr) {
    std::vector<KeptStep::Push> kept;
    for (const CountedPush& one : pushes) kept.push_back({admission_.kept_number(one.worker), one.stamp.sequence, one.examples});
    kept_->keep_step(number, kept);
  }
  // What is left was computed for this step or an earlier one, and came too late.
  for (auto& [worker, mine] : staged_) {
    for (auto& [sequence, gradient] : mine) gradient.drop();
  }
  staged_.clear();
  if (redo) redo.free();
}

void Steps::take_on() {
  std::lock_guard<std::mutex> lock(mutex_);
  applied_ = kept_->step();
  for (const auto& [number, pushes] : kept_->steps(turns_)) {
    AppliedStep& applied = recent_.emplace_back();
    applied.number = number;
    for (const KeptStep::Push& one : pushes) applied.contributions.push_back({admission_.kept_name(one.worker), one.sequence, one.examples});
  }
}

std::vector<AppliedStep> Steps::recent() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {recent_.begin(), recent_.end()};
}

void Steps::forget() {
  std::lock_guard<std::mutex> lock(mutex_);
  applied_ = 0;
  recent_.clear();
  staged_.clear();
}

void Steps::take_on_staged(const Model& model, Redo redo) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::string worker = admission_.kept_name(redo.head().worker);
  Gradient gradient{redo.head().stamp, Update::read(redo.data(), redo.head().bytes, model), redo.head().bytes, Buffer(), std::move(redo)};
  try {
    if (admission_.check_push(worker, gradient.stamp)) return keep(worker, std::move(gradient));
  } catch (const Refused&) {  // the worker was fenced, or has connected anew
  }
  gradient.drop();
}

void Steps::take_on_step(Model& model, Redo redo) {
  std::lock_guard<std::mutex> lock(mutex_);
  const RedoHead& head = redo.head();
  const Update update = Update::read(redo.data(), head.bytes, model);
  if (head.state == RedoHead::BEGUN) model.apply(update, {update.head.learning_rate, head.step}, &redo);
  kept_->prepare_steps(turns_);
  if (head.pushes > turns_) throw Corrupted("a step in it is damaged");
  const std::vector<CountedPush> pushes = admission_.left_pushes(redo);
  admission_.finish_left(redo);
  end(head.number, pushes, redo);
}

}  // namespace elasticdl::ps
