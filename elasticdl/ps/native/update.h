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
    DenseSquares() = default;
    // Throws UserError unless the spans are in their order and within so many weights. `spans` must outlive it.
    DenseSquares(const wire::Span* spans, size_t count, uint64_t trainable);

    const wire::Span* spans = nullptr;
    size_t count = 0;
    std::vector<uint64_t> before;  // each span: the weights in those before it; then those in all
    const char* values = nullptr;

    uint64_t size() const { return count == 0 ? 0 : before[count]; }
    bool same_spans(const DenseSquares& other) const;
    // Calls visit(begin, size, squares or null) for each piece of [begin, begin + size). Weights are of `width` bytes.
    template <class Visit>
    void each_piece(uint64_t begin, uint64_t size, size_t width, Visit visit) const {
      const uint64_t end = begin + size;
      const wire::Span* first = std::partition_point(spans, spans + count, [&](const wire::Span& span) { return span.end <= begin; });
      for (size_t i = static_cast<size_t>(first - spans); i < count && spans[i].begin < end; ++i) {
        if (begin < spans[i].begin) visit(begin, spans[i].begin - begin, nullptr);
        begin = std::max(begin, spans[i].begin);
        const uint64_t until = std::min(end, spans[i].end);
        visit(begin, until - begin, values + (before[i] + begin - spans[i].begin) * width);
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
  size_t rows() const;
};

}  // namespace elasticdl::ps
