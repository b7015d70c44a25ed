// What travels on the bulk plane: a fixed header, then a payload whose layout depends on the kind. See
// docs/adr/0003-wire-format.md. Everything is little-endian; sections that hold int64 begin at multiples of 8.
//
// Nothing here trusts its input: `Cursor` checks every step against the end of the payload.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "elasticdl/rpc/native/errors.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire format is written by memcpy on little-endian machines only"
#endif

namespace elasticdl::wire {

constexpr uint32_t kMagic = 0x314C4445;  // "EDL1"
constexpr uint16_t kVersion = 1;
constexpr uint64_t kMaxPayload = uint64_t{1} << 30;
constexpr uint64_t kMaxHello = 4096;
constexpr uint32_t kMaxTables = 4096;

enum class Kind : uint8_t { hello = 1, initialise = 2, pull = 3, push = 4, rows = 5 };
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

// The first frame of a connection, followed by the token and the sender's name.
struct Hello {
  uint64_t session;  // random per client object: sequences of another session are another count
  uint32_t token_bytes;
  uint32_t name_bytes;
  uint32_t pushes;  // 1: this connection may carry pushes
  uint32_t padding;
};
struct HelloReply {
  uint64_t instance;  // random per server process
  int64_t version;
  uint32_t server;
  uint32_t servers;
  uint32_t has_state;
  uint32_t padding;
};

// Followed by the spec (see Spec::encode), padded to 8, then float32[dense_count]: trainable slice, additive slice.
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
// Followed by float32[dense_count], then float32 rows of table 0, 1, … in the order of the ids.
struct PullReply {
  int64_t version;
  uint64_t dense_count;
};

// Followed by uint64 counts[tables], int64 ids of every table, float32[dense_count], float32 gradients of every table.
struct Push {
  int64_t sequence;
  int64_t shard;
  int64_t attempt;
  int64_t offset;
  int64_t version;
  double learning_rate;
  uint64_t dense_count;
  uint32_t tables;
  uint32_t padding;
};
struct PushReply {
  int64_t version;
  int64_t staleness;
  uint32_t repeated;  // 1: this sequence had been applied before
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
// Followed by int64 ids[count], float32 weights[count * dim].
struct RowsReply {
  uint64_t total;
  uint64_t count;
};

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
    if (count > left_ / sizeof(T)) short_by(count * 1.0 * sizeof(T));
    return reinterpret_cast<const T*>(span(count * sizeof(T)));
  }

  std::string text(uint64_t bytes) { return std::string(array<char>(bytes), bytes); }

  void end() const {
    if (left_ != 0) throw UserError("a frame has " + std::to_string(left_) + " bytes more than its counts say");
  }
  size_t left() const { return left_; }

 private:
  const char* span(size_t bytes) {
    if (bytes > left_) short_by(static_cast<double>(bytes));
    const char* begin = at_;
    at_ += bytes;
    left_ -= bytes;
    return begin;
  }
  [[noreturn]] void short_by(double bytes) const {
    throw UserError("a frame ends " + std::to_string(static_cast<uint64_t>(bytes - static_cast<double>(left_))) +
                    " bytes before what its counts say");
  }

  const char* at_;
  size_t left_;
};

// Puts values one behind the other.
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

// True in a time that depends on the lengths only.
inline bool same_secret(std::string_view a, std::string_view b) {
  unsigned char difference = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < b.size(); ++i) difference |= static_cast<unsigned char>(b[i] ^ (i < a.size() ? a[i] : 0));
  return difference == 0;
}

// Which of `servers` owns an id: the remainder >= 0.
inline uint32_t owner(int64_t id, uint32_t servers) {
  int64_t rest = id % static_cast<int64_t>(servers);
  return static_cast<uint32_t>(rest < 0 ? rest + servers : rest);
}

}  // namespace elasticdl::wire
