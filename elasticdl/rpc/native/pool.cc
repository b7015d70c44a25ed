#include "elasticdl/rpc/native/pool.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>

namespace elasticdl {
namespace {

constexpr uint64_t kRowsAtOnce = 64 << 10;

template <class T>
iovec piece(const T* data, size_t count) {
  return {const_cast<T*>(data), count * sizeof(T)};
}

iovec piece(const std::string& bytes) { return piece(bytes.data(), bytes.size()); }

template <class T>
Target into(T* data, size_t count) {
  return {reinterpret_cast<char*>(data), count * sizeof(T), nullptr, 0};
}

// A part of a vector of weights of `bytes` each.
iovec piece(const void* weights, Range range, size_t bytes) {
  return piece(static_cast<const char*>(weights) + range.begin * bytes, range.size() * bytes);
}
Target into(void* weights, Range range, size_t bytes) { return into(static_cast<char*>(weights) + range.begin * bytes, range.size() * bytes); }

uint64_t random_session() {
  uint64_t session = 0;
  while (::getrandom(&session, sizeof session, 0) != sizeof session) {
  }
  return session;
}

Identity moved(Identity identity, const std::vector<std::string>& tokens, uint32_t first) {
  identity.tokens = tokens;
  identity.first = first;
  return identity;
}

wire::Precision precision_of(Encoding encoding) {
  return encoding == Encoding::bfloat16 ? wire::Precision::bfloat16 : wire::Precision::full;
}

class Deadline {
 public:
  explicit Deadline(double timeout_s) : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(timeout_s))) {}
  double left_s() const { return std::max(Seconds(end_ - Clock::now()).count(), 0.0); }

 private:
  using Clock = std::chrono::steady_clock;
  using Seconds = std::chrono::duration<double>;
  Clock::time_point end_;
};

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

Pool::Pool(std::vector<std::string> addresses, std::vector<std::string> tokens, std::string name, std::function<void()> idle,
           TlsContext tls, Rounding rounding, size_t kept_bytes)
    : servers_(static_cast<uint32_t>(addresses.size())), rounding_(rounding),
      pulls_(Identity{tokens, name, random_session(), false, tls}, addresses, idle),
      pushes_(Identity{tokens, name, random_session(), true, tls, 0, kept_bytes}, addresses, idle) {
  check(tokens);
}

Pool::Pool(const Pool& before, std::vector<std::string> addresses, std::vector<std::string> tokens, uint32_t first, std::function<void()> idle)
    : servers_(static_cast<uint32_t>(addresses.size())), rounding_(before.rounding_),
      pulls_(moved(before.pulls_.identity(), tokens, first), addresses, idle),
      pushes_(moved(before.pushes_.identity(), tokens, first), addresses, idle) {
  check(tokens);
  acknowledged_ = before.acknowledged_.load();
  pushes_.begin_after(acknowledged_);
}

void Pool::check(const std::vector<std::string>& tokens) const {
  if (servers_ == 0) throw UserError("no addresses of parameter servers");
  if (tokens.size() != servers_) {
    throw UserError(std::to_string(tokens.size()) + " tokens for " + std::to_string(servers_) + " parameter servers");
  }
}

Seed Pool::seed(const void* newest) const {
  if (newest == nullptr) return {};
  return {encoded_, static_cast<const char*>(newest), weight_bytes(), spec_.trainable, spec_.additive};
}

void Pool::check_tables(size_t tables) const {
  if (encoded_.empty()) throw UserError("initialise() comes before the first pull, push or rows");
  if (tables != spec_.tables.size()) {
    throw UserError("ids of " + std::to_string(tables) + " tables, the model has " + std::to_string(spec_.tables.size()));
  }
}

void Pool::adopt(const Spec& spec) {
  spec_ = spec;
  encoded_ = spec_.encode();
  const bool may_round = rounding_ == Rounding::by_time && spec_.scalar == Scalar::FLOAT32;
  for (EncodingChoice* choice : {&pull_choice_, &push_choice_}) choice->begin(may_round);
}

std::vector<InitialiseAnswer> Pool::initialise(const Spec& spec, const void* dense, double timeout_s) {
  adopt(spec);
  std::vector<Part> parts(servers_);
  std::vector<std::string> fronts(servers_);
  for (uint32_t k = 0; k < servers_; ++k) {
    Slices slices(spec_, k, servers_);
    wire::Writer front;
    front.put(wire::Initialise{0, encoded_.size(), slices.size()}).text(encoded_).align();
    fronts[k] = std::move(front.bytes());
    parts[k].server = k;
    parts[k].kind = wire::Kind::initialise;
    parts[k].payload = {piece(fronts[k]), piece(dense, slices.trainable, weight_bytes()), piece(dense, slices.additive, weight_bytes())};
  }
  pulls_.run(parts, Seed{}, timeout_s, "initialise");
  std::vector<InitialiseAnswer> answers;
  for (Part& part : parts) {
    wire::Cursor cursor(part.reply.data(), part.reply_bytes);
    auto reply = cursor.take<wire::InitialiseReply>();
    answers.push_back({reply.took != 0, cursor.text(reply.json_bytes)});
  }
  return answers;
}

// Of a pull or a push without the heads.
size_t Pool::plain_bytes(const std::vector<Ids>& ids, bool dense) const {
  size_t bytes = dense ? (spec_.trainable + spec_.additive) * weight_bytes() : 0;
  for (size_t t = 0; t < ids.size(); ++t) bytes += ids[t].count * (sizeof(int64_t) + spec_.tables[t].dim * weight_bytes());
  return bytes;
}

PullAnswer Pool::pull(const std::vector<Ids>& ids, int64_t snapshot, void* dense, const std::vector<void*>& rows,
                      const void* newest, double timeout_s, bool exact) {
  check_tables(ids.size());
  Encoding way = exact ? pull_choice_.next() : encoding(pull_choice_.next());
  if (exact && way == Encoding::bfloat16) way = Encoding::packed;
  const Stopwatch watch;
  PullAnswer answer = way == Encoding::plain ? pull_plain(ids, snapshot, dense, rows, newest, timeout_s)
                                             : pull_packed(ids, snapshot, dense, rows, newest, timeout_s, precision_of(way));
  pull_choice_.took(way, plain_bytes(ids, dense != nullptr), watch.seconds());
  return answer;
}

PullAnswer Pool::pull_plain(const std::vector<Ids>& ids, int64_t snapshot, void* dense, const std::vector<void*>& rows,
                            const void* newest, double timeout_s) {
  Split split(servers_, ids);
  std::vector<Part> parts(servers_);
  std::vector<std::string> fronts(servers_);
  std::vector<wire::PullReply> replies(servers_);
  for (uint32_t k = 0; k < servers_; ++k) {
    Slices slices(spec_, k, servers_);
    Part& part = parts[k];
    part.server = k;
    part.kind = wire::Kind::pull;
    part.targets.push_back(into(&replies[k], 1));
    if (dense != nullptr) {
      part.targets.push_back(into(dense, slices.trainable, weight_bytes()));
      part.targets.push_back(into(dense, slices.additive, weight_bytes()));
    }
    wire::Writer front;
    front.put(wire::Pull{snapshot, dense != nullptr, static_cast<uint32_t>(ids.size())});
    for (size_t t = 0; t < ids.size(); ++t) front.put<uint64_t>(split.count(k, t));
    fronts[k] = std::move(front.bytes());
    part.payload.push_back(piece(fronts[k]));
    for (size_t t = 0; t < ids.size(); ++t) {
      size_t row_bytes = spec_.tables[t].dim * weight_bytes(), count = split.count(k, t);
      part.payload.push_back(piece(split.ids(k, t), count));
      part.targets.push_back({static_cast<char*>(rows[t]), count * row_bytes, split.positions(k, t), row_bytes});
    }
  }
  pulls_.run(parts, seed(newest), timeout_s, "pull");
  PullAnswer answer;
  for (const wire::PullReply& reply : replies) answer.versions.push_back(reply.version);
  answer.seconds = pulls_.answered_s();
  return answer;
}

PushAnswer Pool::push(const PushRequest& request, const void* newest, double timeout_s) {
  check_tables(request.ids.size());
  if (request.versions.size() != servers_) throw UserError("a push needs the version of every server");
  const Encoding way = encoding(push_choice_.next());
  const Stopwatch watch;
  PushAnswer answer = way == Encoding::plain ? push_plain(request, newest, timeout_s)
                                             : push_packed(request, newest, timeout_s, precision_of(way));
  push_choice_.took(way, plain_bytes(request.ids, request.dense != nullptr), watch.seconds());
  return answer;
}

PushAnswer Pool::push_plain(const PushRequest& request, const void* newest, double timeout_s) {
  Split split(servers_, request.ids);
  std::vector<Part> parts(servers_);
  std::vector<std::string> fronts(servers_);
  std::vector<Buffer> gathered(servers_);
  std::vector<std::vector<GatheredSquares>> squares(servers_);
  std::vector<SlicedSquares> dense;
  std::vector<wire::PushReply> replies(servers_);
  for (uint32_t k = 0; k < servers_; ++k) {
    Slices slices(spec_, k, servers_);
    Part& part = parts[k];
    part.server = k;
    part.kind = wire::Kind::push;
    dense.emplace_back(request, slices, weight_bytes());
    part.sequence = request.sequence;
    part.targets.push_back(into(&replies[k], 1));
    wire::Writer front;
    front.put(wire::Push{request.sequence, request.shard, request.attempt, request.offset, request.versions[k],
                         request.learning_rate, request.dense != nullptr ? slices.size() : 0,
                         static_cast<uint32_t>(split.tables()), static_cast<uint32_t>(dense[k].spans.size())});
    for (size_t t = 0; t < split.tables(); ++t) front.put<uint64_t>(split.count(k, t));
    fronts[k] = std::move(front.bytes());
    part.payload.push_back(piece(fronts[k]));
    for (size_t t = 0; t < split.tables(); ++t) part.payload.push_back(piece(split.ids(k, t), split.count(k, t)));
    squares[k] = squares_of(request, split, k, [&](size_t t) { return split.positions(k, t); });
    for (const GatheredSquares& one : squares[k]) part.payload.push_back(piece(one.marks().data(), one.marks().size()));
    part.payload.push_back(piece(dense[k].spans.data(), dense[k].spans.size()));
    if (request.dense != nullptr) {
      part.payload.push_back(piece(request.dense, slices.trainable, weight_bytes()));
      part.payload.push_back(piece(request.dense, slices.additive, weight_bytes()));
    }
    for (size_t i = 0; i < dense[k].spans.size(); ++i) part.payload.push_back(piece(dense[k].values[i], dense[k].spans[i].size() * weight_bytes()));
    gather(split, k, request, gathered[k], part);
    for (const GatheredSquares& one : squares[k]) part.payload.push_back(piece(one.values(), one.bytes()));
  }
  return pushed(parts, replies, newest, timeout_s);
}

PushAnswer Pool::pushed(std::vector<Part>& parts, std::vector<wire::PushReply>& replies, const void* newest, double timeout_s) {
  pushes_.run(parts, seed(newest), timeout_s, "push");
  PushAnswer answer;
  answer.seconds = pushes_.answered_s();
  answer.met = pushes_.take_met();
  answer.crowded = pushes_.crowded();
  answer.too_large = pushes_.too_large();
  acknowledged_ = pushes_.acknowledged();
  for (const wire::PushReply& reply : replies) {
    answer.versions.push_back(reply.version);
    answer.staleness.push_back(reply.staleness);
  }
  return answer;
}

std::vector<Met> Pool::meet(const void* newest, double timeout_s) {
  check_tables(spec_.tables.size());
  pushes_.meet(seed(newest), timeout_s);
  return pushes_.take_met();
}

SlicedSquares::SlicedSquares(const PushRequest& request, const Slices& slices, size_t width) {
  const Range& mine = slices.trainable;
  const char* at = static_cast<const char*>(request.dense_squares);
  for (const Range& span : request.spans) {
    const uint64_t begin = std::max(span.begin, mine.begin), end = std::min(span.end, mine.end);
    if (begin < end) {
      spans.push_back({begin - mine.begin, end - mine.begin});
      values.push_back(at + (begin - span.begin) * width);
    }
    at += span.size() * width;
  }
}

// The gradients of one server's rows, contiguous.
void Pool::gather(const Split& split, uint32_t server, const PushRequest& request, Buffer& room, Part& part) const {
  size_t bytes = 0;
  for (size_t t = 0; t < split.tables(); ++t) bytes += split.count(server, t) * spec_.tables[t].dim * weight_bytes();
  char* out = split.servers() == 1 ? nullptr : room.room(bytes + 1);
  for (size_t t = 0; t < split.tables(); ++t) {
    const size_t row_bytes = spec_.tables[t].dim * weight_bytes(), count = split.count(server, t);
    const uint32_t* positions = split.positions(server, t);
    const char* gradients = static_cast<const char*>(request.gradients[t]);
    if (positions == nullptr) {
      part.payload.push_back(piece(gradients, count * row_bytes));
      continue;
    }
    for (size_t i = 0; i < count; ++i) std::memcpy(out + i * row_bytes, gradients + positions[i] * row_bytes, row_bytes);
    part.payload.push_back(piece(out, count * row_bytes));
    out += count * row_bytes;
  }
}

RowsPage Pool::rows(uint32_t server, uint32_t table, int64_t snapshot, uint64_t begin, const void* newest, double timeout_s) {
  check_tables(spec_.tables.size());
  if (table >= spec_.tables.size()) throw UserError("there is no table " + std::to_string(table));
  if (server >= servers_) throw UserError("there is no server " + std::to_string(server));
  std::vector<Part> parts(1);
  wire::Rows request{snapshot, table, 0, begin, kRowsAtOnce};
  parts[0].server = server;
  parts[0].kind = wire::Kind::rows;
  parts[0].payload.push_back(piece(&request, 1));
  pulls_.run(parts, seed(newest), timeout_s, "rows");
  wire::Cursor cursor(parts[0].reply.data(), parts[0].reply_bytes);
  auto reply = cursor.take<wire::RowsReply>();
  const int64_t* ids = cursor.array<int64_t>(reply.count);
  const size_t row_bytes = spec_.tables[table].dim * weight_bytes();
  const char* values = cursor.elements(reply.count, row_bytes);
  // Callers ask for rows that are there, so only a connection without the frozen table has none.
  return {reply.count == 0 && begin > 0, reply.total, {ids, ids + reply.count}, {values, values + reply.count * row_bytes}};
}

void Pool::pack(bool always) {
  for (EncodingChoice* choice : {&pull_choice_, &push_choice_}) choice->give(always ? Encoding::packed : Encoding::plain);
}

void Pool::move(const std::vector<std::string>& addresses) {
  if (addresses.size() != servers_) {
    throw UserError(std::to_string(addresses.size()) + " addresses for " + std::to_string(servers_) + " servers");
  }
  pulls_.move(addresses);
  pushes_.move(addresses);
}

void Pool::close() {
  pulls_.close();
  pushes_.close();
}

}  // namespace elasticdl
