// Sends and receives bytes on a non-blocking socket.
#include <errno.h>

#include <algorithm>

#include "elasticdl/rpc/native/link.h"

namespace elasticdl {
namespace {

// Large enough to make system calls cheap, small enough that rows are still in the cache when they are scattered.
constexpr size_t kRowsAtOnce = 256 << 10;

// > 0: received; 0: nothing there for now; < 0: the connection is lost.
ssize_t receive_some(const Socket& socket, char* data, size_t bytes) {
  ssize_t got = socket.receive_some(data, bytes);
  if (got > 0) return got;
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
  if (got == 0) errno = ECONNRESET;
  return -1;
}

void spread(const char* rows, size_t count, const uint32_t* positions, const Target& target) {
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(target.data + positions[i] * target.row_bytes, rows + i * target.row_bytes, target.row_bytes);
  }
}

}  // namespace

void Outgoing::clear() {
  parts_.clear();
  at_ = 0;
}

void Outgoing::put(std::string own, const std::vector<iovec>& parts) {
  own_ = std::move(own);
  parts_.assign(1, iovec{own_.data(), own_.size()});
  parts_.insert(parts_.end(), parts.begin(), parts.end());
  at_ = 0;
}

bool Outgoing::flush(const Socket& socket) {
  while (at_ < parts_.size()) {
    ssize_t sent = socket.send_some(parts_.data() + at_, parts_.size() - at_);
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    size_t left = static_cast<size_t>(sent);
    while (at_ < parts_.size() && left >= parts_[at_].iov_len) left -= parts_[at_++].iov_len;
    if (at_ < parts_.size()) {
      parts_[at_].iov_base = static_cast<char*>(parts_[at_].iov_base) + left;
      parts_[at_].iov_len -= left;
    }
  }
  return socket.flush() || errno == EAGAIN || errno == EWOULDBLOCK;
}

void Incoming::expect(const std::vector<Target>* targets, uint64_t bytes) {
  targets_ = targets;
  whole_ = nullptr;
  bytes_ = bytes;
  target_ = have_ = rows_have_ = 0;
}

void Incoming::expect(Buffer* whole, uint64_t bytes) {
  targets_ = nullptr;
  whole_ = whole;
  bytes_ = bytes;
  have_ = 0;
  whole_->room(std::max<size_t>(bytes, 1));
}

Incoming::Progress Incoming::receive(const Socket& socket) {
  if (whole_ != nullptr) return receive_whole(socket);
  for (; target_ < targets_->size(); ++target_, have_ = 0, rows_have_ = 0) {
    const Target& target = (*targets_)[target_];
    Progress progress = target.positions != nullptr ? receive_rows(socket, target) : receive_target(socket, target);
    if (progress != Progress::complete) return progress;
  }
  return Progress::complete;
}

Incoming::Progress Incoming::receive_whole(const Socket& socket) {
  while (have_ < bytes_) {
    ssize_t got = receive_some(socket, whole_->data() + have_, bytes_ - have_);
    if (got <= 0) return got == 0 ? Progress::more : Progress::lost;
    have_ += static_cast<size_t>(got);
  }
  return Progress::complete;
}

Incoming::Progress Incoming::receive_target(const Socket& socket, const Target& target) {
  while (have_ < target.bytes) {
    ssize_t got = receive_some(socket, target.data + have_, target.bytes - have_);
    if (got <= 0) return got == 0 ? Progress::more : Progress::lost;
    have_ += static_cast<size_t>(got);
  }
  return Progress::complete;
}

// `have_` counts the scattered bytes, `rows_have_` the bytes that wait in the buffer.
Incoming::Progress Incoming::receive_rows(const Socket& socket, const Target& target) {
  size_t room = std::max(kRowsAtOnce / target.row_bytes, size_t{1}) * target.row_bytes;
  char* rows = rows_.room(room);
  while (have_ < target.bytes) {
    size_t wanted = std::min(room, target.bytes - have_);
    ssize_t got = receive_some(socket, rows + rows_have_, wanted - rows_have_);
    if (got <= 0) return got == 0 ? Progress::more : Progress::lost;
    rows_have_ += static_cast<size_t>(got);
    size_t count = rows_have_ / target.row_bytes;
    spread(rows, count, target.positions + have_ / target.row_bytes, target);
    size_t moved = count * target.row_bytes;
    std::memmove(rows, rows + moved, rows_have_ - moved);
    rows_have_ -= moved;
    have_ += moved;
  }
  return Progress::complete;
}

}  // namespace elasticdl
