// The errors of elasticdl/errors.py as C++ sees them; bindings.cc turns one into the other.
#pragma once

#include <stdexcept>
#include <string>

namespace elasticdl {

struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct TransientError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// Waiting does not help: the caller must request something else.
struct Gone : TransientError {
  using TransientError::TransientError;
};
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Corrupted : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace elasticdl
