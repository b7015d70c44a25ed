#include "elasticdl/ps/native/model.h"

#include <algorithm>
#include <mutex>

namespace elasticdl::ps {
namespace {

constexpr size_t kRowsAtOnce = 8192;

std::vector<float*> pointers(Dense& dense) {
  std::vector<float*> slots;
  for (std::vector<float>& slot : dense.slots) slots.push_back(slot.data());
  return slots;
}

// Checks sizes before any allocation: a frame of 200 bytes may name gigabytes.
Spec with_values(Spec spec, uint32_t server, uint32_t servers, uint64_t count) {
  const uint64_t size = even_slice(spec.trainable, server, servers).size() + even_slice(spec.additive, server, servers).size();
  if (count != size) throw UserError(std::to_string(count) + " dense values for a slice of " + std::to_string(size));
  return spec;
}

}  // namespace

Model::Model(Spec spec, uint32_t server, uint32_t servers, const float* dense, uint64_t count)
    : Model(with_values(std::move(spec), server, servers, count), server, servers) {
  std::copy_n(dense, count, dense_->weights.data());
}

Model::Model(Spec spec, uint32_t server, uint32_t servers)
    : spec_(std::move(spec)), server_(server), servers_(servers), trainable_(even_slice(spec_.trainable, server, servers)),
      additive_(even_slice(spec_.additive, server, servers)), dense_(std::make_shared<Dense>()) {
  dense_->weights.resize(dense_size());
  dense_->slots.assign(static_cast<size_t>(spec_.optimizer.slots()), std::vector<float>(trainable_.size()));
  initialise_slots(spec_.optimizer, trainable_.size(), pointers(*dense_).data());
  for (const TableShape& table : spec_.tables) {
    tables_.push_back(std::make_unique<Table>(static_cast<int>(table.dim), table.initializer, spec_.optimizer, table.seed));
  }
}

void Model::copy_dense(float* out) const {
  std::shared_lock lock(mutex_);
  std::copy(dense_->weights.begin(), dense_->weights.end(), out);
}

void Model::apply_dense(const float* gradients, const StepContext& context) {
  std::unique_lock lock(mutex_);
  // A view may still read the old values: it keeps them, and updates continue on a copy.
  if (dense_.use_count() > 1) dense_ = std::make_shared<Dense>(*dense_);
  update_dense(spec_.optimizer, context, trainable_.size(), dense_->weights.data(), pointers(*dense_).data(), gradients);
  float* sums = dense_->weights.data() + trainable_.size();
  const float* differences = gradients + trainable_.size();
  for (uint64_t i = 0; i < additive_.size(); ++i) sums[i] += differences[i];
}

void Model::apply_rows(size_t t, const int64_t* ids, size_t count, const float* gradients, const StepContext& context) {
  const size_t dim = spec_.tables[t].dim;
  for (size_t begin = 0; begin < count; begin += kRowsAtOnce) {
    tables_[t]->apply(ids + begin, std::min(kRowsAtOnce, count - begin), gradients + begin * dim, context);
  }
}

std::shared_ptr<const Dense> Model::freeze_dense() const {
  std::unique_lock lock(mutex_);
  return dense_;
}

size_t Model::rows() const {
  size_t sum = 0;
  for (const auto& table : tables_) sum += table->rows();
  return sum;
}

size_t Model::memory_bytes() const {
  size_t sum = 0;
  for (const auto& table : tables_) sum += table->memory_bytes();
  std::shared_lock lock(mutex_);
  return sum + (dense_->weights.size() + dense_->slots.size() * trainable_.size()) * sizeof(float);
}

}  // namespace elasticdl::ps
