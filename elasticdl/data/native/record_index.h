// One pass over a CSV or TFRecord file: records the offset of every n-th record, so that a shard is read without the
// bytes before it. No Python here.
#pragma once
#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "csv_rows.h"

namespace elasticdl::data {

// An entry every `records` records, or where records are large, about every `bytes` bytes; never more than kMaxEntries.
struct Stride {
  int64_t records;
  int64_t bytes;
};

struct Entry {
  int64_t record;
  int64_t offset;
  int64_t line;  // from 1; 0 in TFRecord
};

struct BadRow {
  int64_t line;
  std::string why;
  std::string start;  // its first bytes
};

enum class Fault { none, io, truncated, damaged, open_quote, long_row };

struct RecordIndex {
  std::vector<Entry> entries;  // the last one is the end: number of records, offset behind the last
  int64_t bad = 0;
  std::vector<BadRow> examples;  // the first three
  int64_t columns = 0;
  Fault fault = Fault::none;
  int fault_errno = 0;
  int64_t fault_offset = 0;
  int64_t fault_line = 0;
};

inline constexpr size_t kExamples = 3;
inline constexpr int64_t kMaxEntries = 500'000;  // 12 MB in memory

// Where a pass gets its bytes. A pass reads forward, but for the 11 bytes before the last that it read.
class Bytes {
 public:
  virtual ~Bytes() = default;
  // Like pread: how many bytes from `offset` on are in `to`, 0 at the end, -1 with errno.
  virtual ssize_t read(char* to, int64_t size, int64_t offset) = 0;
};

// Reads a descriptor with pread, so its position does not change.
class FileBytes final : public Bytes {
 public:
  explicit FileBytes(int fd) : fd_(fd) {}
  ssize_t read(char* to, int64_t size, int64_t offset) override;

 private:
  int fd_;
};

// Describes a bad row; "" for a good one.
std::string what_is_wrong(const RowScan& scan, int64_t columns);

// Bytes [begin, size) of a CSV file. `columns` is the right number of fields; 0: that of the first row.
RecordIndex index_csv(Bytes& bytes, int64_t begin, int64_t size, const Dialect& dialect, int64_t columns, Stride stride);

// A TFRecord file of `size` bytes. Checks each length with its checksum, but skips the data.
RecordIndex index_tfrecord(Bytes& bytes, int64_t size, Stride stride);

}  // namespace elasticdl::data
