// The parameters that one server holds: a slice of the dense weights with optimizer slots, and its rows of each table.
#pragma once

#include <memory>
#include <shared_mutex>
#include <vector>

#include "elasticdl/embedding/native/table.h"
#include "elasticdl/rpc/native/spec.h"

namespace elasticdl::ps {

// Slices of the flat vector in one block: weights [trainable | additive], then the optimizer's slots of the trainable part.
class Dense {
 public:
  // Weights of zero, slots as before the first update.
  Dense(const Spec& spec, uint64_t trainable, uint64_t additive);

  char* weights() { return values_.data(); }
  const char* weights() const { return values_.data(); }
  char* slot(size_t s) { return values_.data() + weight_bytes_ + s * slot_bytes_; }
  const char* slot(size_t s) const { return values_.data() + weight_bytes_ + s * slot_bytes_; }
  size_t slots() const { return slots_; }
  size_t bytes() const { return values_.size(); }

 private:
  size_t weight_bytes_, slot_bytes_, slots_;
  std::vector<char> values_;
};

// Weights, slots and gradients are of spec().scalar.
class Model {
 public:
  // Zeros, with slots as before the first update.
  Model(Spec spec, uint32_t server, uint32_t servers);
  // `dense` has `count` values; throws UserError if that is not dense_size().
  Model(Spec spec, uint32_t server, uint32_t servers, const void* dense, uint64_t count);

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

  void copy_dense(void* out) const;
  // gradients: of dense_size() weights; the additive part is added.
  void apply_dense(const void* gradients, const StepContext& context);
  // Applies rows in pieces, so that pulls run in between.
  void apply_rows(size_t t, const int64_t* ids, size_t count, const void* gradients, const StepContext& context);

  // The present dense part; later updates do not change it.
  std::shared_ptr<const Dense> freeze_dense() const;
  // Only while no other thread uses the model (restoring).
  Dense& dense_being_restored() { return *dense_; }

  size_t rows() const;
  size_t memory_bytes() const;

 private:
  const Spec spec_;
  const uint32_t server_, servers_;
  const Range trainable_, additive_;
  mutable std::shared_mutex mutex_;  // guards dense_ and what it points to
  std::shared_ptr<Dense> dense_;
  std::vector<std::unique_ptr<Table>> tables_;
};

}  // namespace elasticdl::ps
