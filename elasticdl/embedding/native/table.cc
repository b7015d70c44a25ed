#include "elasticdl/embedding/native/table.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <vector>

#include "elasticdl/embedding/native/idle.h"
#include "elasticdl/embedding/native/index.h"
#include "elasticdl/embedding/native/rows.h"
#include "elasticdl/embedding/native/rule.h"
#include "elasticdl/embedding/native/turnstile.h"
#include "elasticdl/embedding/native/views.h"

namespace elasticdl {
namespace {
static_assert(Table::kViews == Views::kViews);

// A pipeline of three stages, kAhead ids apart: prefetch the id's slot, prefetch its row, visit it.
// So about kAhead cache misses of each kind are in flight at any time.
constexpr size_t kAhead = 16;
constexpr size_t kRing = 2 * kAhead;  // a power of two
// Readers look at a row's tag between the last two stages. They need the slots only of a row that has missed steps.
constexpr size_t kTag = kAhead + kAhead / 2;
constexpr size_t kLine = 64;
// Rows come into the second level of cache, where most processors can wait for twice as many lines as in the first. On an AMD
// EPYC updates of rows with Adam are 1.26 times as fast as with the first level (2026-11-27, `bench/table.py`).
constexpr int kSecondLevel = 2;

// Common lengths inline; the rest through memcpy.
void copy_bytes(char* to, const char* from, size_t n) {
  switch (n) {
    case 32: std::memcpy(to, from, 32); break;
    case 64: std::memcpy(to, from, 64); break;
    case 128: std::memcpy(to, from, 128); break;
    default: std::memcpy(to, from, n);
  }
}

size_t positive(int dim) {
  if (dim < 1 || dim > Table::kMaxDim) throw std::invalid_argument("a table's dim is " + std::to_string(dim) + ": expected 1 to 65536");
  return static_cast<size_t>(dim);
}

// What a table has in kept memory beside its rows and its index. The undo of the row being written follows, then its tag's.
struct Head {
  uint64_t rows;
  uint64_t index;
  uint64_t start;     // see State::start
  double start_rate;  // see State::start_rate
};

// The head of table `number`, as it was left or new; an empty region in private memory.
Region head_region(Memory* memory, uint32_t number, size_t row_bytes) {
  if (memory == nullptr) return Region();
  const size_t bytes = sizeof(Head) + sizeof(Undo) + row_bytes + sizeof(Rows::Tag);
  std::vector<Region> held = memory->held(Use::TABLE, number);
  Region region = held.empty() ? memory->take({Use::TABLE, number, 0}, bytes, false) : std::move(held.front());
  if (region.bytes() < bytes) throw std::invalid_argument("a table of another size");
  region.back(0, bytes);
  return region;
}
}  // namespace

struct Table::State {
  State(int dim, InitializerSpec initializer, OptimizerSpec optimizer, uint64_t seed, Scalar scalar, Memory* memory, uint32_t number,
        std::shared_ptr<const IdleSteps> shared)
      : dim(positive(dim)), slots(static_cast<size_t>(optimizer.slots())), scalar(scalar), weight_bytes(this->dim * bytes_of(scalar)),
        initializer(initializer), optimizer(optimizer), seed(seed), update(update_of(optimizer, scalar)),
        idle(shared != nullptr ? std::move(shared) : std::make_shared<const IdleSteps>(optimizer)),
        kept(head_region(memory, number, weight_bytes * (1 + slots))),
        rows(weight_bytes * (1 + slots), idle->any(), memory, number, head() ? &head()->rows : nullptr),
        index(memory, number, head() ? &head()->index : nullptr, rows.size()) {
    if (memory == nullptr) return;
    start = now = head()->start;
    start_rate = head()->start_rate;
    count_last();
  }

  // Null in private memory.
  Head* head() const { return reinterpret_cast<Head*>(kept.address()); }
  Undo* undo() const { return reinterpret_cast<Undo*>(kept.address() + sizeof(Head)); }
  // Behind the values of the undo.
  Rows::Tag* undo_tag() const { return reinterpret_cast<Rows::Tag*>(undo()->values() + rows.row_bytes()); }

  using Reading = std::shared_lock<Turnstile>;
  using Writing = std::lock_guard<Turnstile>;

  bool is(uint32_t row, int64_t id) const { return rows.id(row) == id; }

  void advance(uint64_t step, double learning_rate) {
    now = std::max(now, step);
    if (start_rate != 0.0 || learning_rate == 0.0) return;
    // As precise as the rate of a tag: a checkpoint has it as one.
    start_rate = static_cast<double>(static_cast<float>(learning_rate));
    if (head() != nullptr) head()->start_rate = start_rate;
  }

  // Counts a row that a killed process had completed, as its place in the index shows.
  void count_last() {
    const int64_t* id = rows.id_after_last();
    if (id == nullptr) return;
    if (index.find(Index::hash(*id), [&](uint32_t row) { return row == rows.size(); }) != Index::kNone) rows.add_next();
  }

  uint32_t make(int64_t id) {
    const uint32_t row = rows.next(id);
    tag(row, now, 0.0);
    char* values = rows.values(row);
    initialise_weights(initializer, scalar, seed, id, dim, values);
    for (size_t slot = 0; slot < slots; ++slot) initialise_slot(optimizer, scalar, static_cast<int>(slot), dim, values + (1 + slot) * weight_bytes);
    index.add(Index::hash(id), row);
    rows.add_next();
    return row;
  }

  void tag(uint32_t row, uint64_t step, double rate) {
    if (rows.tagged()) rows.tag(row) = {static_cast<uint32_t>(std::min<uint64_t>(step, UINT32_MAX)), static_cast<float>(rate)};
  }

  // The tag with what is known of rows without one. Another table has another start.
  Rows::Tag whole_tag(const Rows::Tag& tag) const {
    return {tag.step == 0 ? static_cast<uint32_t>(std::min<uint64_t>(start, UINT32_MAX)) : tag.step,
            tag.rate == 0 ? static_cast<float>(start_rate) : tag.rate};
  }

  uint64_t last_step(const Rows::Tag& tag) const { return tag.step == 0 ? start : tag.step; }

  // Whether a row, which has a tag, has missed steps until `until`.
  bool missed(const Rows& from, uint32_t row, uint64_t until) const { return last_step(from.tag(row)) < until; }

  double rate(const Rows::Tag& tag) const { return tag.rate == 0 ? start_rate : tag.rate; }

  void move(double moved, char* out, const char* w) const {
    movement(moved, optimizer.epsilon, dim, out, w, w + weight_bytes, w + 2 * weight_bytes, w + 3 * weight_bytes);
  }

  // Brings the values of a row, which are at `w`, up to step `until`.
  void settle(const Rows& from, uint32_t row, uint64_t until, char* w) const {
    if (!from.tagged() || !missed(from, row, until)) return;
    const Rows::Tag tag = from.tag(row);
    const uint64_t last = last_step(tag);
    const Catchup steps = idle->after(last, until - last, rate(tag));
    move(steps.movement, w, w);
    decay(steps, dim, w + weight_bytes, w + 2 * weight_bytes);
  }

  // The weights after step `until`.
  void copy_weights(const Rows& from, uint32_t row, uint64_t until, char* out) const {
    const char* w = from.values(row);
    if (!from.tagged() || !missed(from, row, until)) return copy_bytes(out, w, weight_bytes);
    const Rows::Tag tag = from.tag(row);
    const uint64_t last = last_step(tag);
    move(idle->movement(last, until - last, rate(tag)), out, w);
  }

  // The whole row after step `until`.
  void copy_row(const Rows& from, uint32_t row, uint64_t until, char* out) const {
    std::memcpy(out, from.values(row), from.row_bytes());
    settle(from, row, until, out);
  }

  // Large rows: the hardware's own prefetcher goes on after the first lines. Inlined by force: GCC takes a function that
  // only prefetches for one without effect, and drops the call.
  template <bool kWrite>
  [[gnu::always_inline]] void prefetch_values(const char* at, size_t needed) const {
    const size_t bytes = std::min(needed, 8 * kLine);
    for (size_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(at + offset, kWrite, kSecondLevel);
    __builtin_prefetch(at + bytes - 1, kWrite, kSecondLevel);
  }

  // The slots of a row that must catch up to step `until`.
  [[gnu::always_inline]] void prefetch_slots(uint32_t row, uint64_t until) const {
    if (row == Index::kNone || !missed(rows, row, until)) return;
    prefetch_values<false>(rows.values(row) + weight_bytes, rows.row_bytes() - weight_bytes);
  }

  // Visits rows to write them: all their bytes are about to be used.
  template <class Visit>
  void walk_to_write(const int64_t* ids, size_t n, Visit visit) const {
    walk<true>(ids, n, rows.row_bytes(), 0, visit);
  }

  // Visits rows to read their weights after step `until`.
  template <class Visit>
  void walk_to_read(const int64_t* ids, size_t n, uint64_t until, Visit visit) const {
    // A row that fits a line comes whole.
    const bool late = rows.tagged() && rows.row_bytes() > kLine;
    walk<false>(ids, n, late ? weight_bytes : std::min(rows.row_bytes(), kLine), late ? until : 0, visit);
  }

  // Calls visit(i, row or kNone) for i = 0..n-1 in order. `bytes` of each row are about to be used, and its slots if it has
  // missed steps until `until`. Visits may add rows: a row that another visit added after its station is found again here.
  template <bool kWrite, class Visit>
  [[gnu::always_inline]] void walk(const int64_t* ids, size_t n, size_t bytes, uint64_t until, Visit visit) const {
    uint64_t hashes[kRing];
    uint32_t found[kRing];
    for (size_t i = 0; i < n + kRing; ++i) {
      if (i >= kRing) visit(i - kRing, confirmed(ids[i - kRing], hashes[i % kRing], found[i % kRing]));
      if (!kWrite && until != 0 && i >= kTag && i < n + kTag) prefetch_slots(found[(i - kTag) % kRing], until);
      if (i >= kAhead && i < n + kAhead) {
        const size_t at = (i - kAhead) % kRing;
        found[at] = index.find(hashes[at], [](uint32_t) { return true; });
        if (found[at] != Index::kNone) {
          __builtin_prefetch(&rows.id(found[at]), 0, kSecondLevel);
          if (kWrite) {
            changed.prefetch(found[at]);
            views.prefetch(found[at]);
          }
          prefetch_values<kWrite>(rows.values(found[at]), bytes);
        }
      }
      if (i < n) {
        hashes[i % kRing] = Index::hash(ids[i]);
        index.prefetch(hashes[i % kRing]);
      }
    }
  }

  // `guess` matches only the hash bits in the index.
  uint32_t confirmed(int64_t id, uint64_t hash, uint32_t guess) const {
    if (guess != Index::kNone && is(guess, id)) return guess;
    return index.find(hash, [&](uint32_t row) { return is(row, id); });
  }

  // Copies the existing rows; returns the missing ids.
  std::vector<size_t> copy_present(const int64_t* ids, size_t n, char* out) const {
    std::vector<size_t> missing;
    Reading reading(mutex);
    walk_to_read(ids, n, now, [&](size_t i, uint32_t row) {
      if (row == Index::kNone) return missing.push_back(i);
      copy_weights(rows, row, now, out + i * weight_bytes);
    });
    return missing;
  }

  std::pair<const Rows*, uint32_t> frozen(int view, uint32_t row) const {
    return view < 0 ? std::pair(&rows, row) : views.at(view).find(rows, row);
  }
  uint64_t step(int view) const { return view < 0 ? now : views.at(view).step(); }
  size_t count(int view) const { return view < 0 ? rows.size() : views.at(view).rows(); }

  const size_t dim, slots;
  const Scalar scalar;
  const size_t weight_bytes;  // of a row, without slots
  const InitializerSpec initializer;
  const OptimizerSpec optimizer;
  const uint64_t seed;
  const RowUpdate update;
  const std::shared_ptr<const IdleSteps> idle;
  const RowMovement movement = movement_of(optimizer, scalar);
  const RowDecay decay = decay_of(optimizer, scalar);
  mutable Turnstile mutex;  // guards all below
  Region kept;              // of the head and the undo; empty in private memory
  uint64_t start = 0;       // rows whose step is not known are of this one
  uint64_t now = 0;         // updates of the model so far
  double start_rate = 0.0;  // of the first update after `start`: rows that were put in go on at it; 0: not known
  Rows rows;
  Index index;
  Views views;
  Changes changed;     // rows since `base`
  int64_t base = -1;   // see Table::set_base; -1: none
  std::array<int64_t, Views::kViews> bases = {};  // of each view, when it was begun
};

Table::Table(int dim, InitializerSpec initializer, OptimizerSpec optimizer, uint64_t seed, Scalar scalar, Memory* memory, uint32_t number,
             std::shared_ptr<const IdleSteps> idle)
    : state_(std::make_unique<State>(dim, initializer, optimizer, seed, scalar, memory, number, std::move(idle))) {}
Table::~Table() = default;

void Table::lookup(const int64_t* ids, size_t n, void* rows) {
  State& s = *state_;
  char* out = static_cast<char*>(rows);
  const std::vector<size_t> missing = s.copy_present(ids, n, out);
  if (missing.empty()) return;
  std::vector<int64_t> missing_ids(missing.size());
  for (size_t k = 0; k < missing.size(); ++k) missing_ids[k] = ids[missing[k]];
  State::Writing writing(s.mutex);
  s.walk_to_write(missing_ids.data(), missing.size(), [&](size_t k, uint32_t row) {
    if (row == Index::kNone) row = s.make(missing_ids[k]);
    s.copy_weights(s.rows, row, s.now, out + missing[k] * s.weight_bytes);
  });
}

void Table::peek(const int64_t* ids, size_t n, void* rows, int view) const {
  const State& s = *state_;
  char* out = static_cast<char*>(rows);
  State::Reading reading(s.mutex);
  const size_t count = s.count(view);
  const uint64_t step = s.step(view);
  s.walk_to_read(ids, n, step, [&](size_t i, uint32_t row) {
    char* to = out + i * s.weight_bytes;
    if (row == Index::kNone || row >= count) return initialise_weights(s.initializer, s.scalar, s.seed, ids[i], s.dim, to);
    const auto [rows, place] = s.frozen(view, row);
    s.copy_weights(*rows, place, step, to);
  });
}

void Table::apply(const int64_t* ids, size_t n, const void* gradients, const StepContext& context, SquaresReader squares, const Progress* progress) {
  State& s = *state_;
  const Constants constants = constants_of(s.optimizer, context, s.scalar);
  const char* sums = static_cast<const char*>(gradients);
  const auto written = [&](size_t i, uint32_t row) {
    if (row == Index::kNone) row = s.make(ids[i]);
    s.views.preserve(s.rows, row);
    s.changed.add(row);
    return row;
  };
  const uint64_t step = static_cast<uint64_t>(context.step);
  const auto update = [&](size_t i, uint32_t row) {
    char* w = s.rows.values(row);
    s.settle(s.rows, row, step - 1, w);
    s.update(constants, s.dim, w, w + s.weight_bytes, w + 2 * s.weight_bytes, w + 3 * s.weight_bytes, sums + i * s.weight_bytes, squares.next());
    // Updates may come out of order: the row has moved in a later step already.
    if (s.rows.tagged() && s.rows.tag(row).step < step) s.tag(row, step, context.learning_rate);
  };
  State::Writing writing(s.mutex);
  const size_t row_bytes = s.rows.row_bytes();
  if (progress == nullptr || s.head() == nullptr) {
    s.walk_to_write(ids, n, [&](size_t i, uint32_t row) { update(i, written(i, row)); });
    return s.advance(step, context.learning_rate);
  }
  static const RowCopy copy = row_copy();
  Undo& undo = *s.undo();
  undo.begin(progress->serial);
  s.walk_to_write(ids, n, [&](size_t i, uint32_t row) {
    row = written(i, row);
    const uint64_t item = progress->first + i + 1;
    copy(undo.values(), s.rows.values(row), row_bytes);
    if (s.rows.tagged()) *s.undo_tag() = s.rows.tag(row);
    undo.set(item, row);
    update(i, row);
    in_order();
    *progress->done = item;
    in_order();
  });
  s.advance(step, context.learning_rate);
}

void Table::advance(uint64_t step, double learning_rate) {
  if (!state_->rows.tagged()) return;  // no row moves without a gradient
  State::Writing writing(state_->mutex);
  state_->advance(step, learning_rate);
}

void Table::begin_at(uint64_t step) {
  State& s = *state_;
  State::Writing writing(s.mutex);
  s.start = s.now = step;
  s.start_rate = 0.0;
  if (s.head() == nullptr) return;
  s.head()->start = step;
  s.head()->start_rate = 0.0;
}

void Table::repair(const std::function<bool(uint64_t, uint64_t)>& torn) {
  State& s = *state_;
  State::Writing writing(s.mutex);
  if (s.head() == nullptr) return;
  Undo& undo = *s.undo();
  if (undo.mark != 0 && torn(undo.serial, undo.item())) {
    if (undo.place() >= s.rows.size()) throw std::invalid_argument("an undo of a row that is not there");
    const auto row = static_cast<uint32_t>(undo.place());
    std::memcpy(s.rows.values(row), undo.values(), s.rows.row_bytes());
    if (s.rows.tagged()) s.rows.tag(row) = *s.undo_tag();
  }
  undo.clear();
}

size_t Table::rows() const {
  State::Reading reading(state_->mutex);
  return state_->rows.size();
}

size_t Table::memory_bytes() const {
  State::Reading reading(state_->mutex);
  return sizeof(State) + state_->rows.memory_bytes() + state_->index.memory_bytes() + state_->views.memory_bytes();
}

int Table::dim() const { return static_cast<int>(state_->dim); }
int Table::row_floats() const { return static_cast<int>(state_->dim * (1 + state_->slots)); }
Scalar Table::scalar() const { return state_->scalar; }
size_t Table::row_bytes() const { return state_->rows.row_bytes(); }

void Table::begin_view(int view) {
  State::Writing writing(state_->mutex);
  state_->views.begin(view, state_->rows, state_->now, state_->changed);
  state_->bases[static_cast<size_t>(view)] = state_->base;
}

void Table::end_view(int view) {
  std::unique_ptr<View> gone;  // declared first, so freed after the lock is released
  State::Writing writing(state_->mutex);
  gone = state_->views.end(view);
}

size_t Table::view_rows(int view) const {
  State::Reading reading(state_->mutex);
  return state_->count(view);
}

size_t Table::copied_rows(int view) const {
  State::Reading reading(state_->mutex);
  return state_->views.at(view).copied_rows();
}

size_t Table::read(int view, size_t first_row, size_t max_rows, int64_t* ids, void* values) const {
  const State& s = *state_;
  char* out = static_cast<char*>(values);
  State::Reading reading(s.mutex);
  const size_t all = s.count(view), row_bytes = s.rows.row_bytes();
  if (first_row >= all) return 0;
  const size_t count = std::min(max_rows, all - first_row);
  const uint64_t step = s.step(view);
  for (size_t i = 0; i < count; ++i) {
    const auto row = static_cast<uint32_t>(first_row + i);
    ids[i] = s.rows.id(row);
    const auto [rows, place] = s.frozen(view, row);
    s.copy_row(*rows, place, step, out + i * row_bytes);
  }
  return count;
}

void Table::insert(const int64_t* ids, size_t n, const void* values) { insert_stored(ids, n, nullptr, values); }

bool Table::tagged() const { return state_->rows.tagged(); }

void Table::set_base(int view, int64_t base) {
  State::Writing writing(state_->mutex);
  state_->changed = state_->views.at(view).written();
  state_->base = base;
}

bool Table::has_base(int view, int64_t base) const {
  State::Reading reading(state_->mutex);
  state_->views.at(view);
  return base >= 0 && state_->bases[static_cast<size_t>(view)] == base;
}

size_t Table::changed_rows(int view) const {
  State::Reading reading(state_->mutex);
  const View& frozen = state_->views.at(view);
  return frozen.changed().count(frozen.rows());
}

size_t Table::read_stored(int view, bool changed, size_t& next, size_t max_rows, int64_t* ids, RowTag* tags, void* values) const {
  const State& s = *state_;
  char* out = static_cast<char*>(values);
  State::Reading reading(s.mutex);
  const View& frozen = s.views.at(view);
  const size_t row_bytes = s.rows.row_bytes();
  size_t count = 0;
  for (; count < max_rows; ++count, ++next) {
    if (changed) next = frozen.changed().next(next, frozen.rows());
    if (next >= frozen.rows()) break;
    const auto row = static_cast<uint32_t>(next);
    ids[count] = s.rows.id(row);
    const auto [rows, place] = frozen.find(s.rows, row);
    if (s.rows.tagged()) tags[count] = s.whole_tag(rows->tag(place));
    std::memcpy(out + count * row_bytes, rows->values(place), row_bytes);
  }
  return count;
}

void Table::insert_stored(const int64_t* ids, size_t n, const RowTag* tags, const void* values) {
  State& s = *state_;
  const char* from = static_cast<const char*>(values);
  const size_t row_bytes = s.rows.row_bytes();
  State::Writing writing(s.mutex);
  s.walk_to_write(ids, n, [&](size_t i, uint32_t row) {
    const bool missing = row == Index::kNone;
    if (missing) row = s.rows.next(ids[i]);
    else s.views.preserve(s.rows, row);
    s.changed.add(row);
    if (tags == nullptr) s.tag(row, s.now, 0.0);
    else s.tag(row, tags[i].step, static_cast<double>(tags[i].rate));
    std::memcpy(s.rows.values(row), from + i * row_bytes, row_bytes);
    if (!missing) return;
    s.index.add(Index::hash(ids[i]), row);
    s.rows.add_next();
  });
}

}  // namespace elasticdl
