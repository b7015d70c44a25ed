// Python's view of tables: NumPy arrays in and out, checked here and never converted; the GIL is released for the work.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "elasticdl/embedding/native/arrays.h"
#include "elasticdl/embedding/native/table.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace elasticdl {
namespace {
using Ids = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MarkArray = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Positions = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Uninitialized memory that becomes a NumPy array without a copy.
template <class T>
class Made {
 public:
  explicit Made(size_t size) : data_(new T[size]) {}
  T* data() const { return data_.get(); }
  nb::object array(std::initializer_list<size_t> shape) {
    T* data = data_.get();
    nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
    data_.release();
    return nb::cast(nb::ndarray<nb::numpy, T>(data, shape.size(), shape.begin(), owner));
  }

 private:
  std::unique_ptr<T[]> data_;
};

// Throws TypeError unless the array is of that type, ValueError unless it is [rows, columns].
void require_matrix(const char* name, const InMatrix& matrix, Scalar scalar, size_t rows, size_t columns) {
  require_type(name, matrix, scalar);
  require(matrix.shape(0) == rows && matrix.shape(1) == columns,
          std::string(name) + " is [" + std::to_string(matrix.shape(0)) + ", " + std::to_string(matrix.shape(1)) + "]: expected [" +
              std::to_string(rows) + ", " + std::to_string(columns) + "]");
}

template <class Spec>
typename Spec::Kind kind_named(const std::string& name) {
  const auto found = std::find(std::begin(Spec::kNames), std::end(Spec::kNames), name);
  if (found == std::end(Spec::kNames)) throw std::invalid_argument("unknown kind '" + name + "'");
  return static_cast<typename Spec::Kind>(found - std::begin(Spec::kNames));
}

OptimizerSpec make_optimizer(const std::string& kind, double momentum, bool nesterov, double beta_1, double beta_2, double epsilon, bool amsgrad,
                             double initial_accumulator_value, double learning_rate_power, double l1, double l2, double l2_shrinkage, double beta,
                             double weight_decay) {
  OptimizerSpec spec;
  spec.kind = kind_named<OptimizerSpec>(kind);
  spec.momentum = momentum, spec.nesterov = nesterov;
  spec.beta_1 = beta_1, spec.beta_2 = beta_2, spec.epsilon = epsilon, spec.amsgrad = amsgrad;
  spec.initial_accumulator_value = initial_accumulator_value, spec.learning_rate_power = learning_rate_power;
  spec.l1 = l1, spec.l2 = l2, spec.l2_shrinkage = l2_shrinkage, spec.beta = beta;
  spec.weight_decay = weight_decay;
  return spec;
}

InitializerSpec make_initializer(const std::string& kind, float a, float b) {
  InitializerSpec spec;
  spec.kind = kind_named<InitializerSpec>(kind);
  spec.a = a, spec.b = b;
  return spec;
}

nb::object lookup(Table& table, const Ids& ids) {
  const size_t n = ids.shape(0), dim = static_cast<size_t>(table.dim());
  MadeWeights out(table.scalar(), n * dim);
  {
    nb::gil_scoped_release released;
    table.lookup(ids.data(), n, out.data());
  }
  return out.array({n, dim});
}

nb::object peek(const Table& table, const Ids& ids, int view) {
  const size_t n = ids.shape(0), dim = static_cast<size_t>(table.dim());
  MadeWeights out(table.scalar(), n * dim);
  {
    nb::gil_scoped_release released;
    table.peek(ids.data(), n, out.data(), view);
  }
  return out.array({n, dim});
}

void apply(Table& table, const Ids& ids, const InMatrix& gradients, double learning_rate, int64_t step,
           const std::optional<std::pair<MarkArray, InMatrix>>& squares) {
  require_matrix("gradients", gradients, table.scalar(), ids.shape(0), static_cast<size_t>(table.dim()));
  require(step >= 1, "step is " + std::to_string(step) + ": the first update is step 1");
  const size_t n = ids.shape(0);
  SquaresReader given;
  if (squares) {
    const auto& [marks, values] = *squares;
    require(marks.shape(0) == Marks::words(n), "marks are " + std::to_string(marks.shape(0)) + " words: expected one for each 64 ids");
    require_matrix("squares", values, table.scalar(), Marks::count(marks.data(), n), static_cast<size_t>(table.dim()));
    given = SquaresReader(marks.data(), values.data(), static_cast<size_t>(table.dim()) * bytes_of(table.scalar()));
  }
  nb::gil_scoped_release released;
  table.apply(ids.data(), n, gradients.data(), {learning_rate, step}, given);
}

nb::tuple read(const Table& table, int view, size_t first_row, size_t max_rows) {
  const size_t all = table.view_rows(view), floats = static_cast<size_t>(table.row_floats());
  const size_t most = first_row < all ? std::min(max_rows, all - first_row) : 0;
  Made<int64_t> ids(most);
  MadeWeights values(table.scalar(), most * floats);
  size_t count = 0;
  {
    nb::gil_scoped_release released;
    count = table.read(view, first_row, most, ids.data(), values.data());
  }
  return nb::make_tuple(ids.array({count}), values.array({count, floats}));
}

void insert(Table& table, const Ids& ids, const InMatrix& values) {
  require_matrix("values", values, table.scalar(), ids.shape(0), static_cast<size_t>(table.row_floats()));
  nb::gil_scoped_release released;
  table.insert(ids.data(), ids.shape(0), values.data());
}

nb::tuple unique_ids_arrays(const Ids& ids) {
  const size_t n = ids.shape(0);
  std::vector<int64_t> found(n);
  Made<int32_t> positions(n);
  size_t count = 0;
  {
    nb::gil_scoped_release released;
    count = unique_ids(ids.data(), n, found.data(), positions.data());
  }
  Made<int64_t> out(count);
  std::copy_n(found.begin(), count, out.data());
  return nb::make_tuple(out.array({count}), positions.array({n}));
}

void require_positions(const Positions& positions, size_t count) {
  const size_t n = positions.shape(0);
  const int32_t *begin = positions.data(), *end = begin + n;
  // A negative one wraps to a huge value. The greatest of all is found without a branch for each.
  const auto below = [](int32_t a, int32_t b) { return static_cast<uint32_t>(a) < static_cast<uint32_t>(b); };
  uint32_t most = 0;
  for (size_t i = 0; i < n; ++i) most = std::max(most, static_cast<uint32_t>(begin[i]));
  if (n == 0 || most < count) return;
  const int32_t* one = std::max_element(begin, end, below);
  throw std::invalid_argument("positions[" + std::to_string(one - begin) + "] is " + std::to_string(*one) + ": expected 0 to " +
                              std::to_string(count) + " - 1");
}

nb::object merge_arrays(const InMatrix& values, const Positions& positions, size_t count) {
  const size_t n = values.shape(0), dim = values.shape(1);
  require(positions.shape(0) == n, "positions has " + std::to_string(positions.shape(0)) + " elements: expected one for each of " +
                                       std::to_string(n) + " rows of values");
  require_positions(positions, count);
  const Scalar scalar = type_of("values", values);
  MadeWeights out(scalar, count * dim);
  {
    nb::gil_scoped_release released;
    merge_rows(scalar, values.data(), positions.data(), n, dim, out.data(), count);
  }
  return out.array({count, dim});
}

nb::object mark_repeated_positions(const std::vector<Positions>& positions, size_t count) {
  std::vector<RowValues> parts;
  for (const Positions& part : positions) {
    require_positions(part, count);
    parts.push_back({nullptr, part.data(), part.shape(0)});
  }
  Made<uint64_t> marks(Marks::words(count));
  {
    nb::gil_scoped_release released;
    mark_repeated(parts, marks.data(), count);
  }
  return marks.array({Marks::words(count)});
}

nb::object merge_squares_arrays(const std::vector<InMatrix>& values, const std::vector<Positions>& positions, const MarkArray& marks, size_t count) {
  require(!values.empty() && values.size() == positions.size(), "expected as many arrays of values as of positions, and one at least");
  require(marks.shape(0) == Marks::words(count), "marks are " + std::to_string(marks.shape(0)) + " words: expected one for each 64 rows");
  const size_t dim = values.front().shape(1);
  const Scalar scalar = type_of("values", values.front());
  std::vector<RowValues> parts;
  for (size_t k = 0; k < values.size(); ++k) {
    require_matrix("values", values[k], scalar, positions[k].shape(0), dim);
    require_positions(positions[k], count);
    parts.push_back({values[k].data(), positions[k].data(), values[k].shape(0)});
  }
  const size_t marked = Marks::count(marks.data(), count);
  MadeWeights out(scalar, marked * dim);
  {
    nb::gil_scoped_release released;
    merge_squares(scalar, parts, dim, marks.data(), count, out.data());
  }
  return out.array({marked, dim});
}

void update_arrays(const OptimizerSpec& spec, const OutVector& weights, const nb::list& slots, const InVector& gradients, double learning_rate,
                   int64_t step) {
  const size_t n = weights.shape(0);
  const Scalar scalar = type_of("weights", weights);
  require_type("gradients", gradients, scalar);
  require(gradients.shape(0) == n, "gradients has " + std::to_string(gradients.shape(0)) + " elements: expected " + std::to_string(n));
  require(slots.size() == static_cast<size_t>(spec.slots()), std::to_string(slots.size()) + " slots: expected " + std::to_string(spec.slots()));
  require(step >= 1, "step is " + std::to_string(step) + ": the first update is step 1");
  std::vector<OutVector> kept;
  std::vector<void*> pointers;
  for (nb::handle slot : slots) {
    kept.push_back(nb::cast<OutVector>(slot, false));
    require_type("a slot", kept.back(), scalar);
    require(kept.back().shape(0) == n, "a slot has " + std::to_string(kept.back().shape(0)) + " elements: expected " + std::to_string(n));
    pointers.push_back(kept.back().data());
  }
  nb::gil_scoped_release released;
  update_dense(spec, scalar, {learning_rate, step}, n, weights.data(), pointers.data(), gradients.data());
}

void bind_specs(nb::module_& m) {
  nb::class_<OptimizerSpec>(m, "OptimizerSpec")
      .def("__init__", [](OptimizerSpec* self, const std::string& kind, double momentum, bool nesterov, double beta_1, double beta_2, double epsilon,
                          bool amsgrad, double initial_accumulator_value, double learning_rate_power, double l1, double l2, double l2_shrinkage,
                          double beta, double weight_decay) {
        new (self) OptimizerSpec(make_optimizer(kind, momentum, nesterov, beta_1, beta_2, epsilon, amsgrad, initial_accumulator_value,
                                                learning_rate_power, l1, l2, l2_shrinkage, beta, weight_decay));
      }, "kind"_a, nb::kw_only(), "momentum"_a = 0.0, "nesterov"_a = false, "beta_1"_a = 0.9, "beta_2"_a = 0.999, "epsilon"_a = 1e-7,
         "amsgrad"_a = false, "initial_accumulator_value"_a = 0.1, "learning_rate_power"_a = -0.5, "l1"_a = 0.0, "l2"_a = 0.0,
         "l2_shrinkage"_a = 0.0, "beta"_a = 0.0, "weight_decay"_a = 0.0)
      .def_prop_ro("slots", &OptimizerSpec::slots);
  nb::class_<InitializerSpec>(m, "InitializerSpec")
      .def("__init__", [](InitializerSpec* self, const std::string& kind, float a, float b) { new (self) InitializerSpec(make_initializer(kind, a, b)); },
           "kind"_a, "a"_a, "b"_a);
}

void bind_table(nb::module_& m) {
  nb::class_<Table>(m, "Table")
      .def("__init__", [](Table* self, int dim, const InitializerSpec& initializer, const OptimizerSpec& optimizer, uint64_t seed,
                          const std::string& dtype) { new (self) Table(dim, initializer, optimizer, seed, scalar_named(dtype)); },
           "dim"_a, "initializer"_a, "optimizer"_a, "seed"_a, "dtype"_a = "float32")
      .def_prop_ro("dim", &Table::dim)
      .def_prop_ro("row_floats", &Table::row_floats)
      .def_prop_ro("memory_bytes", &Table::memory_bytes)
      .def("__len__", &Table::rows)
      .def("lookup", &lookup, "ids"_a.noconvert())
      .def("peek", &peek, "ids"_a.noconvert(), "view"_a = -1)
      .def("apply", &apply, "ids"_a.noconvert(), "gradients"_a.noconvert(), "learning_rate"_a, "step"_a,
           "squares"_a.noconvert().none() = nb::none())
      .def("advance", &Table::advance, "step"_a, "learning_rate"_a = 0.0, nb::call_guard<nb::gil_scoped_release>())
      .def("begin_view", &Table::begin_view, "view"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("end_view", &Table::end_view, "view"_a, nb::call_guard<nb::gil_scoped_release>())
      .def("view_rows", &Table::view_rows, "view"_a)
      .def("read", &read, "view"_a, "first_row"_a, "max_rows"_a)
      .def("insert", &insert, "ids"_a.noconvert(), "values"_a.noconvert());
}
}  // namespace
}  // namespace elasticdl

void bind_embedding(nb::module_& m) {
  elasticdl::bind_specs(m);
  elasticdl::bind_table(m);
  m.def("unique_ids", &elasticdl::unique_ids_arrays, "ids"_a.noconvert());
  m.def("merge_rows", &elasticdl::merge_arrays, "values"_a.noconvert(), "positions"_a.noconvert(), "count"_a);
  m.def("mark_repeated", &elasticdl::mark_repeated_positions, "positions"_a.noconvert(), "count"_a);
  m.def("merge_squares", &elasticdl::merge_squares_arrays, "values"_a.noconvert(), "positions"_a.noconvert(), "marks"_a.noconvert(), "count"_a);
  m.def("update_dense", &elasticdl::update_arrays, "spec"_a, "weights"_a.noconvert(), "slots"_a, "gradients"_a.noconvert(), "learning_rate"_a, "step"_a);
}
