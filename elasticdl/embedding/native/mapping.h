// Zeroed memory directly from the kernel: returned when destroyed, never moved, on huge pages if large.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

namespace elasticdl {

class Mapping {
 public:
  static constexpr size_t kHugePage = size_t{2} << 20;

  Mapping() = default;
  // Random access to many rows is bound by the TLB with 4 KiB pages. Small mappings stay on small pages, so that
  // a table of ten rows costs one page. Throws std::bad_alloc.
  explicit Mapping(size_t bytes, bool huge = false) : bytes_((bytes + kPage - 1) / kPage * kPage) {
    const size_t slack = huge ? kHugePage : 0;
    void* start = mmap(nullptr, bytes_ + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED) throw std::bad_alloc();
    address_ = static_cast<char*>(start);
    if (huge) align(slack);
  }
  Mapping(Mapping&& other) noexcept : address_(std::exchange(other.address_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(address_, other.address_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping() {
    if (address_ != nullptr) munmap(address_, bytes_);
  }

  char* address() const { return address_; }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kPage = 65536;  // no kernel's page is larger

  // Unmaps the slack at both ends so that the mapping begins at a huge page.
  void align(size_t slack) {
    const size_t past = reinterpret_cast<uintptr_t>(address_) % kHugePage;
    const size_t head = past == 0 ? 0 : kHugePage - past;
    if (head != 0) munmap(address_, head);
    if (slack != head) munmap(address_ + head + bytes_, slack - head);
    address_ += head;
#ifdef MADV_HUGEPAGE
    madvise(address_, bytes_, MADV_HUGEPAGE);  // only advice: a kernel without huge pages refuses, which is harmless
#endif
  }

  char* address_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace elasticdl
