#include "record_index.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "crc32c.h"

namespace elasticdl::data {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;
constexpr int64_t kMaxRowBytes = 64 << 20;

// Fills `to` completely from `offset`, or records the fault.
bool read_fully(Bytes& bytes, int64_t offset, char* to, int64_t size, RecordIndex& index) {
  while (size > 0) {
    const ssize_t got = bytes.read(to, size, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      index.fault = got < 0 ? Fault::io : Fault::truncated;
      index.fault_errno = got < 0 ? errno : 0;
      index.fault_offset = offset;
      return false;
    }
    to += got;
    offset += got;
    size -= got;
  }
  return true;
}

// Selects the records that get entries.
class EntryMaker {
 public:
  EntryMaker(RecordIndex& index, int64_t file_bytes, Stride stride)
      : index_(index), stride_(stride), least_bytes_(file_bytes / kMaxEntries) {}

  void record_begins(int64_t record, int64_t offset, int64_t line) {
    if (!index_.entries.empty()) {
      const Entry& last = index_.entries.back();
      const int64_t bytes = offset - last.offset;
      if (bytes < least_bytes_ || (record - last.record < stride_.records && bytes < stride_.bytes)) return;
    }
    index_.entries.push_back({record, offset, line});
  }

  void ends(int64_t records, int64_t offset, int64_t line) { index_.entries.push_back({records, offset, line}); }

 private:
  RecordIndex& index_;
  Stride stride_;
  int64_t least_bytes_;
};

// The state of a pass over a CSV file.
class CsvPass {
 public:
  CsvPass(RecordIndex& index, const Dialect& dialect, int64_t begin, int64_t size, Stride stride)
      : index_(index), dialect_(dialect), entries_(index, size, stride), offset_(begin) {}

  // Takes the complete rows of [data, data+size), which begin at offset(); returns how many bytes they were.
  int64_t take(const char* data, int64_t size, bool final) {
    const char* p = data;
    const char* end = data + size;
    for (;;) {
      p = skip_empty_lines(p, end, final, line_);
      if (p == end || (*p == '\r' && p + 1 == end && !final)) break;
      RowScan scan;
      const char* next = skim_row(p, end, final, dialect_, scan);
      if (next == nullptr) {
        unfinished_in_quotes_ = scan.in_quotes;
        if (final) fail(Fault::open_quote, offset_ + (p - data));
        break;
      }
      entries_.record_begins(records_, offset_ + (p - data), line_);
      judge(scan, p, next);
      ++records_;
      line_ += scan.newlines + 1;
      p = next;
    }
    offset_ += p - data;
    return p - data;
  }

  // Rejects the row that take() left unfinished: it exceeds the limit.
  void fail_long_row() { fail(unfinished_in_quotes_ ? Fault::open_quote : Fault::long_row, offset_); }


  void finish(int64_t size) { entries_.ends(records_, size, line_); }
  int64_t offset() const { return offset_; }

 private:
  void fail(Fault fault, int64_t offset) {
    index_.fault = fault;
    index_.fault_offset = offset;
    index_.fault_line = line_;
  }

  void judge(const RowScan& scan, const char* p, const char* next) {
    if (index_.columns == 0) index_.columns = static_cast<int64_t>(scan.fields);
    if (static_cast<int64_t>(scan.fields) == index_.columns && !scan.stray) return;
    ++index_.bad;
    if (index_.examples.size() >= kExamples) return;
    index_.examples.push_back({line_, what_is_wrong(scan, index_.columns), std::string(p, std::min<size_t>(next - p, 60))});
  }

  RecordIndex& index_;
  const Dialect& dialect_;
  EntryMaker entries_;
  int64_t offset_;
  int64_t records_ = 0;
  int64_t line_ = 1;
  bool unfinished_in_quotes_ = false;
};

// The 12 bytes in front of each record, through a small buffer so that small records cost no call each.
class HeaderBuffer {
 public:
  HeaderBuffer(Bytes& bytes, int64_t size, RecordIndex& index) : bytes_(bytes), size_(size), index_(index), buffer_(256 << 10) {}

  const char* at(int64_t offset) {
    if (offset < begin_ || offset + 12 > begin_ + held_) {
      begin_ = offset;
      held_ = std::min<int64_t>(static_cast<int64_t>(buffer_.size()), size_ - offset);
      if (!read_fully(bytes_, offset, buffer_.data(), held_, index_)) return nullptr;
    }
    return buffer_.data() + (offset - begin_);
  }

 private:
  Bytes& bytes_;
  int64_t size_;
  RecordIndex& index_;
  std::vector<char> buffer_;
  int64_t begin_ = 0;
  int64_t held_ = 0;
};

}  // namespace

ssize_t FileBytes::read(char* to, int64_t size, int64_t offset) {
  return ::pread(fd_, to, static_cast<size_t>(size), offset);
}

std::string what_is_wrong(const RowScan& scan, int64_t columns) {
  if (static_cast<int64_t>(scan.fields) != columns)
    return "expected " + std::to_string(columns) + " fields, got " + std::to_string(scan.fields);
  return scan.stray ? "text between a closing quote and the end of its field" : "";
}

RecordIndex index_csv(Bytes& bytes, int64_t begin, int64_t size, const Dialect& dialect, int64_t columns, Stride stride) {
  RecordIndex index;
  index.columns = columns;
  CsvPass pass(index, dialect, begin, size, stride);
  std::vector<char> buffer(kChunkBytes);
  int64_t held = 0;  // bytes of an unfinished row, at the front of the buffer
  while (pass.offset() + held < size) {
    const int64_t more = std::min<int64_t>(static_cast<int64_t>(buffer.size()) - held, size - pass.offset() - held);
    if (!read_fully(bytes, pass.offset() + held, buffer.data() + held, more, index)) return index;
    held += more;
    const int64_t used = pass.take(buffer.data(), held, pass.offset() + held == size);
    if (index.fault != Fault::none) return index;
    held -= used;
    std::memmove(buffer.data(), buffer.data() + used, static_cast<size_t>(held));
    if (held < static_cast<int64_t>(buffer.size())) continue;
    if (held >= kMaxRowBytes) {
      pass.fail_long_row();
      return index;
    }
    buffer.resize(buffer.size() * 2);
  }
  pass.finish(size);
  return index;
}

RecordIndex index_tfrecord(Bytes& bytes, int64_t size, Stride stride) {
  RecordIndex index;
  EntryMaker entries(index, size, stride);
  HeaderBuffer headers(bytes, size, index);
  int64_t records = 0;
  int64_t offset = 0;
  for (; offset < size; ++records) {
    index.fault_offset = offset;
    if (size - offset < 16) {
      index.fault = Fault::truncated;
      return index;
    }
    const char* header = headers.at(offset);
    if (header == nullptr) return index;
    uint64_t length;
    uint32_t checksum;
    std::memcpy(&length, header, 8);
    std::memcpy(&checksum, header + 8, 4);
    if (masked(crc32c(header, 8)) != checksum) {
      index.fault = Fault::damaged;
      return index;
    }
    if (length > static_cast<uint64_t>(size - offset - 16)) {
      index.fault = Fault::truncated;
      return index;
    }
    entries.record_begins(records, offset, 0);
    offset += 16 + static_cast<int64_t>(length);
  }
  entries.ends(records, size, 0);
  return index;
}

}  // namespace elasticdl::data
