// Large blocks of memory for whole frames. A process keeps some that nobody uses: the system would have to clear 26 MB
// again for each frame of that size, which takes longer than to send them.
#pragma once

#include <cstddef>

namespace elasticdl {

struct Block {
  char* data = nullptr;  // 64-byte aligned
  size_t bytes = 0;
};

// At least `bytes` long, with any content. Throws std::bad_alloc.
Block take_block(size_t bytes);

// Frees the block, or keeps it for another `take_block`.
void give_back(Block block) noexcept;

}  // namespace elasticdl
