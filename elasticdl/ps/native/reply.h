// A reply on its way. Small parts are copied into its room, large ones are sent from where they are.
#pragma once

#include <cstddef>
#include <vector>

#include "elasticdl/rpc/native/buffer.h"
#include "elasticdl/rpc/native/socket.h"
#include "elasticdl/rpc/native/wire.h"

namespace elasticdl::ps {

// How much a connection may still receive and send before others have their slice.
class Allowance {
 public:
  explicit Allowance(size_t bytes) : left_(bytes) {}
  void spend(size_t bytes) { left_ -= bytes < left_ ? bytes : left_; }
  bool spent() const { return left_ == 0; }

 private:
  size_t left_;
};

class Reply {
 public:
  // `widest`: the largest piece that will be asked for; kPiece at least.
  void begin(const wire::Header& request, wire::Status status, uint64_t payload_bytes, size_t widest = 0);
  bool has_room(size_t bytes) const { return used_ + bytes <= size_; }
  // `bytes` that the caller fills before anything is sent. Only if there is room.
  char* piece(size_t bytes);
  // Up to kPiece are copied if there is room; more must stay where they are until the reply is cleared.
  void put(const void* data, size_t bytes);

  enum class Sent { all, some, blocked, lost };
  // Sends what was put. `some`: the allowance is spent; `blocked`: the socket takes no more for now.
  Sent send(const Socket& socket, Allowance& allowance);
  void clear();

  static constexpr size_t kPiece = 128 << 10;

 private:
  // Two pieces: more at once leave the cache, fewer cost system calls. The first leaves alone, and the peer begins to work.
  static constexpr size_t kRoom = 2 * kPiece;
  void refer(const char* data, size_t bytes);

  Buffer room_;
  size_t size_ = 0;
  size_t used_ = 0;
  std::vector<iovec> parts_;
  size_t at_ = 0;  // the first part that has not left whole
};

}  // namespace elasticdl::ps
