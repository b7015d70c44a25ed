// Python bindings of the data readers: bytes in, object arrays of bytes out. Indexing releases the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <string_view>

#include "crc32c.h"
#include "record_index.h"

namespace nb = nanobind;

namespace elasticdl::data {
namespace {

// A writable object array's items, [size]. Each item is owned by the array.
class ObjectItems {
 public:
  explicit ObjectItems(nb::handle array) {
    if (PyObject_GetBuffer(array.ptr(), &view_, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) throw nb::python_error();
    if (std::strcmp(view_.format, "O") != 0) {
      PyBuffer_Release(&view_);
      throw nb::type_error("expected a contiguous numpy array of dtype object");
    }
  }
  ObjectItems(const ObjectItems&) = delete;
  ~ObjectItems() { PyBuffer_Release(&view_); }

  size_t size() const { return static_cast<size_t>(view_.len) / sizeof(PyObject*); }

  void set_bytes(size_t i, const char* data, size_t size) {
    PyObject* made = PyBytes_FromStringAndSize(data, static_cast<Py_ssize_t>(size));
    if (made == nullptr) throw nb::python_error();
    PyObject** items = static_cast<PyObject**>(view_.buf);
    PyObject* old = items[i];
    items[i] = made;
    Py_XDECREF(old);
  }

 private:
  Py_buffer view_;
};

// Fields of one row: spans of the input, or of `spill` where doubled quotes were removed.
class Fields {
 public:
  void clear() {
    spans_.clear();
    spill_.clear();
    pieces_ = 0;
  }
  void piece(const char* data, size_t size) {
    if (pieces_ == 0) {
      first_ = std::string_view(data, size);
    } else {
      if (pieces_ == 1) {
        begin_ = spill_.size();
        spill_.append(first_);
      }
      spill_.append(data, size);
    }
    ++pieces_;
  }
  void field_done() {
    if (pieces_ > 1)
      spans_.push_back({nullptr, begin_, spill_.size() - begin_});
    else
      spans_.push_back({first_.data(), 0, first_.size()});
    pieces_ = 0;
  }
  size_t size() const { return spans_.size(); }
  std::string_view operator[](size_t i) const {
    const Span& span = spans_[i];
    return {span.data != nullptr ? span.data : spill_.data() + span.begin, span.size};
  }

 private:
  struct Span {
    const char* data;
    size_t begin;
    size_t size;
  };
  std::vector<Span> spans_;
  std::string spill_;
  std::string_view first_;
  size_t begin_ = 0;
  int pieces_ = 0;
};

nb::object to_python(const RecordIndex& index) {
  nb::list examples;
  for (const BadRow& row : index.examples)
    examples.append(nb::make_tuple(row.line, row.why, nb::bytes(row.start.data(), row.start.size())));
  static constexpr const char* kFaults[] = {"", "io", "truncated", "damaged", "open quote", "long row"};
  nb::dict result;
  result["entries"] = nb::bytes(index.entries.data(), index.entries.size() * sizeof(Entry));
  result["bad"] = index.bad;
  result["examples"] = examples;
  result["columns"] = index.columns;
  result["fault"] = kFaults[static_cast<int>(index.fault)];
  result["errno"] = index.fault_errno;
  result["offset"] = index.fault_offset;
  result["line"] = index.fault_line;
  return result;
}

// Calls read(offset, size) -> bytes. The pass itself runs without the GIL.
class CalledBytes final : public Bytes {
 public:
  explicit CalledBytes(nb::handle function) : function_(function) {}

  ssize_t read(char* to, int64_t size, int64_t offset) override {
    nb::gil_scoped_acquire acquire;
    const nb::bytes got = nb::cast<nb::bytes>(function_(offset, size));
    if (got.size() > static_cast<size_t>(size)) throw nb::value_error("read() returned more bytes than it was asked for");
    std::memcpy(to, got.data(), got.size());
    return static_cast<ssize_t>(got.size());
  }

 private:
  nb::handle function_;
};

// Runs a pass, without the GIL, over a descriptor or a function that reads.
template <class Pass>
RecordIndex indexed(nb::handle source, const Pass& pass) {
  if (nb::isinstance<nb::int_>(source)) {
    FileBytes bytes(nb::cast<int>(source));
    nb::gil_scoped_release release;
    return pass(bytes);
  }
  CalledBytes bytes(source);
  nb::gil_scoped_release release;
  return pass(bytes);
}

nb::object csv_index(nb::handle source, int64_t begin, int64_t size, char delimiter, bool quoting, int64_t columns, int64_t stride_records,
                     int64_t stride_bytes) {
  const Dialect dialect(delimiter, quoting);
  return to_python(indexed(
      source, [&](Bytes& bytes) { return index_csv(bytes, begin, size, dialect, columns, {stride_records, stride_bytes}); }));
}

nb::object tfrecord_index(nb::handle source, int64_t size, int64_t stride_records, int64_t stride_bytes) {
  return to_python(indexed(source, [&](Bytes& bytes) { return index_tfrecord(bytes, size, {stride_records, stride_bytes}); }));
}

nb::object csv_first_row(nb::bytes data, bool final, char delimiter, bool quoting) {
  const Dialect dialect(delimiter, quoting);
  const char* p = static_cast<const char*>(data.data());
  const char* end = p + data.size();
  int64_t line = 1;
  p = skip_empty_lines(p, end, final, line);
  Fields fields;
  RowScan scan;
  if (p == end || scan_row(p, end, final, dialect, fields, scan) == nullptr) return nb::none();
  nb::list row;
  for (size_t i = 0; i < fields.size(); ++i) row.append(nb::bytes(fields[i].data(), fields[i].size()));
  return row;
}

nb::tuple csv_rows(nb::bytes data, char delimiter, bool quoting, int64_t skip, int64_t line, size_t columns, nb::handle out) {
  const Dialect dialect(delimiter, quoting);
  ObjectItems items(out);
  if (columns == 0 || items.size() % columns != 0) throw nb::value_error("`out` must be [take, columns]");
  const int64_t take = static_cast<int64_t>(items.size() / columns);
  const char* p = static_cast<const char*>(data.data());
  const char* end = p + data.size();
  Fields fields;
  nb::list bad;
  int64_t row = 0;
  size_t good = 0;
  for (; row < skip + take; ++row) {
    p = skip_empty_lines(p, end, true, line);
    if (p == end) break;
    RowScan scan;
    const char* begin = p;
    fields.clear();
    p = row < skip ? skim_row(p, end, true, dialect, scan) : scan_row(p, end, true, dialect, fields, scan);
    if (p == nullptr) break;
    if (row >= skip) {
      if (scan.fields == columns && !scan.stray) {
        for (size_t i = 0; i < columns; ++i) items.set_bytes(good * columns + i, fields[i].data(), fields[i].size());
        ++good;
      } else {
        bad.append(nb::make_tuple(line, what_is_wrong(scan, static_cast<int64_t>(columns)),
                                  nb::bytes(begin, std::min<size_t>(p - begin, 60))));
      }
    }
    line += scan.newlines + 1;
  }
  return nb::make_tuple(good, std::max<int64_t>(row - skip, 0), bad);
}

nb::tuple tfrecord_rows(nb::bytes data, int64_t skip, nb::handle out) {
  ObjectItems items(out);
  const int64_t take = static_cast<int64_t>(items.size());
  const char* start = static_cast<const char*>(data.data());
  const size_t size = data.size();
  nb::list bad;
  size_t at = 0;
  size_t good = 0;
  int64_t row = 0;
  for (; row < skip + take && size - at >= 16; ++row) {
    uint64_t length;
    uint32_t length_checksum;
    std::memcpy(&length, start + at, 8);
    std::memcpy(&length_checksum, start + at + 8, 4);
    if (masked(crc32c(start + at, 8)) != length_checksum || length > size - at - 16) break;
    if (row >= skip) {
      const char* record = start + at + 12;
      uint32_t checksum;
      std::memcpy(&checksum, record + length, 4);
      if (masked(crc32c(record, length)) == checksum)
        items.set_bytes(good++, record, length);
      else
        bad.append(at);
    }
    at += 16 + length;
  }
  return nb::make_tuple(good, std::max<int64_t>(row - skip, 0), bad, at);
}

}  // namespace
}  // namespace elasticdl::data

void bind_data(nb::module_& m) {
  using namespace elasticdl::data;
  m.def("crc32c", [](nb::bytes data, uint32_t crc) { return crc32c(data.data(), data.size(), crc); }, nb::arg("data"),
        nb::arg("crc") = 0, "CRC-32C of bytes, going on from `crc`.");
  m.def("csv_index", &csv_index, "Where rows begin; see elasticdl/data/native/record_index.h.");
  m.def("csv_first_row", &csv_first_row, "Fields of the first row, or None if `data` ends before it does.");
  m.def("csv_rows", &csv_rows, "Parses rows [skip, skip+take) of `data` into out[take, columns]; (good, seen, bad rows).");
  m.def("tfrecord_index", &tfrecord_index, "Where records begin; see elasticdl/data/native/record_index.h.");
  m.def("tfrecord_rows", &tfrecord_rows, "Records [skip, skip+take) of `data` into out[take]; (good, seen, bad offsets, used).");
}
