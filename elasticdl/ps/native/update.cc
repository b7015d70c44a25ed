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
  update.dense_squares.spans = cursor.array<wire::Span>(update.head.spans);
  update.dense_squares.count = update.head.spans;
  const uint64_t dense = update.head.dense_count;
  if (dense != 0 && dense != model.dense_size()) {
    throw UserError(std::to_string(dense) + " dense values for a slice of " + std::to_string(model.dense_size()));
  }
  if (const char* gradient = cursor.elements(dense, model.weight_bytes()); dense != 0) update.dense = gradient;
  check(update.dense_squares, dense != 0 ? model.trainable().size() : 0);
  update.dense_squares.values = cursor.elements(update.dense_squares.size(), model.weight_bytes());
  for (size_t t = 0; t < model.tables(); ++t) update.tables[t].gradients = cursor.elements(counts[t], model.row_bytes(t));
  for (size_t t = 0; t < model.tables(); ++t) {
    Rows& rows = update.tables[t];
    rows.squares = cursor.elements(Marks::count(rows.marks, rows.count), model.row_bytes(t));
  }
  cursor.end();
  return update;
}

void Update::check(const DenseSquares& squares, uint64_t trainable) {
  uint64_t before = 0;
  for (size_t i = 0; i < squares.count; ++i) {
    const auto [begin, end] = squares.spans[i];
    if (begin < before || end <= begin || end > trainable) {
      throw UserError("squares of dense weights " + std::to_string(begin) + " to " + std::to_string(end) + " of " + std::to_string(trainable));
    }
    before = end;
  }
}

uint64_t Update::DenseSquares::size() const {
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += spans[i].size();
  return sum;
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
