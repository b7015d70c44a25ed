#include "elasticdl/ps/native/reply.h"

#include <errno.h>

#include <algorithm>

namespace elasticdl::ps {
namespace {

constexpr size_t kFront = 64;  // what may come before the first piece

}  // namespace

void Reply::begin(const wire::Header& request, wire::Status status, uint64_t payload_bytes, size_t widest) {
  clear();
  wire::Header header;
  size_ = std::min<uint64_t>(sizeof(wire::Header) + payload_bytes, std::max(kRoom, widest + sizeof header + kFront));
  room_.room(size_);
  header.kind = request.kind;
  header.status = status;
  header.request = request.request;
  header.payload_bytes = payload_bytes;
  put(&header, sizeof header);
}

char* Reply::piece(size_t bytes) {
  char* const begin = room_.data() + used_;
  used_ += bytes;
  refer(begin, bytes);
  return begin;
}

void Reply::put(const void* data, size_t bytes) {
  if (bytes == 0) return;  // `data` may be null then
  if (bytes <= kPiece && has_room(bytes)) std::memcpy(piece(bytes), data, bytes);
  else refer(static_cast<const char*>(data), bytes);
}

void Reply::refer(const char* data, size_t bytes) {
  if (!parts_.empty() && static_cast<char*>(parts_.back().iov_base) + parts_.back().iov_len == data) {
    parts_.back().iov_len += bytes;
  } else {
    parts_.push_back({const_cast<char*>(data), bytes});
  }
}

Reply::Sent Reply::send(const Socket& socket, Allowance& allowance) {
  const auto stopped = [] { return errno == EAGAIN || errno == EWOULDBLOCK ? Sent::blocked : Sent::lost; };
  while (at_ < parts_.size()) {
    if (allowance.spent()) return Sent::some;
    const ssize_t sent = socket.send_some(parts_.data() + at_, parts_.size() - at_);
    if (sent < 0) return stopped();
    allowance.spend(static_cast<size_t>(sent));
    size_t left = static_cast<size_t>(sent);
    while (at_ < parts_.size() && left >= parts_[at_].iov_len) left -= parts_[at_++].iov_len;
    if (at_ < parts_.size()) {
      parts_[at_].iov_base = static_cast<char*>(parts_[at_].iov_base) + left;
      parts_[at_].iov_len -= left;
    }
  }
  if (!socket.flush()) return stopped();
  parts_.clear();
  at_ = used_ = 0;
  return Sent::all;
}

void Reply::clear() {
  parts_.clear();
  at_ = used_ = size_ = 0;
  room_.trim(0);
}

}  // namespace elasticdl::ps
