// Sums of rows. Included once for each instruction set by dispatch.h: no includes here.

inline void add_row(const float* __restrict value, size_t dim, float* __restrict out) {
  for (size_t j = 0; j < dim; ++j) out[j] += value[j];
}

inline void add_rows(const float* values, const int32_t* positions, size_t n, size_t dim, float* out) {
  constexpr size_t kRowsAhead = 8;
  for (size_t i = 0; i < n; ++i) {
    if (i + kRowsAhead < n) __builtin_prefetch(out + static_cast<size_t>(positions[i + kRowsAhead]) * dim, 1);
    float* row = out + static_cast<size_t>(positions[i]) * dim;
    switch (dim) {
      case 1: *row += values[i]; break;
      case 8: add_row(values + i * 8, 8, row); break;
      case 16: add_row(values + i * 16, 16, row); break;
      case 32: add_row(values + i * 32, 32, row); break;
      default: add_row(values + i * dim, dim, row);
    }
  }
}
