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
  for (size_t t = 0; t < model.tables(); ++t) update.tables.push_back({cursor.array<int64_t>(counts[t]), counts[t], nullptr});
  const uint64_t dense = update.head.dense_count;
  if (dense != 0 && dense != model.dense_size()) {
    throw UserError(std::to_string(dense) + " dense values for a slice of " + std::to_string(model.dense_size()));
  }
  if (const char* gradient = cursor.elements(dense, model.weight_bytes()); dense != 0) update.dense = gradient;
  for (size_t t = 0; t < model.tables(); ++t) update.tables[t].gradients = cursor.elements(counts[t], model.row_bytes(t));
  cursor.end();
  return update;
}

size_t Update::rows() const {
  size_t sum = 0;
  for (const Rows& one : tables) sum += one.count;
  return sum;
}

}  // namespace elasticdl::ps
