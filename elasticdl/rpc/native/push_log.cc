#include "elasticdl/rpc/native/push_log.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace elasticdl {
namespace {

constexpr size_t kOverhead = 128;  // of a frame, so that many small ones count, too

}  // namespace

void PushLog::prepare(int64_t sequence, wire::Kind kind, const std::vector<iovec>& payload) {
  if (limit_ == 0 || next_.sequence == sequence) return;
  size_t bytes = 0;
  for (const iovec& part : payload) bytes += part.iov_len;
  char* at = next_.payload.room(bytes + 1);
  for (const iovec& part : payload) {
    if (part.iov_len > 0) std::memcpy(at, part.iov_base, part.iov_len);
    at += part.iov_len;
  }
  next_.kind = kind;
  next_.bytes = bytes;
  next_.sequence = sequence;
}

void PushLog::acknowledged(int64_t sequence) {
  // A repeated push, whose first answer was lost, may be in the log already.
  const bool is_new = sequence > last_;
  if (is_new) last_ = sequence;
  if (next_.sequence != sequence) return;
  next_.sequence = 0;
  if (!is_new) return;
  bytes_ += next_.bytes + kOverhead;
  frames_.push_back({sequence, next_.kind, next_.bytes, std::exchange(next_.payload, Buffer())});
  while (bytes_ > limit_) drop_first();
}

void PushLog::covered(int64_t sequence) {
  while (!frames_.empty() && frames_.front().sequence <= sequence) drop_first();
}

void PushLog::drop_first() {
  bytes_ -= frames_.front().bytes + kOverhead;
  frames_.pop_front();
}

const PushLog::Frame* PushLog::after(int64_t sequence) const {
  const auto next = std::upper_bound(frames_.begin(), frames_.end(), sequence,
                                     [](int64_t number, const Frame& frame) { return number < frame.sequence; });
  return next == frames_.end() ? nullptr : &*next;
}

void PushLog::clear() {
  while (!frames_.empty()) drop_first();
}

}  // namespace elasticdl
