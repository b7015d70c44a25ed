// A connection's requests over a slow link. A packed push becomes a plain one before anything else, as kept memory needs it.
#include <algorithm>
#include <cstring>

#include "elasticdl/ps/native/connection.h"
#include "elasticdl/rpc/native/packed_ids.h"
#include "elasticdl/rpc/native/packed_weights.h"

namespace elasticdl::ps {
namespace {

PackedIds take_ids(wire::Cursor& cursor, uint32_t tables, const Model& model) {
  model.require_tables(tables);
  return PackedIds(cursor, tables);
}

// They may begin anywhere in a frame.
template <class T>
std::vector<T> take_all(wire::Cursor& cursor, size_t count) {
  const char* from = cursor.elements(count, sizeof(T));
  std::vector<T> all(count);
  if (count > 0) std::memcpy(all.data(), from, count * sizeof(T));
  return all;
}

wire::Precision checked(wire::Precision precision) {
  if (precision == wire::Precision::full || precision == wire::Precision::bfloat16) return precision;
  throw UserError("a frame with weights of an unknown precision " + std::to_string(static_cast<uint32_t>(precision)));
}

// Throws UserError above the limit of a payload, before anything of that size is allocated.
class Size {
 public:
  void add(uint64_t count, uint64_t bytes) {
    if (count > (wire::kMaxPayload - bytes_) / bytes) throw UserError("a packed frame of more than 1 GiB");
    bytes_ += count * bytes;
  }
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t bytes_ = 0;
};

}  // namespace

Connection::Answer Connection::pull_packed(wire::Cursor cursor) {
  const auto begin = Clock::now();
  auto model = server_.model();
  const auto [request, precision, padding] = cursor.take<wire::PackedPull>();
  PackedIds ids = take_ids(cursor, request.tables, *model);
  cursor.end();
  auto view = request.snapshot >= 0 ? server_.views().get(request.snapshot) : nullptr;
  const wire::PullReply result{view ? view->version : server_.admission().version(), request.dense != 0 ? model->dense_size() : 0};
  PackedWeights weights(model->spec().scalar, checked(precision)), exact(model->spec().scalar, wire::Precision::full);
  Size size;
  size.add(result.dense_count, model->weight_bytes());
  size_t most = result.dense_count * model->weight_bytes();
  size_t bound = sizeof result + weights.bound(model->trainable().size()) + exact.bound(model->additive().size());
  std::vector<uint64_t> counts;
  for (size_t t = 0; t < model->tables(); ++t) {
    const size_t count = ids.count(t);
    size.add(count, model->row_bytes(t));
    const size_t bytes = count * model->row_bytes(t);
    counts.push_back(count);
    most = std::max(most, bytes);
    bound += weights.bound(bytes / model->weight_bytes());
  }
  const uint64_t all = bound + most + weights.scratch(most / model->weight_bytes()) + ids.bytes();
  if (all > kLarge) {
    if (!replies_.take(*this, all)) return Answer::wait;
    reply_share_ = all;
  }
  ids.unpack();
  char* const packed = packed_.room(bound);
  char* const plain = dense_.room(most + 1);
  char* at = packed;
  std::memcpy(at, &result, sizeof result);
  at += sizeof result;
  if (request.dense != 0) {
    if (view == nullptr) model->copy_dense(plain);
    const char* dense = view == nullptr ? plain : view->dense().weights();
    at += weights.pack(dense, model->trainable().size(), at);
    at += exact.pack(dense + model->trainable().size() * model->weight_bytes(), model->additive().size(), at);
  }
  for (size_t t = 0; t < model->tables(); ++t) {
    const std::vector<int64_t>& table_ids = ids.of(t);
    if (view != nullptr) model->table(t).peek(table_ids.data(), table_ids.size(), plain, view->slot());
    else model->table(t).lookup(table_ids.data(), table_ids.size(), plain);
    at += weights.pack(plain, table_ids.size() * model->spec().tables[t].dim, at);
  }
  dense_.trim(0);
  const size_t bytes = static_cast<size_t>(at - packed), tables = model->tables();
  reply_.begin(header_, wire::Status::ok, bytes);
  reply_.put(packed, bytes);
  // All rows are looked up; it counts when it has left.
  pulling_ = Pulling{std::move(model), nullptr, std::move(counts), {}, bytes, begin, tables};
  return Answer::reply;
}

// Writes what the same push has as a plain frame to where such frames are received. False if it has to wait for room first.
bool Connection::unpack_push(wire::Cursor cursor) {
  auto model = server_.model();
  auto [head, precision, padding] = cursor.take<wire::PackedPush>();
  PackedIds ids = take_ids(cursor, head.tables, *model);
  if (head.dense_count != 0 && head.dense_count != model->dense_size()) {
    throw UserError(std::to_string(head.dense_count) + " dense values for a slice of " + std::to_string(model->dense_size()));
  }
  Size size, values;
  size.add(1, sizeof head);
  size.add(head.tables, sizeof(uint64_t));
  size.add(head.dense_count, model->weight_bytes());
  values.add(head.dense_count, 1);
  uint64_t most = head.dense_count;
  std::vector<std::vector<uint64_t>> marks;
  for (size_t t = 0; t < model->tables(); ++t) {
    const uint64_t dim = model->spec().tables[t].dim, count = ids.count(t);
    marks.push_back(take_all<uint64_t>(cursor, Marks::words(count)));
    size.add(count, sizeof(int64_t) + model->row_bytes(t));
    size.add(marks[t].size(), sizeof(uint64_t));
    size.add(Marks::count(marks[t].data(), count), model->row_bytes(t));
    values.add(count + Marks::count(marks[t].data(), count), dim);
    most = std::max(most, count * dim);
  }
  const std::vector<wire::Span> spans = take_all<wire::Span>(cursor, head.spans);
  const Update::DenseSquares dense_squares(spans.data(), spans.size(), head.dense_count != 0 ? model->trainable().size() : 0);
  size.add(spans.size(), sizeof(wire::Span));
  size.add(dense_squares.size(), model->weight_bytes());
  values.add(dense_squares.size(), 1);
  // Each takes a byte or more. So the plain push is at most 16 times what was sent, also if all tables have the same ids.
  if (values.bytes() > cursor.left()) throw UserError("a packed push with fewer gradients than its ids say");
  PackedWeights weights(model->spec().scalar, checked(precision)), exact(model->spec().scalar, wire::Precision::full);
  // Spans and marks are copied, and spans have what is before each.
  uint64_t copied = spans.size() * (sizeof(wire::Span) + sizeof(uint64_t));
  for (const std::vector<uint64_t>& words : marks) copied += words.size() * sizeof(uint64_t);
  const uint64_t all = size.bytes() + ids.bytes() + copied + PackedWeights::scratch(most);
  if (all > kLarge) {
    if (!unpacking_.take(*this, all)) return false;
    unpacked_share_ = all;
  }
  ids.unpack();
  kept_ = session_ != 0 && server_.kept() != nullptr;
  if (kept_ && !redo_) redo_ = server_.kept()->take_redo();
  std::swap(payload_, packed_);  // what was received must outlive what it becomes
  char* const plain = kept_ ? redo_.room(size.bytes()) : payload_.room(size.bytes());
  char* at = plain;
  const auto put = [&](const void* from, size_t bytes) {
    if (bytes > 0) std::memcpy(at, from, bytes);
    at += bytes;
  };
  put(&head, sizeof head);
  for (size_t t = 0; t < model->tables(); ++t) {
    const uint64_t count = ids.count(t);
    put(&count, sizeof count);
  }
  for (size_t t = 0; t < model->tables(); ++t) put(ids.of(t).data(), ids.of(t).size() * sizeof(int64_t));
  for (const std::vector<uint64_t>& words : marks) put(words.data(), words.size() * sizeof(uint64_t));
  put(spans.data(), spans.size() * sizeof(wire::Span));
  const auto unpack = [&](PackedWeights& from, size_t count) {
    from.unpack(cursor, count, at);
    at += count * model->weight_bytes();
  };
  if (head.dense_count != 0) {
    unpack(weights, model->trainable().size());
    unpack(exact, model->additive().size());
  }
  for (const wire::Span& span : spans) unpack(weights, span.size());
  for (size_t t = 0; t < model->tables(); ++t) unpack(weights, ids.count(t) * model->spec().tables[t].dim);
  for (size_t t = 0; t < model->tables(); ++t) unpack(weights, Marks::count(marks[t].data(), ids.count(t)) * model->spec().tables[t].dim);
  cursor.end();
  if (unpacked_share_ == 0) packed_.trim(0);
  received_ = plain;
  received_bytes_ = size.bytes();
  unpacked_ = true;
  return true;
}

// A large push that has to wait is packed again meanwhile: whoever sends little must not hold much.
void Connection::drop_unpacked() {
  std::swap(payload_, packed_);
  packed_.trim(0);
  if (redo_) {
    redo_.trim(kRedoKept);
    redo_ = Redo();
  }
  received_ = payload_.data();
  received_bytes_ = header_.payload_bytes;
  unpacked_ = false;
  unpacking_.give_back(std::exchange(unpacked_share_, 0));
}

}  // namespace elasticdl::ps
