// What servers know of pushes.
#pragma once

#include <cstdint>
#include <string>

namespace elasticdl::ps {

struct Applied {
  int64_t shard = 0;
  int64_t attempt = 0;
  int64_t offset = 0;
};

// The progress of a worker's pushes.
struct Pushes {
  uint64_t session = 0;   // of the client object that numbers the pushes
  int64_t sequence = 0;   // of the last applied one; 0: none yet
  Applied applied;
  bool any = false;       // `applied` is set
};

struct PushStamp {
  uint64_t session;
  int64_t sequence;
  Applied applied;
  int64_t version;        // of the pull that it was computed on
};

// One of the pushes that a synchronous step is the mean of.
struct CountedPush {
  std::string worker;
  PushStamp stamp;
  double examples;
};

struct Outcome {
  bool repeated = false;  // was applied before: nothing to do
  int64_t version = 0;    // after it
  int64_t staleness = 0;  // updates of others between pull and push
  int64_t step = 0;       // number of this update, for the optimizer
};

}  // namespace elasticdl::ps
