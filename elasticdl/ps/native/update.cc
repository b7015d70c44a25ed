#include "elasticdl/ps/native/update.h"

#include <string>

#include "elasticdl/ps/native/model.h"

namespace elasticdl::ps {

Update Update::read(const char* payload, size_t bytes, const Model& model) {
  wire::Cursor cursor(payload, bytes);
  Update update;
  update.head = cursor.take<wire::Push>();
  model.require_tables(update.head.tables);
  const uint64_t* counts = cursor.array<uint64_t>(model.tables());
  for (size_t t = 0; t < model.tables(); ++t) update.tables.push_back({cursor.array<int64_t>(counts[t]), counts[t], nullptr, nullptr, nullptr});
  for (Rows& rows : update.tables) rows.marks = cursor.array<uint64_t>(Marks::words(rows.count));
  const wire::Span* spans = cursor.array<wire::Span>(update.head.spans);
  const uint64_t dense = update.head.dense_count;
  if (dense != 0 && dense != model.dense_size()) {
    throw UserError(std::to_string(dense) + " dense values for a slice of " + std::to_string(model.dense_size()));
  }
  if (const char* gradient = cursor.elements(dense, model.weight_bytes()); dense != 0) update.dense = gradient;
  update.dense_squares = DenseSquares(spans, update.head.spans, dense != 0 ? model.trainable().size() : 0);
  update.dense_squares.values = cursor.elements(update.dense_squares.size(), model.weight_bytes());
  for (size_t t = 0; t < model.tables(); ++t) update.tables[t].gradients = cursor.elements(counts[t], model.row_bytes(t));
  for (size_t t = 0; t < model.tables(); ++t) {
    Rows& rows = update.tables[t];
    rows.squares = cursor.elements(Marks::count(rows.marks, rows.count), model.row_bytes(t));
  }
  cursor.end();
  return update;
}

Update::DenseSquares::DenseSquares(const wire::Span* spans, size_t count, uint64_t trainable) : spans(spans), count(count), before(count + 1) {
  uint64_t last = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto [begin, end] = spans[i];
    if (begin < last || end <= begin || end > trainable) {
      throw UserError("squares of dense weights " + std::to_string(begin) + " to " + std::to_string(end) + " of " + std::to_string(trainable));
    }
    last = end;
    before[i + 1] = before[i] + spans[i].size();
  }
}

bool Update::DenseSquares::same_spans(const DenseSquares& other) const {
  return std::equal(spans, spans + count, other.spans, other.spans + other.count,
                    [](const wire::Span& a, const wire::Span& b) { return a.begin == b.begin && a.end == b.end; });
}

size_t Update::rows() const {
  size_t sum = 0;
  for (const Rows& one : tables) sum += one.count;
  return sum;
}

}  // namespace elasticdl::ps
