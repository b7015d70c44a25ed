// One update of a model, as a worker pushes it: views into the payload of a push.
#pragma once

#include <cstdint>
#include <vector>

#include "elasticdl/rpc/native/wire.h"

namespace elasticdl::ps {

class Model;

struct Update {
  // Of one table: distinct ids, and the gradient of each.
  struct Rows {
    const int64_t* ids;
    size_t count;
    const char* gradients;
  };

  wire::Push head;
  const char* dense = nullptr;  // null, or a gradient for all of Model::dense_size()
  std::vector<Rows> tables;

  // `payload` must outlive it. Throws UserError if it does not fit the model.
  static Update read(const char* payload, size_t bytes, const Model& model);
  size_t rows() const;
};

}  // namespace elasticdl::ps
