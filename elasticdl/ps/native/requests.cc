// A connection's replies to each kind of frame. Validates everything before the first byte of a reply.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "elasticdl/ps/native/connection.h"

namespace elasticdl::ps {
namespace {

constexpr uint64_t kRowsAtOnce = 64 << 10;
constexpr int64_t kMaxVersion = int64_t{1} << 62;  // leaves room to count updates from there

// Counts of ids by table, checked against the model.
std::vector<uint64_t> take_counts(wire::Cursor& cursor, uint32_t tables, const Model& model) {
  model.require_tables(tables);
  const uint64_t* counts = cursor.array<uint64_t>(tables);
  return std::vector<uint64_t>(counts, counts + tables);
}

std::vector<const int64_t*> take_ids(wire::Cursor& cursor, const std::vector<uint64_t>& counts) {
  std::vector<const int64_t*> ids;
  for (uint64_t count : counts) ids.push_back(cursor.array<int64_t>(count));
  return ids;
}

size_t sum(const std::vector<uint64_t>& counts) {
  size_t total = 0;
  for (uint64_t count : counts) total += count;
  return total;
}

}  // namespace

Connection::Answer Connection::initialise(wire::Cursor cursor) {
  auto request = cursor.take<wire::Initialise>();
  const uint64_t padded = (request.spec_bytes + 7) / 8 * 8;
  if (request.spec_bytes > cursor.left()) throw UserError("an initialise frame that makes no sense");
  if (request.version < 0 || request.version > kMaxVersion) {
    throw UserError("version " + std::to_string(request.version) + " to begin with: expected 0 to 2^62");
  }
  const char* spec_at = cursor.array<char>(padded);
  Spec spec = Spec::decode(spec_at, request.spec_bytes);
  const char* dense = cursor.elements(request.dense_count, bytes_of(spec.scalar));
  cursor.end();
  const bool took = server_.initialise(std::move(spec), dense, request.dense_count, request.version);
  const std::string& json = server_.model()->spec().json;
  wire::InitialiseReply result{took, static_cast<uint32_t>(json.size())};
  reply_.begin(header_, wire::Status::ok, sizeof result + json.size());
  reply_.put(&result, sizeof result);
  reply_.put(json.data(), json.size());
  return Answer::reply;
}

Connection::Answer Connection::pull(wire::Cursor cursor) {
  auto begin = Clock::now();
  auto model = server_.model();
  auto request = cursor.take<wire::Pull>();
  auto counts = take_counts(cursor, request.tables, *model);
  auto ids = take_ids(cursor, counts);
  cursor.end();
  auto view = request.snapshot >= 0 ? server_.views().get(request.snapshot) : nullptr;
  wire::PullReply result{view ? view->version : server_.admission().version(), request.dense != 0 ? model->dense_size() : 0};
  uint64_t weights = result.dense_count;
  for (size_t t = 0; t < counts.size(); ++t) weights += counts[t] * model->spec().tables[t].dim;
  const uint64_t bytes = sizeof result + weights * model->weight_bytes();
  if (bytes > wire::kMaxPayload) throw UserError("a pull of " + std::to_string(bytes) + " bytes; the limit is 1 GiB");

  const size_t dense_bytes = result.dense_count * model->weight_bytes();
  const char* dense = nullptr;
  if (dense_bytes > 0 && view == nullptr) {
    if (dense_bytes > kLarge) {
      if (!replies_.take(*this, dense_bytes)) return Answer::wait;
      reply_share_ = dense_bytes;
    }
    char* copy = dense_.room(dense_bytes);
    model->copy_dense(copy);
    dense = copy;
  } else if (dense_bytes > 0) {
    dense = view->dense().weights();
  }
  size_t widest = 0;
  for (size_t t = 0; t < counts.size(); ++t) widest = std::max(widest, model->row_bytes(t));
  reply_.begin(header_, wire::Status::ok, bytes, widest);
  reply_.put(&result, sizeof result);
  if (dense_bytes > 0) reply_.put(dense, dense_bytes);
  pulling_ = Pulling{std::move(model), std::move(view), std::move(counts), std::move(ids), bytes, begin};
  return Answer::reply;
}

// Looks up as many rows as there is room for: they are sent while they are still in the cache.
void Connection::put_rows() {
  Pulling& now = *pulling_;
  for (; now.table < now.counts.size(); ++now.table, now.row = 0) {
    const size_t row_bytes = now.model->row_bytes(now.table);
    const size_t at_once = std::max<size_t>(Reply::kPiece / row_bytes, 1);
    while (now.row < now.counts[now.table]) {
      const size_t rows = std::min<size_t>(at_once, now.counts[now.table] - now.row);
      if (!reply_.has_room(rows * row_bytes)) return;
      const int64_t* ids = now.ids[now.table] + now.row;
      char* out = reply_.piece(rows * row_bytes);
      if (now.view != nullptr) now.model->table(now.table).peek(ids, rows, out, now.view->slot());
      else now.model->table(now.table).lookup(ids, rows, out);
      now.row += rows;
    }
  }
}

void Connection::count_pull() {
  Statistics& statistics = server_.statistics();
  ++statistics.pulls;
  statistics.pulled_rows += sum(pulling_->counts);
  statistics.pulled_bytes += pulling_->bytes;
  statistics.pull_time.add(Clock::now() - pulling_->begin);
}

Connection::Answer Connection::push() {
  auto model = server_.model();
  const size_t bytes = received_bytes_;
  Update update = Update::read(received_, bytes, *model);
  const wire::Push& request = update.head;
  if (session_ == 0) throw UserError("this connection does not push");
  // Its parameters came between the two ends of the frame.
  if (server_.kept() != nullptr && !kept_) throw TransientError("this server was about to get its parameters");
  if (request.sequence < 1) throw UserError("push number " + std::to_string(request.sequence) + ": numbers begin at 1");
  // The server names it to the master in every later cut and fence, also when the worker is gone.
  if (request.shard < 0 || request.attempt < 0 || request.offset < 0) {
    throw UserError("a push of shard " + std::to_string(request.shard) + ", attempt " + std::to_string(request.attempt) + ", offset " +
                    std::to_string(request.offset) + ": expected numbers from 0");
  }
  PushStamp stamp{session_, request.sequence, {request.shard, request.attempt, request.offset}, request.version};
  const size_t rows = update.rows();
  auto begin = Clock::now();
  Statistics& statistics = server_.statistics();
  Outcome outcome;
  if (server_.config().turns > 0) {
    // The gradient keeps what it was received into; the next frame gets new room.
    Gradient gradient{stamp, std::move(update), bytes, std::move(payload_), std::move(redo_)};
    const std::optional<bool> staged = server_.steps().stage(name_, gradient, *this);
    if (!staged) {
      payload_ = std::move(gradient.buffer);
      redo_ = std::move(gradient.redo);
      return Answer::wait;
    }
    outcome.repeated = !*staged;
    outcome.version = server_.admission().version();
  } else {
    const std::optional<Outcome> pushed = server_.push(name_, stamp, update, bytes, kept_ ? &redo_ : nullptr, *this, begin);
    if (!pushed) return Answer::wait;
    outcome = *pushed;
  }
  if (outcome.repeated) {
    ++statistics.repeated_pushes;
  } else {
    ++statistics.pushes;
    statistics.pushed_rows += rows;
    statistics.pushed_bytes += header_.payload_bytes;
    statistics.count_staleness(outcome.staleness);
    statistics.push_time.add(Clock::now() - begin);
  }
  wire::PushReply result{outcome.version, outcome.staleness, outcome.repeated, 0, server_.admission().covered(name_)};
  reply_.begin(header_, wire::Status::ok, sizeof result);
  reply_.put(&result, sizeof result);
  return Answer::reply;
}

Connection::Answer Connection::rows(wire::Cursor cursor) {
  auto model = server_.model();
  auto request = cursor.take<wire::Rows>();
  cursor.end();
  if (request.table >= model->tables()) throw UserError("there is no table " + std::to_string(request.table));
  std::shared_ptr<View> view;
  if (request.snapshot >= 0) view = server_.views().get(request.snapshot);
  else if (request.begin == 0) view = look_ = server_.look();
  else view = look_;
  // A closed connection had frozen it: the client starts over.
  if (view == nullptr) return put_frozen_rows({1, 0}, 0);
  Table& table = model->table(request.table);
  const size_t width = table.row_bytes(), row_bytes = model->row_bytes(request.table);
  const uint64_t total = table.view_rows(view->slot()), left = total - std::min(request.begin, total);
  const size_t limit = std::min<uint64_t>({request.limit, left, kRowsAtOnce, wire::kMaxPayload / 4 / width});
  std::vector<int64_t>& ids = frozen_ids_;
  std::vector<char>& values = frozen_values_;
  ids.resize(limit);
  values.resize(limit * width);
  wire::RowsReply result{total, 0};
  result.count = table.read(view->slot(), request.begin, limit, ids.data(), values.data());
  for (size_t i = 0; i < result.count; ++i) std::memmove(values.data() + i * row_bytes, values.data() + i * width, row_bytes);
  if (request.begin + result.count >= result.total) look_.reset();
  return put_frozen_rows(result, row_bytes);
}

Connection::Answer Connection::put_frozen_rows(const wire::RowsReply& result, size_t row_bytes) {
  const size_t id_bytes = result.count * sizeof(int64_t), value_bytes = result.count * row_bytes;
  reply_.begin(header_, wire::Status::ok, sizeof result + id_bytes + value_bytes);
  reply_.put(&result, sizeof result);
  reply_.put(frozen_ids_.data(), id_bytes);
  reply_.put(frozen_values_.data(), value_bytes);
  return Answer::reply;
}

}  // namespace elasticdl::ps
