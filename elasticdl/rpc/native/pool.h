// A worker's view of all servers: splits ids by owner, asks every server, puts rows back in order.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "elasticdl/rpc/native/encoding_choice.h"
#include "elasticdl/rpc/native/lane.h"
#include "elasticdl/rpc/native/packed_ids.h"
#include "elasticdl/rpc/native/row_squares.h"
#include "elasticdl/rpc/native/spec.h"

namespace elasticdl {

// Assigns ids to servers. With one server nothing is copied.
class Split {
 public:
  Split(uint32_t servers, const std::vector<Ids>& ids);

  uint32_t servers() const { return servers_; }
  size_t tables() const { return ids_.size(); }
  size_t count(uint32_t server, size_t table) const { return counts_[server * tables() + table]; }
  // Ids of one server and table, and their positions in the request (null: in request order).
  const int64_t* ids(uint32_t server, size_t table) const;
  const uint32_t* positions(uint32_t server, size_t table) const;

 private:
  void spread();

  uint32_t servers_;
  std::vector<Ids> ids_;
  std::vector<size_t> counts_;  // [server][table]
  std::vector<size_t> begins_;  // [server][table] into the arrays below
  Buffer grouped_;
  Buffer positions_;
};

// A server's two pieces of the flat vector [trainable | additive].
struct Slices {
  Range trainable, additive;
  Slices(const Spec& spec, uint32_t server, uint32_t servers)
      : trainable(even_slice(spec.trainable, server, servers)), additive(even_slice(spec.additive, server, servers)) {
    additive.begin += spec.trainable;
    additive.end += spec.trainable;
  }
  uint64_t size() const { return trainable.size() + additive.size(); }
};

struct PullAnswer {
  std::vector<int64_t> versions;
  std::vector<double> seconds;  // how long each server took
};
struct PushAnswer {
  std::vector<int64_t> versions;
  std::vector<int64_t> staleness;
  std::vector<double> seconds;    // how long each server took
  std::vector<Met> met;
  bool crowded = false;  // pushes that no checkpoint has fill half of their room
  size_t too_large = 0;  // if this one has no place in it, the bytes of its largest part
};
struct InitialiseAnswer {
  bool took;
  std::string json;
};
struct RowsPage {
  bool lost;       // the connection broke, and with it the frozen table: read it again from row 0
  uint64_t total;  // rows of the frozen table
  std::vector<int64_t> ids;
  std::vector<char> values;  // weights of the model's type
};

struct PushRequest {
  int64_t sequence, shard, attempt, offset;
  std::vector<int64_t> versions;
  double learning_rate;
  const void* dense;  // the whole flat vector or null
  std::vector<Ids> ids;
  std::vector<const void*> gradients = {};
  std::vector<RowSquares> squares = {};  // by table; empty: no id repeats
  std::vector<Range> spans = {};         // of the flat vector, in their order: where `dense` has squares
  const void* dense_squares = nullptr;
};

// The part of a push's dense squares that goes to one server.
struct SlicedSquares {
  SlicedSquares(const PushRequest& request, const Slices& slices, size_t width);
  std::vector<wire::Span> spans;  // of its slice
  std::vector<const char*> values;
};

// Of gradients, and of weights that need not be exact. `by_time`: full, or bfloat16 while that takes clearly less time, but not
// of a float64 model.
enum class Rounding { full, bfloat16, by_time };

// One puller and one pusher may use it at a time; `move`, `close` and `encodings` anyone. Weights are of the type of the spec.
class Pool {
 public:
  // `tls` null: clear text. `kept_bytes`: of pushes that are kept for servers that lose them; 0: none.
  Pool(std::vector<std::string> addresses, std::vector<std::string> tokens, std::string name, std::function<void()> idle,
       TlsContext tls = nullptr, Rounding rounding = Rounding::full, size_t kept_bytes = 0);
  // The same client with other servers, of which `first` is the index of the first. They know its pushes by its session, which
  // goes on. Call `adopt` before the first call but initialise().
  Pool(const Pool& before, std::vector<std::string> addresses, std::vector<std::string> tokens, uint32_t first, std::function<void()> idle);

  // Sets the spec of all later calls. Not while calls are running.
  void adopt(const Spec& spec);
  // The same, and gives it to servers that have no parameters.
  std::vector<InitialiseAnswer> initialise(const Spec& spec, const void* dense, double timeout_s);

  // `dense` (null: not wanted) gets the flat vector, rows[t] gets weight[ids[t].count, dim of t]. `newest`: dense
  // values for a server that came back without any, null for none. `exact`: in full precision, whatever that of the pool is.
  PullAnswer pull(const std::vector<Ids>& ids, int64_t snapshot, void* dense, const std::vector<void*>& rows,
                  const void* newest, double timeout_s, bool exact = false);
  PushAnswer push(const PushRequest& request, const void* newest, double timeout_s);
  // Has every server meet this client, and get again the pushes that it lacks.
  std::vector<Met> meet(const void* newest, double timeout_s);
  // Rows of one server's part of a table from `begin` on, in no particular order. A live table is frozen at begin 0.
  RowsPage rows(uint32_t server, uint32_t table, int64_t snapshot, uint64_t begin, const void* newest, double timeout_s);

  // What was met by calls that failed, before another pool follows this one. After the last call of `push` or `meet`.
  std::vector<Met> take_rest() { return pushes_.take_rest(); }

  void move(const std::vector<std::string>& addresses);
  void close();
  const Spec& spec() const { return spec_; }
  // Packs all frames in full precision or none of them, whatever is faster. Not while calls are running.
  void pack(bool always);
  // How pulls and pushes travel now.
  std::pair<Encoding, Encoding> encodings() const { return {encoding(pull_choice_.chosen()), encoding(push_choice_.chosen())}; }

 private:
  void check(const std::vector<std::string>& tokens) const;
  Seed seed(const void* newest) const;
  void check_tables(size_t tables) const;
  size_t weight_bytes() const { return bytes_of(spec_.scalar); }
  size_t plain_bytes(const std::vector<Ids>& ids, bool dense) const;
  // Of a request that need not be exact.
  Encoding encoding(Encoding chosen) const { return rounding_ == Rounding::bfloat16 ? Encoding::bfloat16 : chosen; }
  PullAnswer pull_plain(const std::vector<Ids>& ids, int64_t snapshot, void* dense, const std::vector<void*>& rows,
                        const void* newest, double timeout_s);
  PullAnswer pull_packed(const std::vector<Ids>& ids, int64_t snapshot, void* dense, const std::vector<void*>& rows,
                         const void* newest, double timeout_s, wire::Precision precision);
  PushAnswer push_plain(const PushRequest& request, const void* newest, double timeout_s);
  PushAnswer push_packed(const PushRequest& request, const void* newest, double timeout_s, wire::Precision precision);
  PushAnswer pushed(std::vector<Part>& parts, std::vector<wire::PushReply>& replies, const void* newest, double timeout_s);
  void pack_gradients(const PushRequest& request, uint32_t server, const std::vector<uint32_t>* const* places,
                      const SlicedSquares& dense_squares, const std::vector<GatheredSquares>& squares, wire::Precision precision, Buffer& room,
                      Part& part) const;
  // `places(t)`: of each row of table t in the frame of this server, its row in the request; null: the same.
  template <class Places>
  std::vector<GatheredSquares> squares_of(const PushRequest& request, const Split& split, uint32_t server, Places places) const {
    std::vector<GatheredSquares> all;
    for (size_t t = 0; t < split.tables(); ++t) {
      const RowSquares squares = request.squares.empty() ? RowSquares() : request.squares[t];
      const size_t rows = request.ids[t].count, count = split.count(server, t), row_bytes = spec_.tables[t].dim * weight_bytes();
      const uint32_t* from = places(t);
      // A server without rows of the table may have none, too.
      if (from == nullptr && count == rows) all.emplace_back(squares, rows, row_bytes);
      else all.emplace_back(squares, rows, row_bytes, count, from);
    }
    return all;
  }
  void gather(const Split& split, uint32_t server, const PushRequest& request, Buffer& room, Part& part) const;

  uint32_t servers_;
  const Rounding rounding_;
  Lane pulls_;
  Lane pushes_;
  EncodingChoice pull_choice_, push_choice_;
  std::atomic<int64_t> acknowledged_{0};  // the newest push that every server has; the next pool asks while a push is under way
  Spec spec_;
  std::string encoded_;
};

}  // namespace elasticdl
