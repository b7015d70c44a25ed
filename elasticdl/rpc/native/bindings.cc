// Python's view of the bulk plane's client: arrays are checked here and never converted; the GIL is released for the work.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <system_error>
#include <tuple>

#include "elasticdl/embedding/native/arrays.h"
#include "elasticdl/rpc/native/pool.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace elasticdl {
namespace {
using IdArray = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using MarkArray = nb::ndarray<const uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void set_error(const char* name, const char* message) {
  nb::object type = nb::module_::import_("elasticdl.errors").attr(name);
  PyErr_SetString(type.ptr(), message);
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const UserError& error) {
    set_error("UserError", error.what());
  } catch (const TransientError& error) {
    set_error("TransientError", error.what());
  } catch (const Refused& error) {
    set_error("Refused", error.what());
  } catch (const Corrupted& error) {
    set_error("Corrupted", error.what());
  } catch (const std::system_error& error) {
    nb::object problem = nb::steal(PyObject_CallFunction(PyExc_OSError, "is", error.code().value(), error.what()));
    PyErr_SetObject(PyExc_OSError, problem.ptr());
  }
}

// Called while a call waits, so that Python can handle Ctrl-C and other signals.
void look_for_signals() {
  nb::gil_scoped_acquire acquired;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

std::vector<Ids> as_ids(const std::vector<IdArray>& arrays) {
  std::vector<Ids> ids;
  for (const IdArray& array : arrays) ids.push_back({array.data(), array.shape(0)});
  return ids;
}

// Throws ValueError unless arrays[t] is [ids[t].count, dim of t], TypeError unless it is of the spec's type.
template <class Array>
void require_rows(const Spec& spec, const std::vector<Ids>& ids, const std::vector<Array>& arrays) {
  require(ids.size() == spec.tables.size() && arrays.size() == spec.tables.size(),
          "ids and rows of " + std::to_string(ids.size()) + " and " + std::to_string(arrays.size()) + " tables, the model has " +
              std::to_string(spec.tables.size()));
  for (size_t t = 0; t < arrays.size(); ++t) {
    require_type("rows of table " + spec.tables[t].name, arrays[t], spec.scalar);
    require(arrays[t].shape(0) == ids[t].count && arrays[t].shape(1) == spec.tables[t].dim,
            "rows of table " + spec.tables[t].name + " are [" + std::to_string(arrays[t].shape(0)) + ", " +
                std::to_string(arrays[t].shape(1)) + "]: expected [" + std::to_string(ids[t].count) + ", " +
                std::to_string(spec.tables[t].dim) + "]");
  }
}

// None at all: no id of any table repeats.
std::vector<RowSquares> checked_squares(const Spec& spec, const std::vector<Ids>& ids, const std::vector<std::pair<MarkArray, InMatrix>>& squares) {
  std::vector<RowSquares> all(ids.size());
  if (squares.empty()) return all;
  require(squares.size() == ids.size(), "squares of " + std::to_string(squares.size()) + " tables, the model has " + std::to_string(ids.size()));
  for (size_t t = 0; t < squares.size(); ++t) {
    const auto& [marks, values] = squares[t];
    require_type("squares of table " + spec.tables[t].name, values, spec.scalar);
    require(marks.shape(0) == Marks::words(ids[t].count) && values.shape(0) == Marks::count(marks.data(), ids[t].count) &&
                values.shape(1) == spec.tables[t].dim,
            "squares of table " + spec.tables[t].name + " are [" + std::to_string(values.shape(0)) + ", " + std::to_string(values.shape(1)) +
                "] with " + std::to_string(marks.shape(0)) + " words of marks: they do not fit its " + std::to_string(ids[t].count) + " ids");
    all[t] = {marks.data(), values.data()};
  }
  return all;
}

std::vector<Range> checked_spans(const Spec& spec, const std::vector<std::pair<uint64_t, uint64_t>>& spans, const std::optional<InVector>& squares) {
  std::vector<Range> all;
  uint64_t before = 0, size = 0;
  for (const auto& [begin, end] : spans) {
    require(before <= begin && begin < end && end <= spec.trainable, "spans must be in their order and within the trainable part");
    all.push_back({begin, end});
    size += end - begin;
    before = end;
  }
  if (squares) require_type("dense_squares", *squares, spec.scalar);
  require(size == (squares ? squares->shape(0) : 0), "dense_squares must have a value for each of the " + std::to_string(size) + " of its spans");
  return all;
}

template <class Array>
auto checked_dense(const Spec& spec, const std::optional<Array>& dense) -> decltype(dense->data()) {
  if (!dense) return nullptr;
  require_type("dense", *dense, spec.scalar);
  require(dense->shape(0) == spec.trainable + spec.additive, "dense has " + std::to_string(dense->shape(0)) + " values: expected " +
                                                                 std::to_string(spec.trainable + spec.additive));
  return dense->data();
}

std::vector<std::pair<bool, std::string>> initialise(Pool& pool, const Spec& spec, const InVector& dense, double timeout_s) {
  const void* values = checked_dense(spec, std::optional<InVector>(dense));
  nb::gil_scoped_release released;
  std::vector<std::pair<bool, std::string>> answers;
  for (InitialiseAnswer& answer : pool.initialise(spec, values, timeout_s)) answers.emplace_back(answer.took, std::move(answer.json));
  return answers;
}

std::pair<std::vector<int64_t>, std::vector<double>> pull(
    Pool& pool, const std::vector<IdArray>& ids, int64_t snapshot, const std::optional<OutVector>& dense,
    const std::vector<OutMatrix>& rows, const std::optional<InVector>& newest, double timeout_s, bool exact) {
  std::vector<Ids> wanted = as_ids(ids);
  require_rows(pool.spec(), wanted, rows);
  std::vector<void*> outs;
  for (const OutMatrix& array : rows) outs.push_back(array.data());
  void* dense_out = checked_dense(pool.spec(), dense);
  const void* seed = checked_dense(pool.spec(), newest);
  nb::gil_scoped_release released;
  PullAnswer answer = pool.pull(wanted, snapshot, dense_out, outs, seed, timeout_s, exact);
  return {std::move(answer.versions), std::move(answer.seconds)};
}

using MetList = std::vector<std::pair<std::string, int64_t>>;

MetList as_list(std::vector<Met>&& all) {
  MetList list;
  for (Met& one : all) list.emplace_back(std::move(one.address), one.lacks);
  return list;
}

std::tuple<std::vector<int64_t>, std::vector<int64_t>, std::vector<double>, MetList, bool, size_t> push(
    Pool& pool, int64_t sequence, const std::vector<int64_t>& applied, const std::vector<int64_t>& versions, double learning_rate,
    const std::optional<InVector>& dense, const std::vector<IdArray>& ids, const std::vector<InMatrix>& gradients,
    const std::vector<std::pair<MarkArray, InMatrix>>& squares, const std::vector<std::pair<uint64_t, uint64_t>>& spans,
    const std::optional<InVector>& dense_squares, const std::optional<InVector>& newest, double timeout_s) {
  require(applied.size() == 3, "applied is (shard, attempt, offset)");
  PushRequest request{sequence, applied[0], applied[1], applied[2], versions, learning_rate, nullptr, as_ids(ids)};
  require_rows(pool.spec(), request.ids, gradients);
  request.dense = checked_dense(pool.spec(), dense);
  for (const InMatrix& array : gradients) request.gradients.push_back(array.data());
  request.squares = checked_squares(pool.spec(), request.ids, squares);
  request.spans = checked_spans(pool.spec(), spans, dense_squares);
  if (dense_squares) request.dense_squares = dense_squares->data();
  require(dense || spans.empty(), "squares of a dense gradient that is not there");
  const void* seed = checked_dense(pool.spec(), newest);
  nb::gil_scoped_release released;
  PushAnswer answer = pool.push(request, seed, timeout_s);
  return {std::move(answer.versions), std::move(answer.staleness), std::move(answer.seconds), as_list(std::move(answer.met)), answer.crowded,
          answer.too_large};
}

MetList meet(Pool& pool, const std::optional<InVector>& newest, double timeout_s) {
  const void* seed = checked_dense(pool.spec(), newest);
  nb::gil_scoped_release released;
  return as_list(pool.meet(seed, timeout_s));
}

// The bytes of a vector as a NumPy array, without a copy.
template <class T>
nb::object owned(std::vector<T>&& values, std::initializer_list<size_t> shape, nb::dlpack::dtype dtype) {
  auto* kept = new std::vector<T>(std::move(values));
  nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy>(kept->data(), shape.size(), shape.begin(), owner, nullptr, dtype));
}

nb::tuple rows(Pool& pool, uint32_t server, uint32_t table, int64_t snapshot, uint64_t begin, const std::optional<InVector>& newest,
               double timeout_s) {
  const void* seed = checked_dense(pool.spec(), newest);
  RowsPage page;
  {
    nb::gil_scoped_release released;
    page = pool.rows(server, table, snapshot, begin, seed, timeout_s);
  }
  const size_t count = page.ids.size(), dim = pool.spec().tables[table].dim;
  return nb::make_tuple(page.lost, page.total, owned(std::move(page.ids), {count}, nb::dtype<int64_t>()),
                        owned(std::move(page.values), {count, dim}, dtype_of(pool.spec().scalar)));
}

Rounding rounding_named(const std::string& precision) {
  if (precision == "float32") return Rounding::full;
  if (precision == "bfloat16") return Rounding::bfloat16;
  require(precision == "auto", "precision '" + precision + "': expected float32, bfloat16 or auto");
  return Rounding::by_time;
}

std::pair<const char*, const char*> encodings(const Pool& pool) {
  const auto [pulls, pushes] = pool.encodings();
  return {kEncodingNames[static_cast<unsigned>(pulls)], kEncodingNames[static_cast<unsigned>(pushes)]};
}

void add_table(Spec& spec, const std::string& name, uint32_t dim, const InitializerSpec& initializer, uint64_t seed, bool whole) {
  spec.tables.push_back({name, dim, initializer, seed, whole});
}

}  // namespace
}  // namespace elasticdl

void bind_rpc(nb::module_& m) {
  using namespace elasticdl;
  nb::register_exception_translator(translate);
  m.attr("BULK_MAGIC") = wire::kMagic;
  m.attr("BULK_VERSION") = wire::kVersion;
  nb::class_<Spec>(m, "ParametersSpec")
      .def("__init__", [](Spec* self, const OptimizerSpec& optimizer, uint64_t trainable, uint64_t additive, const std::string& json,
                          const std::string& dtype) {
        new (self) Spec{optimizer, scalar_named(dtype), trainable, additive, {}, json};
      }, "optimizer"_a, "trainable"_a, "additive"_a, "json"_a, "dtype"_a = "float32")
      .def("add_table", &add_table, "name"_a, "dim"_a, "initializer"_a, "seed"_a, "whole"_a = false)
      .def_ro("json", &Spec::json);
  nb::class_<Pool>(m, "Pool")
      .def("__init__", [](Pool* self, const std::vector<std::string>& addresses, const std::vector<std::string>& tokens, const std::string& name,
                          const std::string& authority, const std::string& precision, size_t kept_bytes) {
        new (self) Pool(addresses, tokens, name, look_for_signals, client_tls(authority), rounding_named(precision), kept_bytes);
      }, "addresses"_a, "tokens"_a, "name"_a, "authority"_a = "", "precision"_a = "float32", "kept_bytes"_a = 0)
      .def("followed", [](const Pool& before, const std::vector<std::string>& addresses, const std::vector<std::string>& tokens, uint32_t first) {
        return new Pool(before, addresses, tokens, first, look_for_signals);
      }, "addresses"_a, "tokens"_a, "first"_a)
      .def("adopt", &Pool::adopt, "spec"_a)
      .def("pack", &Pool::pack, "always"_a)
      .def("encodings", &encodings)
      .def("initialise", &initialise, "spec"_a, "dense"_a.noconvert(), "timeout_s"_a)
      .def("pull", &pull, "ids"_a.noconvert(), "snapshot"_a, "dense"_a.none(), "rows"_a.noconvert(), "newest"_a.none(), "timeout_s"_a,
           "exact"_a)
      .def("push", &push, "sequence"_a, "applied"_a, "versions"_a, "learning_rate"_a, "dense"_a.none(), "ids"_a.noconvert(),
           "gradients"_a.noconvert(), "squares"_a.noconvert(), "spans"_a, "dense_squares"_a.none(), "newest"_a.none(), "timeout_s"_a)
      .def("take_rest", [](Pool& pool) { return as_list(pool.take_rest()); })
      .def("meet", &meet, "newest"_a.none(), "timeout_s"_a)
      .def("rows", &rows, "server"_a, "table"_a, "snapshot"_a, "begin"_a, "newest"_a.none(), "timeout_s"_a)
      .def("move", &Pool::move, "addresses"_a)
      .def("close", &Pool::close);
}
