// Embedding rows by id: weights and optimizer slots side by side in one row, created when first touched.
// No Python here; bindings.cc has the Python interface.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "elasticdl/embedding/native/unique_ids.h"
#include "elasticdl/embedding/native/initializer.h"
#include "elasticdl/embedding/native/memory.h"
#include "elasticdl/embedding/native/optimizer.h"
#include "elasticdl/embedding/native/row_tag.h"
#include "elasticdl/embedding/native/squares.h"

namespace elasticdl {

class IdleSteps;

// Thread-safe. Each call is one atomic unit (a lookup never sees half of an apply; a view never freezes half of one),
// except that a lookup that makes rows copies the rows that were there before it makes the others.
// Reading calls run beside one another, writing ones alone. Any int64 is a legal id. At most 2^31 rows.
//
// In kept memory rows and index survive the process at any instant, and so does an update with a `Progress`, which the next
// process completes. A table takes on what is there under its number.
//
// Views: up to kViews frozen states at once. Freezing costs O(1); afterwards the first write to a row of the view
// copies that row once. Rows made after the freeze are not in the view.
class Table {
 public:
  static constexpr int kViews = 8;
  static constexpr int kMaxDim = 1 << 16;  // with its slots a row then has at most 2 MiB

  // 1 <= dim <= kMaxDim, else std::invalid_argument. `scalar` is the type of all weights, slots and gradients.
  // What kept memory has under `number` must be of the same shape, else std::invalid_argument too. `idle` is of this optimizer,
  // and may serve all tables of a model; null: the table makes its own.
  Table(int dim, InitializerSpec initializer, OptimizerSpec optimizer, uint64_t seed, Scalar scalar = Scalar::FLOAT32,
        Memory* memory = nullptr, uint32_t number = 0, std::shared_ptr<const IdleSteps> idle = nullptr);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  // out[n, dim] = weights; creates missing rows. Ids may repeat.
  void lookup(const int64_t* ids, size_t n, void* out);
  // As lookup, of a view (< 0: live), but never creates rows: missing rows read as their initial values.
  void peek(const int64_t* ids, size_t n, void* out, int view) const;
  // One update of each row, by gradients[n, dim]; creates missing rows first. Ids must be distinct: sum duplicates
  // with merge_rows, and their squares with merge_squares. Rows that are not named go on by their momentum, as in Keras: see
  // advance. Their weights do not decay.
  // In kept memory `progress` makes that survive, and counts each row; without it an update may be left half done.
  void apply(const int64_t* ids, size_t n, const void* gradients, const StepContext& context, SquaresReader squares = {},
             const Progress* progress = nullptr);
  // The model has had `step` updates, whether or not they named rows of this table. All reading calls show rows as they are
  // after them. Steps never go back; apply does this itself. `learning_rate`: of that step, 0 if it is not known.
  void advance(uint64_t step, double learning_rate = 0.0);
  // The same for a table whose rows were inserted: they are of this step.
  void begin_at(uint64_t step);
  // Kept memory, before anything else: undoes what an update did to the row at which it was killed. `torn(serial, item)`:
  // whether that item of that update was begun and not done.
  void repair(const std::function<bool(uint64_t, uint64_t)>& torn);

  size_t rows() const;
  size_t memory_bytes() const;  // of rows, ids, index and views
  int dim() const;
  int row_floats() const;  // dim * (1 + slots)
  Scalar scalar() const;
  size_t row_bytes() const;

  // view: 0..kViews-1, not begun yet; else std::invalid_argument.
  void begin_view(int view);
  // Drops the copies. Ignores a view that does not exist.
  void end_view(int view);
  // These throw std::out_of_range for a view that does not exist.
  size_t view_rows(int view) const;  // < 0: live
  size_t copied_rows(int view) const;  // written since
  // Copies rows first_row .. first_row + max_rows - 1, in insertion order, as far as there are any: ids[count],
  // values[count, row_floats]. Returns count.
  size_t read(int view, size_t first_row, size_t max_rows, int64_t* ids, void* values) const;
  // Restores whole rows: values[n, row_floats]. Replaces existing rows.
  void insert(const int64_t* ids, size_t n, const void* values);

  // Checkpoints: rows as they are stored, with the tags by which they make up for the steps that left them out. A table that
  // has them inserted goes on bit for bit as this one. Of some optimizers no row has a tag, and `tags` is not used.
  bool tagged() const;
  // From now on rows count as changed if they were written after this view, which is known as `base` (>= 0).
  void set_base(int view, int64_t base);
  // Whether the view knows which rows were changed since that base.
  bool has_base(int view, int64_t base) const;
  // Rows of the view that were changed since its base; all if it has none.
  size_t changed_rows(int view) const;
  // Copies at most max_rows rows of the view from row `next` on, in insertion order, with `changed` those only that were
  // changed; `next` is then the row to go on with. Returns the count.
  size_t read_stored(int view, bool changed, size_t& next, size_t max_rows, int64_t* ids, RowTag* tags, void* values) const;
  // As `insert`. Null `tags`: the rows are of the step of `begin_at`.
  void insert_stored(const int64_t* ids, size_t n, const RowTag* tags, const void* values);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace elasticdl
