#include "elasticdl/ps/native/model.h"

#include "elasticdl/embedding/native/idle.h"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace elasticdl::ps {
namespace {

constexpr size_t kRowsAtOnce = 8192;
constexpr size_t kBlock = 256;  // with its slots and their undo it stays in the first-level cache

// Checks sizes before any allocation: a frame of 200 bytes may name gigabytes.
Spec with_values(Spec spec, uint32_t server, uint32_t servers, uint64_t count) {
  const uint64_t size = even_slice(spec.trainable, server, servers).size() + even_slice(spec.additive, server, servers).size();
  if (count != size) throw UserError(std::to_string(count) + " dense values for a slice of " + std::to_string(size));
  return spec;
}

uint64_t blocks_of(uint64_t size) { return (size + kBlock - 1) / kBlock; }

Memory* memory_of(KeptState* kept) { return kept == nullptr ? nullptr : &kept->memory(); }

}  // namespace

Region Dense::take(KeptState* kept, size_t bytes) {
  return backed(take_region(memory_of(kept), {Use::DENSE, 0, 0}, std::max<size_t>(bytes, 1), bytes >= 2 * Mapping::kHugePage), bytes);
}

Dense::Dense(const Spec& spec, uint64_t trainable, uint64_t additive, Region left)
    : weight_bytes_((trainable + additive) * bytes_of(spec.scalar)), slot_bytes_(trainable * bytes_of(spec.scalar)),
      slots_(static_cast<size_t>(spec.optimizer.slots())), memory_(std::move(left)) {
  if (memory_.bytes() < bytes()) throw Corrupted("its dense weights are of another size");
}

Dense::Dense(const Spec& spec, uint64_t trainable, uint64_t additive, KeptState* kept)
    : weight_bytes_((trainable + additive) * bytes_of(spec.scalar)), slot_bytes_(trainable * bytes_of(spec.scalar)),
      slots_(static_cast<size_t>(spec.optimizer.slots())), memory_(take(kept, bytes())) {
  for (size_t s = 0; s < slots_; ++s) initialise_slot(spec.optimizer, spec.scalar, static_cast<int>(s), trainable, slot(s));
}

Dense::Dense(const Dense& other, KeptState* kept)
    : weight_bytes_(other.weight_bytes_), slot_bytes_(other.slot_bytes_), slots_(other.slots_), memory_(take(kept, other.bytes())) {
  std::memcpy(memory_.address(), other.memory_.address(), bytes());
}

Dense::~Dense() {
  if (replaced_) memory_.release();
}

Model::Model(Spec spec, uint32_t server, uint32_t servers, const void* dense, uint64_t count, KeptState* kept)
    : Model(with_values(std::move(spec), server, servers, count), server, servers, kept) {
  if (count > 0) std::memcpy(dense_->weights(), dense, dense_bytes());
}

Model::Model(Spec spec, uint32_t server, uint32_t servers, KeptState* kept)
    : spec_(std::move(spec)), server_(server), servers_(servers), trainable_(even_slice(spec_.trainable, server, servers)),
      additive_(even_slice(spec_.additive, server, servers)), kept_(kept), update_(update_of(spec_.optimizer, spec_.scalar)) {
  if (kept != nullptr && kept->dense() != 0) {
    dense_ = std::make_shared<Dense>(spec_, trainable_.size(), additive_.size(), kept->memory().held_at(kept->dense()));
  } else {
    dense_ = std::make_shared<Dense>(spec_, trainable_.size(), additive_.size(), kept);
    if (kept != nullptr) kept->keep_dense(dense_->offset());
  }
  open_undo();
  const auto idle = std::make_shared<const IdleSteps>(spec_.optimizer);
  for (size_t t = 0; t < spec_.tables.size(); ++t) {
    const TableShape& table = spec_.tables[t];
    tables_.push_back(std::make_unique<Table>(static_cast<int>(table.dim), table.initializer, spec_.optimizer, table.seed, spec_.scalar,
                                              memory_of(kept), static_cast<uint32_t>(t), idle));
  }
}

void Model::open_undo() {
  if (kept_ == nullptr) return;
  const size_t bytes = sizeof(Undo) + kBlock * (1 + dense_->slots()) * weight_bytes();
  std::vector<Region> held = kept_->memory().held(Use::DENSE_UNDO, 0);
  undo_ = held.empty() ? kept_->memory().take({Use::DENSE_UNDO, 0, 0}, bytes, false) : std::move(held.front());
  if (undo_.bytes() < bytes) throw Corrupted("its dense weights are of another kind");
  undo_.back(0, bytes);
}

void Model::copy_dense(void* out) const {
  std::shared_lock lock(mutex_);
  std::memcpy(out, dense_->weights(), dense_bytes());
}

void Model::apply(const Update& update, const StepContext& context, Redo* redo) {
  Progress progress;
  if (redo != nullptr) progress = redo->progress();
  const Progress* counted = redo != nullptr ? &progress : nullptr;
  if (update.dense != nullptr) {
    apply_dense(update, context, counted);
    progress.first += blocks();
  }
  for (size_t t = 0; t < update.tables.size(); ++t) {
    apply_rows(t, update.tables[t], context, counted);
    progress.first += update.tables[t].count;
  }
  advance(context.step, context.learning_rate);
}

void Model::advance(int64_t step, double learning_rate) {
  for (const auto& table : tables_) table->advance(static_cast<uint64_t>(step), learning_rate);
}

void Model::require_tables(uint32_t tables) const {
  if (tables == this->tables()) return;
  throw UserError("a frame with ids of " + std::to_string(tables) + " tables; the parameters have " + std::to_string(this->tables()));
}

void Model::begin_at(int64_t step) {
  for (const auto& table : tables_) table->begin_at(static_cast<uint64_t>(step));
}

uint64_t Model::blocks() const { return blocks_of(trainable_.size()) + blocks_of(additive_.size()); }

Model::Block Model::block(uint64_t number) const {
  const uint64_t before = blocks_of(trainable_.size());
  const bool additive = number >= before;
  const uint64_t begin = (additive ? number - before : number) * kBlock;
  return {additive, begin, std::min<uint64_t>(kBlock, (additive ? additive_ : trainable_).size() - begin)};
}

void Model::apply_dense(const Update& update, const StepContext& context, const Progress* progress) {
  std::unique_lock lock(mutex_);
  // A view may still read the old values: it keeps them, and updates continue on a copy.
  if (dense_.use_count() > 1) {
    auto copy = std::make_shared<Dense>(*dense_, kept_);
    if (kept_ != nullptr) kept_->keep_dense(copy->offset());
    dense_->replaced();
    dense_ = std::move(copy);
  }
  const Constants constants = constants_of(spec_.optimizer, context, spec_.scalar);
  if (progress == nullptr) {
    write_block({false, 0, trainable_.size()}, constants, update);
    return write_block({true, 0, additive_.size()}, constants, update);
  }
  Undo& undo = *reinterpret_cast<Undo*>(undo_.address());
  undo.begin(progress->serial);
  for (uint64_t number = *progress->done - std::min(*progress->done, progress->first); number < blocks(); ++number) {
    const Block block = this->block(number);
    char* to = undo.values();
    each_array(block, [&](char* values, size_t bytes) {
      std::memcpy(to, values, bytes);
      to += bytes;
    });
    undo.set(progress->first + number + 1, number);
    write_block(block, constants, update);
    in_order();
    *progress->done = progress->first + number + 1;
    in_order();
  }
}

template <class Visit>
void Model::each_array(const Block& block, Visit visit) {
  const size_t at = block.begin * weight_bytes(), bytes = block.size * weight_bytes();
  visit(dense_->weights() + (block.additive ? trainable_.size() * weight_bytes() : 0) + at, bytes);
  for (size_t s = 0; s < dense_->slots() && !block.additive; ++s) visit(dense_->slot(s) + at, bytes);
}

void Model::write_block(const Block& block, const Constants& constants, const Update& update) {
  if (!block.additive) {
    return update.dense_squares.each_piece(block.begin, block.size, weight_bytes(), [&](uint64_t begin, uint64_t size, const char* squares) {
      const size_t at = begin * weight_bytes();
      const auto slot = [&](size_t s) { return s < dense_->slots() ? dense_->slot(s) + at : nullptr; };
      update_(constants, size, dense_->weights() + at, slot(0), slot(1), slot(2), update.dense + at, squares);
    });
  }
  with_type(spec_.scalar, [&](auto zero) {
    using T = decltype(zero);
    T* sums = reinterpret_cast<T*>(dense_->weights()) + trainable_.size() + block.begin;
    const T* differences = reinterpret_cast<const T*>(update.dense) + trainable_.size() + block.begin;
    for (uint64_t i = 0; i < block.size; ++i) sums[i] += differences[i];
  });
}

void Model::apply_rows(size_t t, const Update::Rows& rows, const StepContext& context, const Progress* progress) {
  const uint64_t done = progress == nullptr ? 0 : *progress->done - std::min(*progress->done, progress->first);
  for (size_t begin = std::min<size_t>(done, rows.count); begin < rows.count; begin += kRowsAtOnce) {
    Progress here;
    if (progress != nullptr) here = {progress->serial, progress->done, progress->first + begin};
    tables_[t]->apply(rows.ids + begin, std::min(kRowsAtOnce, rows.count - begin), rows.gradients + begin * row_bytes(t), context,
                      SquaresReader(rows.marks, rows.squares, row_bytes(t), begin), progress == nullptr ? nullptr : &here);
  }
}

void Model::repair(const std::function<bool(uint64_t, uint64_t)>& torn) {
  Undo& undo = *reinterpret_cast<Undo*>(undo_.address());
  if (undo.mark != 0 && torn(undo.serial, undo.item())) {
    if (undo.place() >= blocks()) throw Corrupted("an undo of dense weights that are not there");
    const char* from = undo.values();
    each_array(block(undo.place()), [&](char* values, size_t bytes) {
      std::memcpy(values, from, bytes);
      from += bytes;
    });
  }
  undo.clear();
  for (const auto& table : tables_) table->repair(torn);
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
