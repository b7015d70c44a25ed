#include "elasticdl/rpc/native/blocks.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

namespace elasticdl {
namespace {

// Smaller ones come fast from the heap. A server's connections keep no blocks between frames.
constexpr size_t kLeast = 64 << 10;
// One block is kept whatever its size.
constexpr size_t kMostKept = size_t{256} << 20;

class Spare {
 public:
  // The smallest that is large enough and not much larger; empty if there is none.
  Block take(size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    Block* best = nullptr;
    for (Block& block : blocks_) {
      if (block.bytes < bytes || block.bytes / 2 > bytes) continue;
      if (best == nullptr || block.bytes < best->bytes) best = &block;
    }
    if (best == nullptr) return {};
    kept_ -= best->bytes;
    return std::exchange(*best, {});
  }

  // False if there is no room for it.
  bool keep(Block block) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (kept_ > 0 && kept_ + block.bytes > kMostKept) return false;
    // A free place, or else that of the smallest.
    auto least = std::min_element(blocks_.begin(), blocks_.end(), [](const Block& a, const Block& b) { return a.bytes < b.bytes; });
    if (least->bytes >= block.bytes) return false;
    kept_ += block.bytes - least->bytes;
    std::free(std::exchange(*least, block).data);
    return true;
  }

 private:
  std::mutex mutex_;
  std::array<Block, 64> blocks_;
  size_t kept_ = 0;
};

// Never destroyed: threads may give blocks back while the process exits.
Spare& spare() {
  static Spare* const kept = new Spare;
  return *kept;
}

}  // namespace

Block take_block(size_t bytes) {
  if (bytes >= kLeast) {
    if (Block block = spare().take(bytes); block.data != nullptr) return block;
  }
  // Many small ones may be kept at a time: see PushLog.
  const size_t unit = bytes >= kLeast ? 4096 : 64;
  const size_t rounded = (bytes + bytes / 8 + unit - 1) / unit * unit;
  Block block{static_cast<char*>(std::aligned_alloc(64, rounded)), rounded};
  if (block.data == nullptr) throw std::bad_alloc();
  return block;
}

void give_back(Block block) noexcept {
  if (block.bytes < kLeast || !spare().keep(block)) std::free(block.data);
}

}  // namespace elasticdl
