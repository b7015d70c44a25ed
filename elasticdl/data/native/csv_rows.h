// Where a CSV row and its fields end (RFC 4180). The index and the parser share this one scanner, so they cannot
// disagree about what a row is.
//
// A field is quoted if its first byte is a quote; there, "" is a quote, and delimiters and newlines are text. A quote
// elsewhere is text. Rows end at \n, \r\n or a lone \r; empty lines are no rows.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace elasticdl::data {

struct Dialect {
  explicit Dialect(char delimiter_, bool quoting_) : delimiter(delimiter_), quoting(quoting_) {
    stops[static_cast<unsigned char>(delimiter)] = stops['\n'] = stops['\r'] = true;
  }
  char delimiter;
  bool quoting;
  bool stops[256] = {};  // bytes that end an unquoted field
};

struct RowScan {
  size_t fields = 0;
  int64_t newlines = 0;    // inside quotes
  bool stray = false;      // text between a closing quote and the end of its field
  bool in_quotes = false;  // the bytes ended inside quotes
};

struct NoSink {
  void piece(const char*, size_t) {}
  void field_done() {}
};

inline const char* unquoted_end(const char* p, const char* end, const Dialect& dialect) {
  while (p < end && !dialect.stops[static_cast<unsigned char>(*p)]) ++p;
  return p;
}

// Goes through a quoted field; `p` is behind its opening quote. Returns the address behind the field's last byte, or
// null if the bytes end before that is known.
template <class Sink>
const char* scan_quoted(const char* p, const char* end, bool final, const Dialect& dialect, Sink& sink, RowScan& scan) {
  for (;;) {
    const char* quote = static_cast<const char*>(std::memchr(p, '"', static_cast<size_t>(end - p)));
    if (quote == nullptr) {
      scan.in_quotes = true;
      return nullptr;
    }
    scan.newlines += std::count(p, quote, '\n');
    if (quote + 1 == end && !final) return nullptr;
    if (quote + 1 < end && quote[1] == '"') {
      sink.piece(p, static_cast<size_t>(quote + 1 - p));
      p = quote + 2;
      continue;
    }
    sink.piece(p, static_cast<size_t>(quote - p));
    const char* stop = unquoted_end(quote + 1, end, dialect);
    if (stop != quote + 1) {
      scan.stray = true;
      sink.piece(quote + 1, static_cast<size_t>(stop - quote - 1));
    }
    return stop;
  }
}

// Scans the row at `p`, which is not at `end` nor at a newline. Returns the place behind its newline, or null if the
// bytes end before the row does (never so when `final`, except inside quotes).
template <class Sink>
const char* scan_row(const char* p, const char* end, bool final, const Dialect& dialect, Sink& sink, RowScan& scan) {
  scan = RowScan{};
  for (;;) {
    if (dialect.quoting && p < end && *p == '"') {
      p = scan_quoted(p + 1, end, final, dialect, sink, scan);
      if (p == nullptr) return nullptr;
    } else {
      const char* stop = unquoted_end(p, end, dialect);
      sink.piece(p, static_cast<size_t>(stop - p));
      p = stop;
    }
    sink.field_done();
    ++scan.fields;
    if (p == end) return final ? p : nullptr;
    if (*p == '\n') return p + 1;
    if (*p == '\r') {
      if (p + 1 == end) return final ? end : nullptr;
      return p[1] == '\n' ? p + 2 : p + 1;
    }
    ++p;  // the delimiter
    if (p == end && !final) return nullptr;
  }
}

// The same for counting only: skips the fields of a line without quotes or lone \r.
inline const char* skim_row(const char* p, const char* end, bool final, const Dialect& dialect, RowScan& scan) {
  const char* newline = static_cast<const char*>(std::memchr(p, '\n', static_cast<size_t>(end - p)));
  if (newline != nullptr) {
    const char* stop = newline > p && newline[-1] == '\r' ? newline - 1 : newline;
    const size_t size = static_cast<size_t>(stop - p);
    if (std::memchr(p, '"', size) == nullptr && std::memchr(p, '\r', size) == nullptr) {
      scan = RowScan{};
      scan.fields = 1 + static_cast<size_t>(std::count(p, stop, dialect.delimiter));
      return newline + 1;
    }
  }
  NoSink sink;
  return scan_row(p, end, final, dialect, sink, scan);
}

// Skips empty lines, counting them in `line`. A \r at the end of bytes that are not `final` stays: \n may follow.
inline const char* skip_empty_lines(const char* p, const char* end, bool final, int64_t& line) {
  while (p < end && (*p == '\n' || *p == '\r')) {
    if (*p == '\r' && p + 1 == end && !final) break;
    if (*p == '\n' || p + 1 == end || p[1] != '\n') ++line;
    ++p;
  }
  return p;
}

}  // namespace elasticdl::data
