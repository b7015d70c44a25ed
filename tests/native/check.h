// What a test program in C++ asks for: it ends with exit code 1, and the place, at the first that does not hold.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                          \
  do {                                                                            \
    if (!(condition)) {                                                           \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                               \
    }                                                                             \
  } while (false)

// Under ThreadSanitizer. What one thread does has no races, and looking for them takes it ten times as long.
#if defined(__SANITIZE_THREAD__)
constexpr bool kOnlyRaces = true;
#else
constexpr bool kOnlyRaces = false;
#endif
