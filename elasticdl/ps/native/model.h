// The parameters that one server holds: a slice of the dense weights with optimizer slots, and its rows of each table.
#pragma once

#include <memory>
#include <shared_mutex>
#include <vector>

#include "elasticdl/embedding/native/table.h"
#include "elasticdl/rpc/native/spec.h"

namespace elasticdl::ps {

// Slices of the flat vector: `weights` is [trainable | additive], `slots` optimizer.slots() arrays of trainable.size().
struct Dense {
  std::vector<float> weights;
  std::vector<std::vector<float>> slots;
};

class Model {
 public:
  // Zeros, with slots as before the first update.
  Model(Spec spec, uint32_t server, uint32_t servers);
  // `dense` has `count` values; throws UserError if that is not dense_size().
  Model(Spec spec, uint32_t server, uint32_t servers, const float* dense, uint64_t count);

  const Spec& spec() const { return spec_; }
  uint32_t server() const { return server_; }
  uint32_t servers() const { return servers_; }
  Range trainable() const { return trainable_; }
  Range additive() const { return additive_; }
  uint64_t dense_size() const { return trainable_.size() + additive_.size(); }

  Table& table(size_t t) { return *tables_[t]; }
  const Table& table(size_t t) const { return *tables_[t]; }
  size_t tables() const { return tables_.size(); }

  void copy_dense(float* out) const;
  // gradients: float32[dense_size()]; the additive part is added.
  void apply_dense(const float* gradients, const StepContext& context);
  // Applies rows in pieces, so that pulls run in between.
  void apply_rows(size_t t, const int64_t* ids, size_t count, const float* gradients, const StepContext& context);

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
