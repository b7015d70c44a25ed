#include "elasticdl/embedding/native/table.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <vector>

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
constexpr size_t kLine = 64;

// Common lengths inline; the rest through memcpy.
void copy_floats(float* to, const float* from, size_t n) {
  switch (n) {
    case 8: std::memcpy(to, from, 8 * sizeof(float)); break;
    case 16: std::memcpy(to, from, 16 * sizeof(float)); break;
    case 32: std::memcpy(to, from, 32 * sizeof(float)); break;
    default: std::memcpy(to, from, n * sizeof(float));
  }
}

size_t positive(int dim) {
  if (dim < 1 || dim > Table::kMaxDim) throw std::invalid_argument("a table's dim is " + std::to_string(dim) + ": expected 1 to 65536");
  return static_cast<size_t>(dim);
}
}  // namespace

struct Table::State {
  State(int dim, InitializerSpec initializer, OptimizerSpec optimizer, uint64_t seed)
      : dim(positive(dim)), slots(static_cast<size_t>(optimizer.slots())), initializer(initializer), optimizer(optimizer),
        seed(seed), update(update_of(optimizer)), rows(this->dim * (1 + slots)) {}

  using Reading = std::shared_lock<Turnstile>;
  using Writing = std::lock_guard<Turnstile>;

  bool is(uint32_t row, int64_t id) const { return rows.id(row) == id; }

  // kNone if there is no such row.
  uint32_t find(int64_t id) const {
    return index.find(Index::hash(id), [&](uint32_t row) { return is(row, id); });
  }

  uint32_t add(int64_t id) {
    const uint32_t row = rows.append(id);
    try {
      index.add(Index::hash(id), row);
    } catch (...) {
      rows.drop_last();
      throw;
    }
    return row;
  }

  uint32_t make(int64_t id) {
    const uint32_t row = add(id);
    float* values = rows.values(row);
    initialise_weights(initializer, seed, id, dim, values);
    for (size_t slot = 0; slot < slots; ++slot) {
      std::fill_n(values + (1 + slot) * dim, dim, initial_slot(optimizer, static_cast<int>(slot)));
    }
    return row;
  }

  // Large rows: the hardware's own prefetcher goes on after the first lines. Inlined by force: GCC takes a function that
  // only prefetches for one without effect, and drops the call.
  template <bool kWrite>
  [[gnu::always_inline]] void prefetch_row(uint32_t row, size_t floats) const {
    const char* at = reinterpret_cast<const char*>(rows.values(row));
    const size_t bytes = std::min(floats * sizeof(float), 8 * kLine);
    __builtin_prefetch(&rows.id(row));
    for (size_t offset = 0; offset < bytes; offset += kLine) __builtin_prefetch(at + offset, kWrite);
    __builtin_prefetch(at + bytes - 1, kWrite);
  }

  // Calls visit(i, row or kNone) for i = 0..n-1 in order; `floats` of each row are about to be used. Visits may add
  // rows: a row that another visit added after its station is found again here.
  template <bool kWrite, class Visit>
  void walk(const int64_t* ids, size_t n, size_t floats, Visit visit) const {
    uint64_t hashes[kRing];
    uint32_t found[kRing];
    for (size_t i = 0; i < n + kRing; ++i) {
      if (i >= kRing) visit(i - kRing, confirmed(ids[i - kRing], hashes[i % kRing], found[i % kRing]));
      if (i >= kAhead && i < n + kAhead) {
        const size_t at = (i - kAhead) % kRing;
        found[at] = index.find(hashes[at], [](uint32_t) { return true; });
        if (found[at] != Index::kNone) prefetch_row<kWrite>(found[at], floats);
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
  std::vector<size_t> copy_present(const int64_t* ids, size_t n, float* out) const {
    std::vector<size_t> missing;
    Reading reading(mutex);
    walk<false>(ids, n, dim, [&](size_t i, uint32_t row) {
      if (row == Index::kNone) return missing.push_back(i);
      copy_floats(out + i * dim, rows.values(row), dim);
    });
    return missing;
  }

  const float* frozen(int view, uint32_t row) const { return view < 0 ? rows.values(row) : views.at(view).values(rows, row); }
  size_t count(int view) const { return view < 0 ? rows.size() : views.at(view).rows(); }

  const size_t dim, slots;
  const InitializerSpec initializer;
  const OptimizerSpec optimizer;
  const uint64_t seed;
  const RowUpdate update;
  mutable Turnstile mutex;  // guards all below
  Rows rows;
  Index index;
  Views views;
};

Table::Table(int dim, InitializerSpec initializer, OptimizerSpec optimizer, uint64_t seed)
    : state_(std::make_unique<State>(dim, initializer, optimizer, seed)) {}
Table::~Table() = default;

void Table::lookup(const int64_t* ids, size_t n, float* out) {
  State& s = *state_;
  const std::vector<size_t> missing = s.copy_present(ids, n, out);
  if (missing.empty()) return;
  std::vector<int64_t> missing_ids(missing.size());
  for (size_t k = 0; k < missing.size(); ++k) missing_ids[k] = ids[missing[k]];
  State::Writing writing(s.mutex);
  s.walk<true>(missing_ids.data(), missing.size(), s.dim, [&](size_t k, uint32_t row) {
    if (row == Index::kNone) row = s.make(missing_ids[k]);
    copy_floats(out + missing[k] * s.dim, s.rows.values(row), s.dim);
  });
}

void Table::peek(const int64_t* ids, size_t n, float* out, int view) const {
  const State& s = *state_;
  State::Reading reading(s.mutex);
  const size_t count = s.count(view);
  s.walk<false>(ids, n, s.dim, [&](size_t i, uint32_t row) {
    if (row == Index::kNone || row >= count) return initialise_weights(s.initializer, s.seed, ids[i], s.dim, out + i * s.dim);
    copy_floats(out + i * s.dim, s.frozen(view, row), s.dim);
  });
}

void Table::apply(const int64_t* ids, size_t n, const float* gradients, const StepContext& context) {
  State& s = *state_;
  const Constants constants = constants_of(s.optimizer, context);
  State::Writing writing(s.mutex);
  s.walk<true>(ids, n, s.rows.floats(), [&](size_t i, uint32_t row) {
    if (row == Index::kNone) row = s.make(ids[i]);
    s.views.preserve(s.rows, row);
    float* w = s.rows.values(row);
    s.update(constants, s.dim, w, w + s.dim, w + 2 * s.dim, w + 3 * s.dim, gradients + i * s.dim);
  });
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
int Table::row_floats() const { return static_cast<int>(state_->rows.floats()); }

void Table::begin_view(int view) {
  State::Writing writing(state_->mutex);
  state_->views.begin(view, state_->rows);
}

void Table::end_view(int view) {
  State::Writing writing(state_->mutex);
  state_->views.end(view);
}

size_t Table::view_rows(int view) const {
  State::Reading reading(state_->mutex);
  return state_->count(view);
}

size_t Table::read(int view, size_t first_row, size_t max_rows, int64_t* ids, float* values) const {
  const State& s = *state_;
  State::Reading reading(s.mutex);
  const size_t all = s.count(view), floats = s.rows.floats();
  if (first_row >= all) return 0;
  const size_t count = std::min(max_rows, all - first_row);
  for (size_t i = 0; i < count; ++i) {
    const auto row = static_cast<uint32_t>(first_row + i);
    ids[i] = s.rows.id(row);
    std::memcpy(values + i * floats, s.frozen(view, row), floats * sizeof(float));
  }
  return count;
}

void Table::insert(const int64_t* ids, size_t n, const float* values) {
  State& s = *state_;
  const size_t floats = s.rows.floats();
  State::Writing writing(s.mutex);
  s.walk<true>(ids, n, floats, [&](size_t i, uint32_t row) {
    if (row == Index::kNone) row = s.add(ids[i]);
    s.views.preserve(s.rows, row);
    std::memcpy(s.rows.values(row), values + i * floats, floats * sizeof(float));
  });
}

}  // namespace elasticdl
