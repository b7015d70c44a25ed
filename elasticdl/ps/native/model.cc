#include "elasticdl/ps/native/model.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "elasticdl/embedding/native/rule.h"

namespace elasticdl::ps {
namespace {

constexpr size_t kRowsAtOnce = 8192;

// Checks sizes before any allocation: a frame of 200 bytes may name gigabytes.
Spec with_values(Spec spec, uint32_t server, uint32_t servers, uint64_t count) {
  const uint64_t size = even_slice(spec.trainable, server, servers).size() + even_slice(spec.additive, server, servers).size();
  if (count != size) throw UserError(std::to_string(count) + " dense values for a slice of " + std::to_string(size));
  return spec;
}

}  // namespace

Dense::Dense(const Spec& spec, uint64_t trainable, uint64_t additive)
    : weight_bytes_((trainable + additive) * bytes_of(spec.scalar)), slot_bytes_(trainable * bytes_of(spec.scalar)),
      slots_(static_cast<size_t>(spec.optimizer.slots())), values_(weight_bytes_ + slots_ * slot_bytes_) {
  for (size_t s = 0; s < slots_; ++s) initialise_slot(spec.optimizer, spec.scalar, static_cast<int>(s), trainable, slot(s));
}

Model::Model(Spec spec, uint32_t server, uint32_t servers, const void* dense, uint64_t count)
    : Model(with_values(std::move(spec), server, servers, count), server, servers) {
  if (count > 0) std::memcpy(dense_->weights(), dense, dense_bytes());
}

Model::Model(Spec spec, uint32_t server, uint32_t servers)
    : spec_(std::move(spec)), server_(server), servers_(servers), trainable_(even_slice(spec_.trainable, server, servers)),
      additive_(even_slice(spec_.additive, server, servers)), dense_(std::make_shared<Dense>(spec_, trainable_.size(), additive_.size())) {
  for (const TableShape& table : spec_.tables) {
    tables_.push_back(std::make_unique<Table>(static_cast<int>(table.dim), table.initializer, spec_.optimizer, table.seed, spec_.scalar));
  }
}

void Model::copy_dense(void* out) const {
  std::shared_lock lock(mutex_);
  std::memcpy(out, dense_->weights(), dense_bytes());
}

void Model::apply_dense(const void* gradients, const StepContext& context) {
  std::unique_lock lock(mutex_);
  // A view may still read the old values: it keeps them, and updates continue on a copy.
  if (dense_.use_count() > 1) dense_ = std::make_shared<Dense>(*dense_);
  std::vector<void*> slots;
  for (size_t s = 0; s < dense_->slots(); ++s) slots.push_back(dense_->slot(s));
  update_dense(spec_.optimizer, spec_.scalar, context, trainable_.size(), dense_->weights(), slots.data(), gradients);
  with_type(spec_.scalar, [&](auto zero) {
    using T = decltype(zero);
    T* sums = reinterpret_cast<T*>(dense_->weights()) + trainable_.size();
    const T* differences = static_cast<const T*>(gradients) + trainable_.size();
    for (uint64_t i = 0; i < additive_.size(); ++i) sums[i] += differences[i];
  });
}

void Model::apply_rows(size_t t, const int64_t* ids, size_t count, const void* gradients, const StepContext& context) {
  const char* sums = static_cast<const char*>(gradients);
  for (size_t begin = 0; begin < count; begin += kRowsAtOnce) {
    tables_[t]->apply(ids + begin, std::min(kRowsAtOnce, count - begin), sums + begin * row_bytes(t), context);
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
  return sum + dense_->bytes();
}

}  // namespace elasticdl::ps
