// Uninitialized bytes: a vector would first zero megabytes that a receive overwrites.
#pragma once

#include <cstdlib>
#include <new>
#include <utility>

namespace elasticdl {

class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~Buffer() { std::free(data_); }

  // At least `bytes` long, 64-byte aligned; discards the content. Throws std::bad_alloc.
  char* room(size_t bytes) {
    if (bytes > capacity_) {
      std::free(std::exchange(data_, nullptr));
      capacity_ = 0;
      size_t rounded = (bytes + bytes / 8 + 4095) / 4096 * 4096;
      data_ = static_cast<char*>(std::aligned_alloc(64, rounded));
      if (data_ == nullptr) throw std::bad_alloc();
      capacity_ = rounded;
    }
    return data_;
  }

  // Frees the memory if it is larger than `bytes`.
  void trim(size_t bytes) {
    if (capacity_ > bytes) {
      std::free(std::exchange(data_, nullptr));
      capacity_ = 0;
    }
  }

  char* data() { return data_; }
  const char* data() const { return data_; }

 private:
  char* data_ = nullptr;
  size_t capacity_ = 0;
};

}  // namespace elasticdl
