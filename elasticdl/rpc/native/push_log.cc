#include "elasticdl/rpc/native/push_log.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <utility>

namespace elasticdl {
namespace {

constexpr size_t kOverhead = 128;  // of a frame beside its memory

// Past the caches, which have better use than a copy that is read only if a server is lost. Half the time of memcpy.
void copy_past_caches(char* to, const char* from, size_t bytes) {
#if defined(__SSE2__)
  const size_t head = std::min<size_t>(bytes, -reinterpret_cast<uintptr_t>(to) % 16);
  if (head > 0) std::memcpy(to, from, head);
  for (to += head, from += head, bytes -= head; bytes >= 64; to += 64, from += 64, bytes -= 64) {
    const auto* in = reinterpret_cast<const __m128i*>(from);
    auto* out = reinterpret_cast<__m128i*>(to);
    const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1), c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
    _mm_stream_si128(out, a);
    _mm_stream_si128(out + 1, b);
    _mm_stream_si128(out + 2, c);
    _mm_stream_si128(out + 3, d);
  }
  _mm_sfence();
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

}  // namespace

size_t PushLog::Frame::memory() const { return payload.capacity() + kOverhead; }

void PushLog::prepare(int64_t sequence, wire::Kind kind, const std::vector<iovec>& payload) {
  if (limit_ == 0 || next_.sequence == sequence || has(sequence)) return;
  forget_next();
  next_.sequence = sequence;
  size_t bytes = 0;
  for (const iovec& part : payload) bytes += part.iov_len;
  too_large_ = bytes + kOverhead > limit_ ? bytes : 0;
  if (too_large_ > 0) return;
  char* at = next_.payload.room(bytes + 1);
  next_.kind = kind;
  next_.bytes = bytes;
  bytes_ += next_.memory();
  while (bytes_ > limit_ && !frames_.empty()) drop_first();
  if (bytes_ > limit_) {  // a block may be larger than what it is for
    forget_next();
    next_.sequence = sequence;
    too_large_ = bytes;
    return;
  }
  for (const iovec& part : payload) {
    copy_past_caches(at, static_cast<const char*>(part.iov_base), part.iov_len);
    at += part.iov_len;
  }
}

void PushLog::acknowledged(int64_t sequence) {
  last_ = std::max(last_, sequence);
  // A repeated push, whose first answer was lost, may be in the log already.
  if (has(sequence)) return forget_next();
  if (next_.sequence != sequence || next_.payload.data() == nullptr) {
    forget_next();
    return clear();
  }
  frames_.push_back(std::move(next_));
  next_ = Frame();
}

void PushLog::forget_next() {
  if (next_.payload.data() != nullptr) bytes_ -= next_.memory();
  next_ = Frame();
}

void PushLog::covered(int64_t sequence) {
  while (!frames_.empty() && frames_.front().sequence <= sequence) drop_first();
}

void PushLog::drop_first() {
  bytes_ -= frames_.front().memory();
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
