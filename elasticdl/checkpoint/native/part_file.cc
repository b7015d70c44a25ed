#include "elasticdl/checkpoint/native/part_file.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "elasticdl/checkpoint/native/finite.h"
#include "elasticdl/data/native/crc32c.h"
#include "elasticdl/rpc/native/errors.h"

namespace elasticdl::checkpoint {
namespace {

constexpr size_t kRowsAtOnce = 1024;
// Its checksum leaves a piece in the cache from which the system copies it.
constexpr size_t kPieceBytes = size_t{256} << 10;
constexpr uint64_t kFlushBytes = uint64_t{8} << 20;

[[noreturn]] void problem(const std::string& path) { throw std::system_error(errno, std::generic_category(), path); }

}  // namespace

Writer::Writer(const std::string& path, Pace* pace)
    : path_(path), fd_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644)), pace_(pace) {
  if (fd_ < 0) problem(path_);
}

Writer::~Writer() {
  if (fd_ >= 0) ::close(fd_);
}

void Writer::put(const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  for (size_t piece; bytes > 0; at += piece, bytes -= piece) {
    piece = std::min(bytes, kPieceBytes);
    put_piece(at, piece);
    begin_flush();
    if (pace_ != nullptr) pace_->rest(piece);
  }
}

void Writer::put_piece(const char* at, size_t bytes) {
  crc_ = data::crc32c(at, bytes, crc_);
  bytes_ += bytes;
  while (bytes > 0) {
    ssize_t written = ::write(fd_, at, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) problem(path_);
    at += written;
    bytes -= static_cast<size_t>(written);
  }
}

// Starts the writeback of the bytes that were written since the last call. Otherwise `finish` would write back the whole file
// while training needs the disk and the processors. `fsync` in `finish` reports an error that happens here.
void Writer::begin_flush() {
  if (bytes_ - flushing_ < kFlushBytes) return;
  ::sync_file_range(fd_, static_cast<off_t>(flushing_), static_cast<off_t>(bytes_ - flushing_), SYNC_FILE_RANGE_WRITE);
  flushing_ = bytes_;
}

void Writer::finish() {
  if (::fsync(fd_) != 0) problem(path_);
  int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) problem(path_);
}

void write_header(Writer& writer, const std::string& json) {
  std::string padded = json;
  padded.resize((json.size() + 63) / 64 * 64, ' ');
  uint64_t bytes = padded.size();
  writer.put(kMagic, 8);
  writer.put(&bytes, sizeof bytes);
  writer.put(padded.data(), padded.size());
}

std::optional<NonFinite> write_dense(Writer& writer, Scalar scalar, const void* weights, uint64_t count, uint64_t first) {
  const size_t bad = first_nonfinite(scalar, weights, count);
  if (bad < count) return NonFinite{-1, static_cast<int64_t>(first + bad), value_at(scalar, weights, bad)};
  writer.put(weights, count * bytes_of(scalar));
  return std::nullopt;
}

std::optional<NonFinite> write_table(Writer& writer, const Table& table, int view, int64_t number, bool changed) {
  const size_t row_bytes = table.row_bytes(), dim = static_cast<size_t>(table.dim());
  std::vector<int64_t> ids(std::min<size_t>(kBlockRows, changed ? table.changed_rows(view) : table.view_rows(view)));
  std::vector<RowTag> tags(table.tagged() ? ids.size() : 0);
  std::vector<char> values(ids.size() * row_bytes);
  size_t next = 0;
  // A few rows at a time: updates of the table wait meanwhile.
  const auto read_block = [&] {
    size_t count = 0;
    while (count < ids.size()) {
      RowTag* const tag = tags.empty() ? nullptr : tags.data() + count;
      const size_t most = std::min(kRowsAtOnce, ids.size() - count);
      const size_t got = table.read_stored(view, changed, next, most, ids.data() + count, tag, values.data() + count * row_bytes);
      if (got == 0) break;
      count += got;
    }
    return count;
  };
  while (const size_t count = read_block()) {
    for (size_t i = 0; i < count; ++i) {
      const char* weights = values.data() + i * row_bytes;
      const size_t bad = first_nonfinite(table.scalar(), weights, dim);
      if (bad < dim) return NonFinite{number, ids[i], value_at(table.scalar(), weights, bad)};
    }
    writer.put(ids.data(), count * sizeof(int64_t));
    if (!tags.empty()) writer.put(tags.data(), count * sizeof(RowTag));
    writer.put(values.data(), count * row_bytes);
  }
  return std::nullopt;
}

Reader::Reader(const std::string& path) : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (fd_ < 0) problem(path_);
}

Reader::~Reader() { ::close(fd_); }

void Reader::get(uint64_t offset, void* data, size_t bytes) const {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    ssize_t got = ::pread(fd_, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) problem(path_);
    if (got == 0) throw Corrupted(path_ + " ends at byte " + std::to_string(offset) + ", " + std::to_string(bytes) + " more were expected");
    at += got;
    offset += static_cast<uint64_t>(got);
    bytes -= static_cast<size_t>(got);
  }
}

uint64_t read_table(const Reader& reader, uint64_t offset, uint64_t rows, bool tagged, Table& table, const std::function<bool(int64_t)>& wanted) {
  const size_t row_bytes = table.row_bytes();
  std::vector<int64_t> ids(std::min(kBlockRows, rows));
  std::vector<RowTag> tags(tagged ? ids.size() : 0);
  std::vector<char> values(ids.size() * row_bytes);
  uint64_t taken = 0;
  for (uint64_t first = 0; first < rows; first += kBlockRows) {
    const size_t count = std::min(kBlockRows, rows - first);
    reader.get(offset, ids.data(), count * sizeof(int64_t));
    offset += count * sizeof(int64_t);
    if (tagged) {
      reader.get(offset, tags.data(), count * sizeof(RowTag));
      offset += count * sizeof(RowTag);
    }
    reader.get(offset, values.data(), count * row_bytes);
    offset += count * row_bytes;
    size_t kept = 0;
    for (size_t i = 0; i < count; ++i) {
      if (!wanted(ids[i])) continue;
      ids[kept] = ids[i];
      if (tagged) tags[kept] = tags[i];
      std::memmove(values.data() + kept++ * row_bytes, values.data() + i * row_bytes, row_bytes);
    }
    table.insert_stored(ids.data(), kept, tagged ? tags.data() : nullptr, values.data());
    taken += kept;
  }
  return taken;
}

}  // namespace elasticdl::checkpoint
