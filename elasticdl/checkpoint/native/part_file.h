// One server's part of a checkpoint: a JSON header that describes the content, then raw weights and int64.
//
//   "EDLPART1" | uint64 bytes of the header | header (JSON, padded with spaces) | sections
//
// Sections in order: trainable weights, each optimizer slot, additive weights, then table by table blocks of at most
// kBlockRows rows: int64 ids of the block, its tags if the header says so, then its rows. Nothing is padded between sections.
// Sizes follow from the header.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "elasticdl/checkpoint/native/pace.h"
#include "elasticdl/embedding/native/table.h"

namespace elasticdl::checkpoint {

constexpr char kMagic[] = "EDLPART1";
constexpr uint64_t kBlockRows = 16384;

// Writes from front to back and keeps the CRC-32C of all of it. I/O errors throw std::system_error.
class Writer {
 public:
  // Creates or replaces `path`. Pauses at `pace`; null: never.
  explicit Writer(const std::string& path, Pace* pace = nullptr);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void put(const void* data, size_t bytes);
  // Flushes the file to disk.
  void finish();
  uint64_t bytes() const { return bytes_; }
  uint32_t crc() const { return crc_; }

 private:
  void put_piece(const char* data, size_t bytes);
  void begin_flush();

  std::string path_;
  int fd_;
  Pace* pace_;
  uint64_t bytes_ = 0;
  uint64_t flushing_ = 0;  // bytes whose writeback has been started
  uint32_t crc_ = 0;
};

void write_header(Writer& writer, const std::string& json);
// A weight that is NaN or infinite. `table` is -1 for dense weights, `at` an index there and an id in a table.
struct NonFinite {
  int64_t table;
  int64_t at;
  double value;
};

// `count` weights that begin at `first` of the dense vector. Returns the first non-finite one, and then writes nothing.
std::optional<NonFinite> write_dense(Writer& writer, Scalar scalar, const void* weights, uint64_t count, uint64_t first);
// The rows of a frozen table, known as `number`; with `changed` those only that were changed since the base of the view.
// Returns the first weight (not slot) that is not finite, where it stops.
std::optional<NonFinite> write_table(Writer& writer, const Table& table, int view, int64_t number, bool changed);

// Random-access reads. I/O errors throw std::system_error; a file that is too short throws Corrupted.
class Reader {
 public:
  explicit Reader(const std::string& path);
  ~Reader();
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  void get(uint64_t offset, void* data, size_t bytes) const;

 private:
  std::string path_;
  int fd_;
};

// Inserts those of the `rows` rows at `offset` whose ids `wanted` accepts. `tagged`: their tags are there. Returns their number.
uint64_t read_table(const Reader& reader, uint64_t offset, uint64_t rows, bool tagged, Table& table, const std::function<bool(int64_t)>& wanted);

}  // namespace elasticdl::checkpoint
