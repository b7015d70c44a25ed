// Frozen states of a table's rows: copy-on-write by row.
#pragma once
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "elasticdl/embedding/native/changes.h"
#include "elasticdl/embedding/native/rows.h"

namespace elasticdl {

// One frozen state: the first rows_ rows after step_ updates of the model. copies_ has the old values of rows written since,
// in private memory: a view ends with its process.
class View {
 public:
  View(const Rows& live, uint64_t step, const Changes& changed)
      : rows_(live.size()), step_(step), copies_(live.row_bytes(), live.tagged()), changed_(changed), written_(live.size()) {}

  size_t rows() const { return rows_; }
  uint64_t step() const { return step_; }
  // Since the table's base, up to this view.
  const Changes& changed() const { return changed_; }
  // Since this view.
  const Changes& written() const { return written_; }

  // Where a row is as it was in this view.
  std::pair<const Rows*, uint32_t> find(const Rows& live, uint32_t row) const {
    const uint32_t place = this->place(live, row);
    return place == 0 ? std::pair(&live, row) : std::pair(&copies_, place - 1);
  }

  // Must be called before a row is written.
  void preserve(const Rows& live, uint32_t row) {
    if (row >= rows_ || place(live, row) != 0) return;
    if (places_.empty()) places_.resize(live.chunk(static_cast<uint32_t>(rows_ - 1)) + 1);
    auto& chunk = places_[live.chunk(row)];
    if (chunk == nullptr) {
      chunk = std::make_unique<uint32_t[]>(live.chunk_rows());
      place_bytes_ += live.chunk_rows() * sizeof(uint32_t);
    }
    const uint32_t copy = copies_.next(live.id(row));
    std::memcpy(copies_.values(copy), live.values(row), live.row_bytes());
    if (live.tagged()) copies_.tag(copy) = live.tag(row);
    copies_.add_next();
    written_.add(row);
    chunk[live.within(row)] = copy + 1;
  }

  size_t memory_bytes() const { return copies_.memory_bytes() + place_bytes_ + changed_.memory_bytes() + written_.memory_bytes(); }

 private:
  // Number of the row's copy + 1; 0: not copied.
  uint32_t place(const Rows& live, uint32_t row) const {
    if (places_.empty()) return 0;
    const auto& chunk = places_[live.chunk(row)];
    return chunk == nullptr ? 0 : chunk[live.within(row)];
  }

  size_t rows_;
  uint64_t step_;
  Rows copies_;
  std::vector<std::unique_ptr<uint32_t[]>> places_;  // by the live rows' chunks, made when first needed
  size_t place_bytes_ = 0;
  Changes changed_, written_;
};

class Views {
 public:
  static constexpr int kViews = 8;

  void begin(int view, const Rows& live, uint64_t step, const Changes& changed) {
    if (view < 0 || view >= kViews) throw std::invalid_argument("view " + std::to_string(view) + ": expected 0 to 7");
    if (views_[static_cast<size_t>(view)]) throw std::invalid_argument("view " + std::to_string(view) + " is already in use");
    views_[static_cast<size_t>(view)].emplace(live, step, changed);
    ++begun_;
  }

  void end(int view) {
    if (view < 0 || view >= kViews || !views_[static_cast<size_t>(view)]) return;
    views_[static_cast<size_t>(view)].reset();
    --begun_;
  }

  // Throws std::out_of_range.
  const View& at(int view) const {
    if (view < 0 || view >= kViews || !views_[static_cast<size_t>(view)]) throw std::out_of_range("there is no view " + std::to_string(view));
    return *views_[static_cast<size_t>(view)];
  }

  void preserve(const Rows& live, uint32_t row) {
    if (begun_ == 0) return;
    for (auto& view : views_) {
      if (view) view->preserve(live, row);
    }
  }

  size_t memory_bytes() const {
    size_t bytes = 0;
    for (const auto& view : views_) bytes += view ? view->memory_bytes() : 0;
    return bytes;
  }

 private:
  std::array<std::optional<View>, kViews> views_;
  int begun_ = 0;
};

}  // namespace elasticdl
