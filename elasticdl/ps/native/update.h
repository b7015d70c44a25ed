// One update of a model, as a worker pushes it: views into the payload of a push.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "elasticdl/embedding/native/squares.h"
#include "elasticdl/rpc/native/wire.h"

namespace elasticdl::ps {

class Model;

struct Update {
  // Of one table: distinct ids, the gradient of each, and the squares of those that are marked.
  struct Rows {
    const int64_t* ids;
    size_t count;
    const uint64_t* marks;
    const char* gradients;
    const char* squares;
  };

  // Of the dense gradient, in some spans of its trainable part. All other weights have a single gradient.
  struct DenseSquares {
    const wire::Span* spans = nullptr;
    size_t count = 0;
    const char* values = nullptr;

    uint64_t size() const;
    bool same_spans(const DenseSquares& other) const;
    // Calls visit(begin, size, squares or null) for each piece of [begin, begin + size). Weights are of `width` bytes.
    template <class Visit>
    void each_piece(uint64_t begin, uint64_t size, size_t width, Visit visit) const {
      const uint64_t end = begin + size;
      const char* at = values;
      for (size_t i = 0; i < count && begin < end && spans[i].begin < end; at += spans[i++].size() * width) {
        if (spans[i].end <= begin) continue;
        if (begin < spans[i].begin) visit(begin, spans[i].begin - begin, nullptr);
        begin = std::max(begin, spans[i].begin);
        const uint64_t until = std::min(end, spans[i].end);
        visit(begin, until - begin, at + (begin - spans[i].begin) * width);
        begin = until;
      }
      if (begin < end) visit(begin, end - begin, nullptr);
    }
  };

  wire::Push head;
  const char* dense = nullptr;  // null, or a gradient for all of Model::dense_size()
  DenseSquares dense_squares;
  std::vector<Rows> tables;

  // `payload` must outlive it. Throws UserError if it does not fit the model.
  static Update read(const char* payload, size_t bytes, const Model& model);
  // Throws UserError unless the spans are in their order and within so many weights.
  static void check(const DenseSquares& squares, uint64_t trainable);
  size_t rows() const;
};

}  // namespace elasticdl::ps
