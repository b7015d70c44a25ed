#include "elasticdl/ps/native/kept_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>

#include "elasticdl/rpc/native/errors.h"

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25  // Linux 6.1
#endif

namespace elasticdl::ps {
namespace {

constexpr char kMagic[8] = {'E', 'D', 'L', 'K', 'E', 'P', 'T', '1'};
constexpr size_t kPage = 65536;  // no kernel's page is larger
constexpr uint64_t kLeastWindow = uint64_t{64} << 30;
constexpr double kLookS = 0.01;

[[noreturn]] void problem(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

uint64_t rounded(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

// Addresses cost nothing, so there are enough for all memory that the machine has, in pieces.
uint64_t window_bytes() {
  const uint64_t memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return std::max(rounded(4 * memory, Mapping::kHugePage), kLeastWindow);
}

}  // namespace

struct KeptMemory::Header {
  char magic[8];
  uint64_t entries;  // ever used; later ones are zero
};

// One region. It counts once `use` is written, which is last.
struct KeptMemory::Entry {
  uint64_t offset;
  uint64_t bytes;
  uint64_t number;
  uint32_t table;
  uint32_t use;  // Use::Kind, and kHuge

  Use::Kind kind() const { return static_cast<Use::Kind>(use & ~kHuge); }

  static constexpr uint32_t kHuge = uint32_t{1} << 31;
};

KeptMemory::KeptMemory(const std::string& path, double patience_s) {
  try {
    open(path, patience_s);
    struct stat now;
    if (::fstat(fd_, &now) != 0) problem(path);
    used_ = now.st_size != 0;
    window_ = used_ ? static_cast<uint64_t>(now.st_size) : window_bytes();
    if (!used_ && ::ftruncate(fd_, static_cast<off_t>(window_)) != 0) problem(path);
    map();
    if (!used_) begin();
  } catch (...) {
    if (mapped_ != nullptr) ::munmap(mapped_, window_ + Mapping::kHugePage);
    if (fd_ >= 0) ::close(fd_);
    throw;
  }
}

KeptMemory::~KeptMemory() {
  ::munmap(mapped_, window_ + Mapping::kHugePage);
  ::close(fd_);
}

// Opened anew, since a lock belongs to an open file: the one that was inherited is shared with whoever holds the memory.
void KeptMemory::open(const std::string& path, double patience_s) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd_ < 0) problem(path);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_s);
  while (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) problem(path);
    if (std::chrono::steady_clock::now() >= deadline) {
      throw TransientError("the memory of this server (" + path + ") is still in use by another process");
    }
    std::this_thread::sleep_for(std::chrono::duration<double>(kLookS));
  }
}

void KeptMemory::map() {
  if (window_ < 2 * kDataAt || window_ % kPage != 0) throw Corrupted("kept memory of " + std::to_string(window_) + " bytes");
  void* start = ::mmap(nullptr, window_ + Mapping::kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED) throw std::bad_alloc();
  mapped_ = static_cast<char*>(start);
  base_ = mapped_ + (Mapping::kHugePage - reinterpret_cast<uintptr_t>(mapped_) % Mapping::kHugePage) % Mapping::kHugePage;
  void* there = ::mmap(base_, window_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd_, 0);
  if (there == MAP_FAILED) throw std::bad_alloc();
  // A core dump would make each page of the window, and whoever holds the file would keep them.
  if (::madvise(base_, window_, MADV_DONTDUMP) != 0) problem("kept memory");
}

void KeptMemory::begin() {
  fill(0, kEntriesAt + kPage);
  std::memcpy(header().magic, kMagic, sizeof kMagic);
  free_ = {{kDataAt, window_ - kDataAt}};
}

KeptMemory::Header& KeptMemory::header() const { return *reinterpret_cast<Header*>(base_); }

KeptMemory::Entry& KeptMemory::entry(size_t index) const { return reinterpret_cast<Entry*>(base_ + kEntriesAt)[index]; }

void KeptMemory::take_on() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (std::memcmp(header().magic, kMagic, sizeof kMagic) != 0) throw Corrupted("kept memory of another format");
  if (header().entries > (kDataAt - kEntriesAt) / sizeof(Entry)) throw Corrupted("kept memory with too many regions");
  for (size_t index = 0; index < header().entries; ++index) {
    const Entry& one = entry(index);
    if (one.use == Use::FREE) {
      unused_.push_back(index);
      continue;
    }
    const bool fits = one.offset >= kDataAt && one.offset % kPage == 0 && one.bytes > 0 && one.bytes <= window_ && one.offset <= window_ - one.bytes;
    if (!fits || !left_.emplace(one.offset, index).second) throw Corrupted("kept memory with a region that cannot be");
    entries_[one.offset] = index;
  }
  uint64_t end = kDataAt;
  for (const auto& [offset, index] : left_) {
    if (offset < end) throw Corrupted("kept memory with regions that overlap");
    if (offset > end) free_[end] = offset - end;
    end = offset + rounded(entry(index).bytes, kPage);
  }
  if (end < window_) free_[end] = window_ - end;
  // A region counts as free before its memory is; new regions must be zeros.
  for (const auto& [offset, bytes] : free_) punch(offset, bytes);
}

void KeptMemory::sweep() {
  std::map<uint64_t, size_t> left;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    left.swap(left_);
  }
  for (const auto& [offset, index] : left) release(base_ + offset);
}

void KeptMemory::reset() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (::ftruncate(fd_, 0) != 0 || ::ftruncate(fd_, static_cast<off_t>(window_)) != 0) problem("kept memory");
  used_ = false;
  free_.clear();
  entries_.clear();
  unused_.clear();
  left_.clear();
  begin();
}

size_t KeptMemory::new_entry() {
  if (!unused_.empty()) {
    const size_t index = unused_.back();
    unused_.pop_back();
    return index;
  }
  const size_t index = header().entries;
  const uint64_t end = kEntriesAt + (index + 1) * sizeof(Entry);
  if (end > kDataAt) throw std::bad_alloc();
  if (end % kPage < sizeof(Entry)) fill(rounded(end, kPage), kPage);  // the next page, in good time
  header().entries = index + 1;
  return index;
}

// The first free stretch that is large enough.
uint64_t KeptMemory::place(size_t bytes, size_t alignment) {
  for (const auto [begin, size] : free_) {
    const uint64_t at = rounded(begin, alignment), end = begin + size;
    if (at >= end || end - at < bytes) continue;
    free_.erase(begin);
    if (at > begin) free_[begin] = at - begin;
    if (at + bytes < end) free_[at + bytes] = end - at - bytes;
    return at;
  }
  throw std::bad_alloc();
}

Region KeptMemory::take(const Use& use, size_t bytes, bool huge) {
  std::lock_guard<std::mutex> lock(mutex_);
  const size_t index = new_entry();
  uint64_t offset = 0;
  try {
    offset = place(rounded(std::max<size_t>(bytes, 1), kPage), huge ? Mapping::kHugePage : kPage);
  } catch (const std::bad_alloc&) {
    unused_.push_back(index);
    throw;
  }
  Entry& one = entry(index);
  one.offset = offset;
  one.bytes = rounded(std::max<size_t>(bytes, 1), kPage);
  one.number = use.number;
  one.table = use.table;
  in_order();
  one.use = use.kind | (huge ? Entry::kHuge : 0);
  in_order();
  entries_[offset] = index;
  return region(one);
}

Region KeptMemory::region(const Entry& one) { return Region(*this, base_ + one.offset, one.bytes, (one.use & Entry::kHuge) != 0); }

std::vector<Region> KeptMemory::held(Use::Kind kind, uint32_t table) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::map<uint64_t, uint64_t> found;  // number, offset
  for (const auto& [offset, index] : left_) {
    const Entry& one = entry(index);
    if (one.kind() == kind && one.table == table) found[one.number] = offset;
  }
  std::vector<Region> regions;
  for (const auto& [number, offset] : found) {
    regions.push_back(region(entry(left_.at(offset))));
    left_.erase(offset);
  }
  return regions;
}

Region KeptMemory::held_at(uint64_t offset) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = left_.find(offset);
  if (found == left_.end()) return Region();
  Region there = region(entry(found->second));
  left_.erase(found);
  return there;
}

void KeptMemory::release(char* address) noexcept {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t offset = offset_of(address);
  const auto found = entries_.find(offset);
  if (found == entries_.end()) return;
  const size_t index = found->second;
  const uint64_t bytes = entry(index).bytes;
  entry(index).use = Use::FREE;
  in_order();
  punch(offset, bytes);
  entries_.erase(found);
  unused_.push_back(index);
  auto at = free_.emplace(offset, bytes).first;
  const auto next = std::next(at);
  if (next != free_.end() && at->first + at->second == next->first) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at == free_.begin()) return;
  const auto before = std::prev(at);
  if (before->first + before->second != at->first) return;
  before->second += at->second;
  free_.erase(at);
}

void KeptMemory::punch(uint64_t offset, uint64_t bytes) noexcept {
  ::fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset), static_cast<off_t>(bytes));
}

// Takes memory for these bytes, where there is none yet. Without it a store could end the process.
void KeptMemory::fill(uint64_t offset, uint64_t bytes) {
  while (::fallocate(fd_, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) != 0) {
    if (errno != EINTR) throw std::bad_alloc();
  }
}

void KeptMemory::back(char* begin, char* end, char* end_of_region) {
  if (end_of_region == nullptr || !collapses_) return fill(offset_of(begin), static_cast<uint64_t>(end - begin));
  const uint64_t first = offset_of(begin) / Mapping::kHugePage * Mapping::kHugePage;
  const uint64_t most = offset_of(end_of_region) / Mapping::kHugePage * Mapping::kHugePage;
  const uint64_t last = std::min(rounded(offset_of(end), Mapping::kHugePage), most);
  for (uint64_t unit = first; unit < last; unit += Mapping::kHugePage) back_unit(base_ + unit);
  const uint64_t rest = std::max(last, offset_of(begin));
  if (rest < offset_of(end)) fill(rest, offset_of(end) - rest);
}

// Random access to many rows is bound by the TLB with pages of 4 KiB. Shared memory gets huge pages on request only: the
// kernel collapses a page that is there and 511 that are not. That is fastest if the first one has been written.
void KeptMemory::back_unit(char* unit) {
  fill(offset_of(unit), 1);
  volatile char& first = *unit;
  first = first;
  if (::madvise(unit, Mapping::kHugePage, MADV_COLLAPSE) == 0) return;
  if (errno == EINVAL) collapses_ = false;  // this kernel never does
  fill(offset_of(unit), Mapping::kHugePage);
}

size_t KeptMemory::bytes() const {
  struct stat now;
  return ::fstat(fd_, &now) == 0 ? static_cast<size_t>(now.st_blocks) * 512 : 0;
}

}  // namespace elasticdl::ps
