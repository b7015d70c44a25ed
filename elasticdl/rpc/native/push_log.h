// The pushes that one server has acknowledged and that no complete checkpoint of it has, for the case that it loses them.
//
// A frame is kept as it was sent, so that the server gets the same bits again. See docs/adr/0037-kept-pushes.md.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "elasticdl/rpc/native/buffer.h"
#include "elasticdl/rpc/native/wire.h"

namespace elasticdl {

class PushLog {
 public:
  struct Frame {
    int64_t sequence = 0;
    wire::Kind kind = wire::Kind::push;
    size_t bytes = 0;
    Buffer payload;

    size_t memory() const;
  };

  // `limit`: of the memory of all frames; 0 keeps none.
  explicit PushLog(size_t limit) : limit_(limit) {}

  // Copies a push that is under way, unless it has no room. Repeated calls for it do nothing.
  void prepare(int64_t sequence, wire::Kind kind, const std::vector<iovec>& payload);
  // The server has it. If it was not copied, those before it go: a server that gets pushes again must get each.
  void acknowledged(int64_t sequence);
  // A complete checkpoint has the server's part of all up to this one.
  void covered(int64_t sequence);
  // The oldest after `sequence`; null if there is none.
  const Frame* after(int64_t sequence) const;
  // These pushes cannot be made again.
  void clear();

  bool empty() const { return frames_.empty(); }
  // The newest push that the server has acknowledged.
  int64_t last() const { return last_; }
  void begin_after(int64_t sequence) { last_ = sequence; }
  // Whether frames fill more than half of the room. An earlier checkpoint does not help a push that never has a place.
  bool crowded() const { return bytes_ > limit_ / 2; }
  // The bytes of the last push if they exceed the room, else 0.
  size_t too_large() const { return too_large_; }
  // The memory that it takes, also for the push that is under way.
  size_t bytes() const { return bytes_; }

 private:
  void drop_first();
  void forget_next();
  bool has(int64_t sequence) const { return !frames_.empty() && frames_.back().sequence >= sequence; }

  const size_t limit_;
  size_t bytes_ = 0;
  size_t too_large_ = 0;
  int64_t last_ = 0;
  std::deque<Frame> frames_;
  Frame next_;                 // under way; sequence 0: none
};

}  // namespace elasticdl
