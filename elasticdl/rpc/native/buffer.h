// Uninitialized bytes: a vector would first zero megabytes that a receive overwrites.
#pragma once

#include <cstddef>
#include <utility>

#include "elasticdl/rpc/native/blocks.h"

namespace elasticdl {

class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(block_, other.block_);
    return *this;
  }
  ~Buffer() { give_back(block_); }

  // At least `bytes` long, 64-byte aligned; discards the content. Throws std::bad_alloc.
  char* room(size_t bytes) {
    if (bytes > block_.bytes) {
      give_back(std::exchange(block_, {}));
      block_ = take_block(bytes);
    }
    return block_.data;
  }

  // Gives the memory up if it is larger than `bytes`.
  void trim(size_t bytes) {
    if (block_.bytes > bytes) give_back(std::exchange(block_, {}));
  }

  // What the memory takes, which may be more than what was asked for.
  size_t capacity() const { return block_.bytes; }
  char* data() { return block_.data; }
  const char* data() const { return block_.data; }

 private:
  Block block_;
};

}  // namespace elasticdl
