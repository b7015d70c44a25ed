// Pulls and pushes over a slow link.
#include <algorithm>

#include "elasticdl/rpc/native/packed_weights.h"
#include "elasticdl/rpc/native/pool.h"

namespace elasticdl {
namespace {

iovec piece(const std::string& bytes) { return {const_cast<char*>(bytes.data()), bytes.size()}; }

// The ids of one server's part of a request, packed, and where each row is in the caller's arrays.
class PackedTables {
 public:
  PackedTables(const Split& split, uint32_t server, const std::vector<Ids>& ids, wire::Writer& writer) {
    for (size_t t = 0; t < ids.size(); ++t) {
      const size_t like = static_cast<size_t>(std::find(ids.begin(), ids.end(), ids[t]) - ids.begin());
      like_.push_back(like);
      writer.put(static_cast<uint32_t>(like));
      places_.emplace_back();
      if (like == t) places_.back() = packed(split, server, t, writer);
    }
  }

  const std::vector<uint32_t>& places(size_t table) const { return places_[like_[table]]; }

 private:
  static std::vector<uint32_t> packed(const Split& split, uint32_t server, size_t table, wire::Writer& writer) {
    std::vector<uint32_t> places = pack_ids({split.ids(server, table), split.count(server, table)}, writer);
    if (const uint32_t* positions = split.positions(server, table); positions != nullptr) {
      for (uint32_t& place : places) place = positions[place];
    }
    return places;
  }

  std::vector<size_t> like_;
  std::vector<std::vector<uint32_t>> places_;
};

// copy(row in the frame, row in the caller's array). The sizes of most tables are known to the compiler.
template <class Copy>
void each_row(const std::vector<uint32_t>& places, size_t row_bytes, char* frame, char* array, Copy copy) {
  const auto all = [&](auto bytes) {
    for (size_t i = 0; i < places.size(); ++i) copy(frame + i * bytes, array + places[i] * bytes, bytes);
  };
  switch (row_bytes) {
    case 4: return all(std::integral_constant<size_t, 4>());
    case 32: return all(std::integral_constant<size_t, 32>());
    case 64: return all(std::integral_constant<size_t, 64>());
    default: return all(row_bytes);
  }
}

}  // namespace

PullAnswer Pool::pull_packed(const std::vector<Ids>& ids, int64_t snapshot, void* dense, const std::vector<void*>& rows,
                             const void* newest, double timeout_s, wire::Precision precision) {
  const Split split(servers_, ids);
  std::vector<Part> parts(servers_);
  std::vector<std::string> fronts(servers_);
  std::vector<PackedTables> tables;
  for (uint32_t k = 0; k < servers_; ++k) {
    wire::Writer front;
    front.put(wire::PackedPull{{snapshot, dense != nullptr, static_cast<uint32_t>(ids.size())}, precision, 0});
    tables.emplace_back(split, k, ids, front);
    fronts[k] = std::move(front.bytes());
    parts[k].server = k;
    parts[k].kind = wire::Kind::packed_pull;
    parts[k].payload.push_back(piece(fronts[k]));
  }
  pulls_.run(parts, seed(newest), timeout_s, "pull");
  PullAnswer answer;
  answer.seconds = pulls_.answered_s();
  PackedWeights weights(spec_.scalar, precision), exact(spec_.scalar, wire::Precision::full);
  Buffer room;
  for (uint32_t k = 0; k < servers_; ++k) {
    wire::Cursor cursor(parts[k].reply.data(), parts[k].reply_bytes);
    answer.versions.push_back(cursor.take<wire::PullReply>().version);
    if (dense != nullptr) {
      const Slices slices(spec_, k, servers_);
      weights.unpack(cursor, slices.trainable.size(), static_cast<char*>(dense) + slices.trainable.begin * weight_bytes());
      exact.unpack(cursor, slices.additive.size(), static_cast<char*>(dense) + slices.additive.begin * weight_bytes());
    }
    for (size_t t = 0; t < ids.size(); ++t) {
      const size_t dim = spec_.tables[t].dim, row_bytes = dim * weight_bytes();
      const std::vector<uint32_t>& places = tables[k].places(t);
      char* const frame = room.room(places.size() * row_bytes + 1);
      weights.unpack(cursor, places.size() * dim, frame);
      each_row(places, row_bytes, frame, static_cast<char*>(rows[t]), [](const char* from, char* to, size_t bytes) { std::memcpy(to, from, bytes); });
    }
    cursor.end();
  }
  return answer;
}

PushAnswer Pool::push_packed(const PushRequest& request, const void* newest, double timeout_s, wire::Precision precision) {
  const Split split(servers_, request.ids);
  std::vector<Part> parts(servers_);
  std::vector<std::string> fronts(servers_);
  std::vector<Buffer> rooms(servers_);
  std::vector<wire::PushReply> replies(servers_);
  for (uint32_t k = 0; k < servers_; ++k) {
    const Slices slices(spec_, k, servers_);
    const SlicedSquares dense(request, slices, weight_bytes());
    const wire::Push head{request.sequence, request.shard, request.attempt, request.offset, request.versions[k],
                          request.learning_rate, request.dense != nullptr ? slices.size() : 0,
                          static_cast<uint32_t>(split.tables()), static_cast<uint32_t>(dense.spans.size())};
    wire::Writer front;
    front.put(wire::PackedPush{head, precision, 0});
    const PackedTables tables(split, k, request.ids, front);
    const std::vector<GatheredSquares> squares = squares_of(request, split, k, [&](size_t t) { return tables.places(t).data(); });
    for (const GatheredSquares& one : squares) {
      for (uint64_t word : one.marks()) front.put(word);
    }
    for (const wire::Span& span : dense.spans) front.put(span);
    fronts[k] = std::move(front.bytes());
    parts[k].server = k;
    parts[k].kind = wire::Kind::packed_push;
    parts[k].sequence = request.sequence;
    parts[k].payload.push_back(piece(fronts[k]));
    parts[k].targets.push_back({reinterpret_cast<char*>(&replies[k]), sizeof replies[k], nullptr, 0});
    std::vector<const std::vector<uint32_t>*> places;
    for (size_t t = 0; t < split.tables(); ++t) places.push_back(&tables.places(t));
    pack_gradients(request, k, places.data(), dense, squares, precision, rooms[k], parts[k]);
  }
  return pushed(parts, replies, newest, timeout_s);
}

// places[t]: of table t.
void Pool::pack_gradients(const PushRequest& request, uint32_t server, const std::vector<uint32_t>* const* places,
                          const SlicedSquares& dense_squares, const std::vector<GatheredSquares>& squares, wire::Precision precision,
                          Buffer& room, Part& part) const {
  PackedWeights weights(spec_.scalar, precision), exact(spec_.scalar, wire::Precision::full);
  const Slices slices(spec_, server, servers_);
  size_t bound = weights.bound(slices.trainable.size()) + exact.bound(slices.additive.size()), most = 0;
  for (size_t t = 0; t < spec_.tables.size(); ++t) {
    bound += weights.bound(places[t]->size() * spec_.tables[t].dim) + weights.bound(squares[t].count() * spec_.tables[t].dim);
    most = std::max(most, places[t]->size() * spec_.tables[t].dim * weight_bytes());
  }
  for (const wire::Span& span : dense_squares.spans) bound += weights.bound(span.size());
  char* const begin = room.room(bound);
  char* at = begin;
  if (request.dense != nullptr && slices.size() > 0) {
    const char* dense = static_cast<const char*>(request.dense);
    at += weights.pack(dense + slices.trainable.begin * weight_bytes(), slices.trainable.size(), at);
    at += exact.pack(dense + slices.additive.begin * weight_bytes(), slices.additive.size(), at);
  }
  for (size_t i = 0; i < dense_squares.spans.size(); ++i) at += weights.pack(dense_squares.values[i], dense_squares.spans[i].size(), at);
  Buffer gathered;
  char* const frame = gathered.room(most + 1);
  for (size_t t = 0; t < spec_.tables.size(); ++t) {
    const size_t dim = spec_.tables[t].dim;
    // The caller's array is only read.
    char* const gradients = const_cast<char*>(static_cast<const char*>(request.gradients[t]));
    each_row(*places[t], dim * weight_bytes(), frame, gradients, [](char* to, const char* from, size_t bytes) { std::memcpy(to, from, bytes); });
    at += weights.pack(frame, places[t]->size() * dim, at);
  }
  for (size_t t = 0; t < squares.size(); ++t) at += weights.pack(squares[t].values(), squares[t].count() * spec_.tables[t].dim, at);
  part.payload.push_back({begin, static_cast<size_t>(at - begin)});
}

}  // namespace elasticdl
