// The frames of the bulk plane: a fixed header, then a payload whose layout depends on the kind. See
// docs/adr/0003-wire-format.md. Everything is little-endian; sections that hold int64 begin at multiples of 8. `weight` is
// float32 or float64, as the spec says; sections of weights that are float64 begin at multiples of 8, too.
//
// Input is not trusted: `Cursor` checks every step against the end of the payload.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "elasticdl/rpc/native/errors.h"
#include "elasticdl/rpc/native/sha256.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire format is written by memcpy on little-endian machines only"
#endif

namespace elasticdl::wire {

constexpr uint32_t kMagic = 0x314C4445;  // "EDL1"
constexpr uint16_t kVersion = 6;
constexpr uint64_t kMaxPayload = uint64_t{1} << 30;
constexpr uint64_t kMaxHello = 4096;
constexpr uint32_t kMaxTables = 4096;

enum class Kind : uint8_t { hello = 1, initialise = 2, pull = 3, push = 4, rows = 5, prove = 6, packed_pull = 7, packed_push = 8 };
enum class Precision : uint32_t { full = 0, bfloat16 = 1 };
enum class Status : uint8_t { ok = 0, user = 1, transient = 2, refused = 3, empty = 4, gone = 5 };

struct Header {
  uint32_t magic = kMagic;
  uint16_t version = kVersion;
  Kind kind = Kind::hello;
  Status status = Status::ok;
  uint64_t request = 0;
  uint64_t payload_bytes = 0;
};
static_assert(sizeof(Header) == 24);

// The first frame of a connection, followed by the sender's name. See greeting.h.
struct Hello {
  uint64_t session;  // random per client object: each session numbers its pushes separately
  Digest nonce;      // random per connection
  uint32_t name_bytes;
  uint32_t pushes;  // 1: this connection may carry pushes
  int64_t last;     // the session's last push that this server, or one before it, has acknowledged
  uint64_t kept;    // 1: the newest ones up to `last` come again if the server takes them
};
static_assert(sizeof(Hello) == 64);
struct Challenge {
  Digest nonce;
  Digest proof;  // of the server; the client's is the payload of its second frame
};
static_assert(sizeof(Challenge) == 64);
struct HelloReply {
  uint64_t instance;  // random per server process
  int64_t version;
  uint32_t server;
  uint32_t servers;
  uint32_t has_state;
  uint32_t replays;  // 1: it began with a checkpoint, and takes again the pushes that came after
  int64_t sequence;  // of the session's last push that it has
};

// Followed by the spec (see Spec::encode), padded to 8, then weight[dense_count]: trainable slice, additive slice.
struct Initialise {
  int64_t version;  // the version to count from
  uint64_t spec_bytes;
  uint64_t dense_count;
};
struct InitialiseReply {
  uint32_t took;
  uint32_t json_bytes;  // the server's spec as JSON follows
};

// Followed by uint64 counts[tables], then int64 ids of table 0, 1, ….
struct Pull {
  int64_t snapshot;  // -1: the live parameters
  uint32_t dense;
  uint32_t tables;
};
// Followed by weight[dense_count], then rows (weights) of table 0, 1, … in the order of the ids.
struct PullReply {
  int64_t version;
  uint64_t dense_count;
};

// Part of a server's trainable slice whose squares a push has: an embedding that is no table. Not empty, and in their order.
struct Span {
  uint64_t begin;
  uint64_t end;
  uint64_t size() const { return end - begin; }
};

// Followed by uint64 counts[tables], int64 ids of every table, uint64 marks of every table's ids, Span[spans], weight[dense_count],
// squares (weights) of every span, gradients (weights) of every table, squares of the marked ids of every table. See
// embedding/native/squares.h.
struct Push {
  int64_t sequence;
  int64_t shard;
  int64_t attempt;
  int64_t offset;
  int64_t version;
  double learning_rate;
  uint64_t dense_count;
  uint32_t tables;
  uint32_t spans;  // 0 if dense_count is 0
};
struct PushReply {
  int64_t version;
  int64_t staleness;
  uint32_t repeated;  // 1: this sequence had been applied before
  uint32_t padding;
  int64_t covered;    // the session's last push that a complete checkpoint has
};

// The same for a slow link (packed_ids.h, packed_weights.h). Followed by the ids of every table. The reply is a PullReply, then
// packed: the trainable slice, the additive slice in full precision (both if dense is wanted), and the rows of every table.
struct PackedPull {
  Pull pull;
  Precision precision;
  uint32_t padding;
};
// Followed by the ids of every table, uint64 marks of every table's ids, Span[spans], then packed: the trainable slice, the additive
// slice in full precision (both if dense_count is not 0), the squares of every span, the gradients of every table, and the squares of
// the marked ids of every table. The reply is that of a push.
struct PackedPush {
  Push push;
  Precision precision;
  uint32_t padding;
};

// Rows [begin, begin + limit) of a frozen table; without a snapshot the table is frozen at begin 0 for this connection.
struct Rows {
  int64_t snapshot;
  uint32_t table;
  uint32_t padding;
  uint64_t begin;
  uint64_t limit;
};
// Followed by int64 ids[count], weight[count * dim].
struct RowsReply {
  uint64_t total;
  uint64_t count;
};

inline std::string other_version(const std::string& one, int version, const std::string& other, int its_version) {
  return one + " speaks version " + std::to_string(version) + " of the bulk plane, and " + other + " version " +
         std::to_string(its_version) + ": all processes of a job must run the same image";
}

// Reads a payload from front to back. Throws UserError when the payload is too short for what is asked.
class Cursor {
 public:
  Cursor(const char* data, size_t bytes) : at_(data), left_(bytes) {}

  template <class T>
  T take() {
    T value;
    std::memcpy(&value, span(sizeof(T)), sizeof(T));
    return value;
  }

  template <class T>
  const T* array(uint64_t count) {
    if (count > left_ / sizeof(T)) short_by(count > kMaxPayload ? UINT64_MAX : count * sizeof(T));
    return reinterpret_cast<const T*>(span(count * sizeof(T)));
  }

  // `count` elements of `bytes` >= 1.
  const char* elements(uint64_t count, uint64_t bytes) {
    if (count > left_ / bytes) short_by(count > kMaxPayload ? UINT64_MAX : count * bytes);
    return span(count * bytes);
  }

  // 7 bits a byte, the lowest first; all but the last byte have the top bit set.
  uint64_t varint() {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = take<uint8_t>();
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    throw UserError("a frame with a number of more than 64 bits");
  }

  // Passes `count` numbers without a look at their values.
  void skip_varints(uint64_t count) {
    while (count > 0) count -= take<uint8_t>() < 0x80 ? 1 : 0;
  }

  std::string text(uint64_t bytes) { return std::string(array<char>(bytes), bytes); }

  void end() const {
    if (left_ != 0) throw UserError("a frame has " + std::to_string(left_) + " bytes more than its counts say");
  }
  size_t left() const { return left_; }

 private:
  const char* span(size_t bytes) {
    if (bytes > left_) short_by(bytes);
    const char* begin = at_;
    at_ += bytes;
    left_ -= bytes;
    return begin;
  }
  // `bytes` > left_.
  [[noreturn]] void short_by(uint64_t bytes) const {
    throw UserError("a frame ends " + std::to_string(bytes - left_) + " bytes before what its counts say");
  }

  const char* at_;
  size_t left_;
};

// Appends values.
class Writer {
 public:
  template <class T>
  Writer& put(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  Writer& text(std::string_view value) {
    bytes_.append(value);
    return *this;
  }
  Writer& align() {
    bytes_.resize((bytes_.size() + 7) / 8 * 8);
    return *this;
  }
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

// Names go to Python and into messages, so only process names in valid text pass.
inline bool is_process_name(std::string_view name) {
  constexpr std::string_view kSigns = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  return !name.empty() && name.size() <= 253 && name.find_first_not_of(kSigns) == name.npos;
}

// Well-formed by table 3-7 of the Unicode Standard.
inline bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) { return at < text.size() ? static_cast<unsigned char>(text[at]) : 0u; };
    const unsigned first = byte(i);
    const size_t more = first < 0x80 ? 0 : first < 0xC2 ? 4 : first < 0xE0 ? 1 : first < 0xF0 ? 2 : first < 0xF5 ? 3 : 4;
    if (more == 4) return false;
    const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80, high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (more > 0 && (byte(i + 1) < low || byte(i + 1) > high)) return false;
    for (size_t k = 2; k <= more; ++k) {
      if ((byte(i + k) & 0xC0) != 0x80) return false;
    }
    i += 1 + more;
  }
  return true;
}

// The index of the server that owns an id: the remainder, >= 0.
inline uint32_t owner(int64_t id, uint32_t servers) {
  int64_t rest = id % static_cast<int64_t>(servers);
  return static_cast<uint32_t>(rest < 0 ? rest + servers : rest);
}

}  // namespace elasticdl::wire
