#include "elasticdl/embedding/native/unique_ids.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "elasticdl/embedding/native/index.h"
#include "elasticdl/embedding/native/squares.h"

namespace elasticdl {
namespace {
#define ELASTICDL_KERNELS "elasticdl/embedding/native/unique_ids_kernels.h"
#include "elasticdl/embedding/native/dispatch.h"

constexpr size_t kAhead = 16;

unsigned bits_for(size_t n) {
  unsigned bits = 4;
  while ((size_t{1} << bits) < 2 * n) ++bits;
  return bits;
}
}  // namespace

size_t unique_ids(const int64_t* ids, size_t n, int64_t* out, int32_t* positions) {
  if (n > INT32_MAX) throw std::length_error("unique_ids: more than 2^31 - 1 ids in one call");
  const unsigned bits = bits_for(n);
  const size_t mask = (size_t{1} << bits) - 1;
  std::vector<int32_t> places(mask + 1, -1);  // index into `out`; 4 bytes, so that a batch's places stay in the cache
  const auto home = [bits](int64_t id) { return static_cast<size_t>(Index::hash(id) >> (64 - bits)); };
  size_t count = 0;
  for (size_t i = 0; i < n; ++i) {
    if (i + kAhead < n) __builtin_prefetch(&places[home(ids[i + kAhead])]);
    size_t at = home(ids[i]);
    while (places[at] >= 0 && out[places[at]] != ids[i]) at = (at + 1) & mask;
    if (places[at] < 0) {
      places[at] = static_cast<int32_t>(count);
      out[count++] = ids[i];
    }
    positions[i] = places[at];
  }
  return count;
}

void merge_rows(Scalar scalar, const void* values, const int32_t* positions, size_t n, size_t dim, void* out, size_t m) {
  using AddRows = void (*)(const void*, const int32_t*, size_t, size_t, void*);
  static const AddRows best[] = {ELASTICDL_BEST(add_rows<float>), ELASTICDL_BEST(add_rows<double>)};
  std::memset(out, 0, m * dim * bytes_of(scalar));
  best[static_cast<size_t>(scalar)](values, positions, n, dim, out);
}

void mark_repeated(const std::vector<RowValues>& parts, uint64_t* marks, size_t m) {
  std::fill_n(marks, Marks::words(m), 0);
  std::vector<uint64_t> seen(Marks::words(m));
  for (const RowValues& part : parts) {
    for (size_t i = 0; i < part.n; ++i) {
      // Without a branch, which nobody could predict.
      const auto row = static_cast<size_t>(part.positions[i]);
      const uint64_t bit = uint64_t{1} << (row % 64);
      marks[row / 64] |= seen[row / 64] & bit;
      seen[row / 64] |= bit;
    }
  }
}

void merge_squares(Scalar scalar, const std::vector<RowValues>& parts, size_t dim, const uint64_t* marks, size_t m, void* out) {
  using AddSquares = void (*)(const void*, const int32_t*, const int32_t*, size_t, size_t, void*);
  static const AddSquares best[] = {ELASTICDL_BEST(add_squares<float>), ELASTICDL_BEST(add_squares<double>)};
  std::vector<int32_t> places(m, -1);
  int32_t count = 0;
  for (size_t word = 0; word < Marks::words(m); ++word) {
    uint64_t left = marks[word];
    if (word == m / 64) left &= (uint64_t{1} << (m % 64)) - 1;  // bits beyond the rows do not count
    for (; left != 0; left &= left - 1) places[word * 64 + static_cast<size_t>(__builtin_ctzll(left))] = count++;
  }
  std::memset(out, 0, static_cast<size_t>(count) * dim * bytes_of(scalar));
  for (const RowValues& part : parts) {
    best[static_cast<size_t>(scalar)](part.values, part.positions, places.data(), part.n, dim, out);
  }
}

}  // namespace elasticdl
