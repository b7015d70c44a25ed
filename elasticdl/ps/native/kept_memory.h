// Memory that outlives its process: a file without a disk, which the process maps and the next one finds as it was left.
//
// Whoever starts the processes holds the file: a memfd on one machine. A killed process loses none of its stores, so no
// system call is needed to keep them. The directory of regions is consistent after a kill at any instant.
#pragma once

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "elasticdl/embedding/native/memory.h"

namespace elasticdl::ps {

class KeptMemory final : public Memory {
 public:
  static constexpr size_t kRootBytes = 4096;

  // Opens a file without a disk (tmpfs, a memfd by its path below /proc) for this process alone; waits up to `patience_s`
  // for the process before it to be gone. Throws TransientError if that does not end, std::system_error.
  KeptMemory(const std::string& path, double patience_s);
  ~KeptMemory() override;
  KeptMemory(const KeptMemory&) = delete;
  KeptMemory& operator=(const KeptMemory&) = delete;

  // Whether an earlier process has left something.
  bool used() const { return used_; }
  // Reads what there is. Throws Corrupted if that cannot be what this class left.
  void take_on();
  // Frees what has not been asked for since `take_on`.
  void sweep();
  // Drops everything. No region may be in use.
  void reset();

  // kRootBytes that are zero at first, for whoever knows what the regions mean.
  char* root() const { return base_ + kRootAt; }

  Region take(const Use& use, size_t bytes, bool huge) override;
  std::vector<Region> held(Use::Kind kind, uint32_t table) override;
  Region held_at(uint64_t offset) override;

  // Memory that the file has.
  size_t bytes() const;

 private:
  struct Header;
  struct Entry;

  static constexpr size_t kRootAt = 4096, kEntriesAt = size_t{64} << 10, kDataAt = size_t{64} << 20;

  void back(char* begin, char* end, char* end_of_region) override;
  void release(char* address) noexcept override;
  uint64_t offset_of(const char* address) const override { return static_cast<uint64_t>(address - base_); }

  void open(const std::string& path, double patience_s);
  void map();
  void begin();
  Header& header() const;
  Entry& entry(size_t index) const;
  size_t new_entry();
  uint64_t place(size_t bytes, size_t alignment);
  void fill(uint64_t offset, uint64_t bytes);
  void back_unit(char* unit);
  void punch(uint64_t offset, uint64_t bytes) noexcept;
  Region region(const Entry& one);

  int fd_ = -1;
  uint64_t window_ = 0;  // bytes that are mapped, most of them without memory
  char* mapped_ = nullptr;
  char* base_ = nullptr;
  bool used_ = false;
  std::atomic<bool> collapses_{true};  // the kernel makes huge pages on request

  mutable std::mutex mutex_;  // guards all below and the entries
  std::map<uint64_t, uint64_t> free_;  // stretches without a region: offset, bytes
  std::unordered_map<uint64_t, size_t> entries_;  // by offset of the region
  std::vector<size_t> unused_;  // entries
  std::map<uint64_t, size_t> left_;  // regions of an earlier process that nobody has asked for: offset, entry
};

}  // namespace elasticdl::ps
