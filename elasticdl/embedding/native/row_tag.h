#pragma once
#include <cstdint>

namespace elasticdl {

// When a row last moved: after that update of the model, at that learning rate. 0: not known.
struct RowTag {
  uint32_t step;
  float rate;
};

}  // namespace elasticdl
