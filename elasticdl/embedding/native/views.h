// Frozen states of a table's rows: copy-on-write by row.
#pragma once
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "elasticdl/embedding/native/changes.h"
#include "elasticdl/embedding/native/mapping.h"
#include "elasticdl/embedding/native/rows.h"

namespace elasticdl {

// One frozen state: the first rows_ rows after step_ updates of the model. copies_ has the old values of rows written since,
// in private memory: a view ends with its process.
class View {
 public:
  View(const Rows& live, uint64_t step, const Changes& changed)
      : rows_(live.size()), step_(step), copies_(live.row_bytes(), live.tagged(), live.size() > live.chunk_rows()), changed_(changed),
        written_(live.size()) {}

  size_t rows() const { return rows_; }
  uint64_t step() const { return step_; }
  size_t copied_rows() const { return copies_.size(); }
  // Since the table's base, up to this view.
  const Changes& changed() const { return changed_; }
  // Since this view.
  const Changes& written() const { return written_; }

  // Where a row is as it was in this view.
  std::pair<const Rows*, uint32_t> find(const Rows& live, uint32_t row) const {
    const uint32_t place = places() == nullptr ? 0 : places()[row];
    return place == 0 ? std::pair(&live, row) : std::pair(&copies_, place - 1);
  }

  // Ahead of `preserve`: both are rarely in a cache.
  [[gnu::always_inline]] void prefetch(uint32_t row) const {
    if (row >= rows_) return;
    written_.prefetch(row);
    if (places() != nullptr) __builtin_prefetch(places() + row, 1);
  }

  // Must be called before a row is written.
  void preserve(const Rows& live, uint32_t row) {
    if (row >= rows_ || written_.has(row)) return;
    if (places() == nullptr) places_ = Mapping(rows_ * sizeof(uint32_t), rows_ * sizeof(uint32_t) >= Mapping::kHugePage);
    const uint32_t copy = copies_.next(live.id(row));
    std::memcpy(copies_.values(copy), live.values(row), live.row_bytes());
    if (live.tagged()) copies_.tag(copy) = live.tag(row);
    copies_.add_next();
    places()[row] = copy + 1;
    written_.add(row);
  }

  size_t memory_bytes() const { return copies_.memory_bytes() + places_.bytes() + changed_.memory_bytes() + written_.memory_bytes(); }

 private:
  // By row, the number of its copy + 1; 0: not copied. Null before the first one.
  uint32_t* places() const { return reinterpret_cast<uint32_t*>(places_.address()); }

  size_t rows_;
  uint64_t step_;
  Rows copies_;
  Mapping places_;
  Changes changed_, written_;
};

class Views {
 public:
  static constexpr int kViews = 8;

  void begin(int view, const Rows& live, uint64_t step, const Changes& changed) {
    if (view < 0 || view >= kViews) throw std::invalid_argument("view " + std::to_string(view) + ": expected 0 to 7");
    auto& place = views_[static_cast<size_t>(view)];
    if (place != nullptr) throw std::invalid_argument("view " + std::to_string(view) + " is already in use");
    begun_.reserve(kViews);
    place = std::make_unique<View>(live, step, changed);
    begun_.push_back(place.get());
  }

  // Takes a view out. Its memory may be large: the caller frees it when nobody waits. Null if there is none.
  std::unique_ptr<View> end(int view) {
    if (view < 0 || view >= kViews) return nullptr;
    std::unique_ptr<View> gone = std::move(views_[static_cast<size_t>(view)]);
    begun_.erase(std::remove(begun_.begin(), begun_.end(), gone.get()), begun_.end());
    return gone;
  }

  // Throws std::out_of_range.
  const View& at(int view) const {
    if (view < 0 || view >= kViews || views_[static_cast<size_t>(view)] == nullptr) throw std::out_of_range("there is no view " + std::to_string(view));
    return *views_[static_cast<size_t>(view)];
  }

  [[gnu::always_inline]] void prefetch(uint32_t row) const {
    for (const View* view : begun_) view->prefetch(row);
  }

  void preserve(const Rows& live, uint32_t row) {
    for (View* view : begun_) view->preserve(live, row);
  }

  size_t memory_bytes() const {
    size_t bytes = 0;
    for (const View* view : begun_) bytes += view->memory_bytes();
    return bytes;
  }

 private:
  std::array<std::unique_ptr<View>, kViews> views_;
  std::vector<View*> begun_;
};

}  // namespace elasticdl
