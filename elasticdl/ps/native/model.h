// The parameters that one server holds: a slice of the dense weights with optimizer slots, and its rows of each table.
#pragma once

#include <functional>
#include <memory>
#include <shared_mutex>
#include <vector>

#include "elasticdl/embedding/native/rule.h"
#include "elasticdl/embedding/native/table.h"
#include "elasticdl/ps/native/kept_state.h"
#include "elasticdl/ps/native/update.h"
#include "elasticdl/rpc/native/spec.h"

namespace elasticdl::ps {

// Slices of the flat vector in one block: weights [trainable | additive], then the optimizer's slots of the trainable part.
class Dense {
 public:
  // Weights of zero, slots as before the first update. `kept` may be null: private memory.
  Dense(const Spec& spec, uint64_t trainable, uint64_t additive, KeptState* kept);
  // The one that the process before left. Throws Corrupted if it has another size.
  Dense(const Spec& spec, uint64_t trainable, uint64_t additive, Region left);
  // A copy of the values, in kept memory if `kept` is not null.
  Dense(const Dense& other, KeptState* kept);
  Dense(const Dense&) = delete;
  Dense& operator=(const Dense&) = delete;
  ~Dense();

  char* weights() { return memory_.address(); }
  const char* weights() const { return memory_.address(); }
  char* slot(size_t s) { return memory_.address() + weight_bytes_ + s * slot_bytes_; }
  const char* slot(size_t s) const { return memory_.address() + weight_bytes_ + s * slot_bytes_; }
  size_t slots() const { return slots_; }
  size_t bytes() const { return weight_bytes_ + slots_ * slot_bytes_; }
  uint64_t offset() const { return memory_.offset(); }
  // Only views need it from now on: its memory is free after the last one.
  void replaced() { replaced_ = true; }

 private:
  static Region take(KeptState* kept, size_t bytes);

  size_t weight_bytes_, slot_bytes_, slots_;
  Region memory_;
  bool replaced_ = false;
};

// Weights, slots and gradients are of spec().scalar.
class Model {
 public:
  // Zeros, with slots as before the first update; with `kept`, which may be null, in kept memory. What the process before left
  // there is taken on; throws std::invalid_argument or Corrupted if that is another model.
  Model(Spec spec, uint32_t server, uint32_t servers, KeptState* kept = nullptr);
  // `dense` has `count` values; throws UserError if that is not dense_size().
  Model(Spec spec, uint32_t server, uint32_t servers, const void* dense, uint64_t count, KeptState* kept = nullptr);

  const Spec& spec() const { return spec_; }
  uint32_t server() const { return server_; }
  uint32_t servers() const { return servers_; }
  Range trainable() const { return trainable_; }
  Range additive() const { return additive_; }
  uint64_t dense_size() const { return trainable_.size() + additive_.size(); }
  size_t weight_bytes() const { return bytes_of(spec_.scalar); }
  size_t dense_bytes() const { return dense_size() * weight_bytes(); }
  // Bytes of a row's weights, or of its gradient.
  size_t row_bytes(size_t t) const { return spec_.tables[t].dim * weight_bytes(); }

  Table& table(size_t t) { return *tables_[t]; }
  const Table& table(size_t t) const { return *tables_[t]; }
  size_t tables() const { return tables_.size(); }
  // Throws UserError unless a frame has ids of as many tables.
  void require_tables(uint32_t tables) const;

  void copy_dense(void* out) const;
  // The additive part is added. Rows are applied in pieces, so that pulls run in between. In kept memory `redo` has the update:
  // what it says is done is left out, and the next process can complete the rest.
  void apply(const Update& update, const StepContext& context, Redo* redo = nullptr);
  // The model has had `step` updates: see Table::advance and Table::begin_at.
  void advance(int64_t step, double learning_rate = 0.0);
  void begin_at(int64_t step);
  // Kept memory, before anything else: undoes what a killed process was writing. See Table::repair.
  void repair(const std::function<bool(uint64_t, uint64_t)>& torn);

  // The present dense part; later updates do not change it.
  std::shared_ptr<const Dense> freeze_dense() const;
  // Only while no other thread uses the model (restoring).
  Dense& dense_being_restored() { return *dense_; }

  size_t rows() const;
  size_t memory_bytes() const;

 private:
  // A piece of the dense part that is written at once: of the trainable or of the additive part.
  struct Block {
    bool additive;
    uint64_t begin, size;  // within its part
  };

  void apply_dense(const Update& update, const StepContext& context, const Progress* progress);
  void apply_rows(size_t t, const Update::Rows& rows, const StepContext& context, const Progress* progress);
  uint64_t blocks() const;
  Block block(uint64_t number) const;
  void write_block(const Block& block, const Constants& constants, const Update& update);
  // Calls visit(address, bytes) for each array of which the block is a part.
  template <class Visit>
  void each_array(const Block& block, Visit visit);
  void open_undo();

  const Spec spec_;
  const uint32_t server_, servers_;
  const Range trainable_, additive_;
  KeptState* const kept_;
  const RowUpdate update_;
  Region undo_;  // of a block; kept memory only
  mutable std::shared_mutex mutex_;  // guards dense_ and what it points to
  std::shared_ptr<Dense> dense_;
  std::vector<std::unique_ptr<Table>> tables_;
};

}  // namespace elasticdl::ps
