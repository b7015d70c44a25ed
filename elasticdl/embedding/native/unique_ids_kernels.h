// Sums of rows and of their squares. Included once for each instruction set by dispatch.h: no includes here.

template <class T>
inline void add_row(const T* __restrict value, size_t dim, T* __restrict out) {
  for (size_t j = 0; j < dim; ++j) out[j] += value[j];
}

template <class T>
inline void add_rows(const void* all, const int32_t* positions, size_t n, size_t dim, void* sums) {
  const T* values = static_cast<const T*>(all);
  T* out = static_cast<T*>(sums);
  constexpr size_t kRowsAhead = 8;
  for (size_t i = 0; i < n; ++i) {
    if (i + kRowsAhead < n) __builtin_prefetch(out + static_cast<size_t>(positions[i + kRowsAhead]) * dim, 1);
    T* row = out + static_cast<size_t>(positions[i]) * dim;
    switch (dim) {
      case 1: *row += values[i]; break;
      case 8: add_row(values + i * 8, 8, row); break;
      case 16: add_row(values + i * 16, 16, row); break;
      case 32: add_row(values + i * 32, 32, row); break;
      default: add_row(values + i * dim, dim, row);
    }
  }
}

template <class T>
inline void add_square(const T* __restrict value, size_t dim, T* __restrict out) {
  for (size_t j = 0; j < dim; ++j) out[j] += value[j] * value[j];
}

// `places`: by row, its place in `sums`; below 0: none. A branch for each value could not be predicted, so those that have a
// place are found first.
template <class T>
inline void add_squares(const void* all, const int32_t* positions, const int32_t* places, size_t n, size_t dim, void* sums) {
  const T* values = static_cast<const T*>(all);
  T* out = static_cast<T*>(sums);
  constexpr size_t kAtOnce = 256;
  size_t found[kAtOnce];
  for (size_t begin = 0; begin < n; begin += kAtOnce) {
    const size_t end = begin + kAtOnce < n ? begin + kAtOnce : n;
    size_t count = 0;
    for (size_t i = begin; i < end; ++i) {
      found[count] = i;
      count += places[positions[i]] >= 0 ? 1 : 0;
    }
    for (size_t k = 0; k < count; ++k) {
      const T* value = values + found[k] * dim;
      T* row = out + static_cast<size_t>(places[positions[found[k]]]) * dim;
      switch (dim) {
        case 1: *row += *value * *value; break;
        case 8: add_square(value, 8, row); break;
        case 16: add_square(value, 16, row); break;
        case 32: add_square(value, 32, row); break;
        default: add_square(value, dim, row);
      }
    }
  }
}
