// One direction of a client: a connection to each server, and requests to several of them at once.
//
// A lane sends all requests before it waits for replies, and does not return before every server has answered or the
// deadline passed. A push goes out when every server has met the worker: a server that has not would take a cut without
// waiting for its part of the push, and the view would hold that push on some servers only. A lane survives lost
// connections, new addresses, and servers that come back empty. One that comes back with an older state gets again what it
// lacks, as far as it was kept. It is used by one thread at a time; `move` and `close` may come from any other.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "elasticdl/rpc/native/buffer.h"
#include "elasticdl/rpc/native/socket.h"
#include "elasticdl/rpc/native/wire.h"

namespace elasticdl {

using Time = std::chrono::steady_clock::time_point;

// Where the next bytes of a reply go: straight to `data`, or row by row to places in an array.
struct Target {
  char* data = nullptr;
  size_t bytes = 0;
  const uint32_t* positions = nullptr;  // row i of the reply is row positions[i] of the array at `data`
  size_t row_bytes = 0;
};

// One request to one server, and its reply. What `payload` and `targets` point to must outlive the run.
struct Part {
  uint32_t server = 0;
  wire::Kind kind = wire::Kind::pull;
  int64_t sequence = 0;         // of a push; 0: none
  std::vector<iovec> payload;
  std::vector<Target> targets;  // empty: the reply may have any size and is kept in `reply`
  Buffer reply;
  size_t reply_bytes = 0;
};

// The parameters that an empty server gets. No spec until the client knows values.
struct Seed {
  std::string spec;                // Spec::encode
  const char* dense = nullptr;     // the whole flat vector
  size_t weight_bytes = 0;
  uint64_t trainable = 0;
  uint64_t additive = 0;
};

struct Identity {
  std::vector<std::string> tokens;  // by server
  std::string name;
  uint64_t session = 0;
  bool pushes = false;
  TlsContext tls = nullptr;  // null: clear text
  uint32_t first = 0;        // the index of the first server
  size_t kept_bytes = 0;     // of pushes that are kept for servers that lose them, in all
};

// A server that this client has met. `lacks`: the last of the pushes that it does not have and that cannot be made again; 0: it
// has all or gets them again.
struct Met {
  std::string address;
  int64_t lacks = 0;
};

class Link;

class Lane {
 public:
  // `idle` is called regularly while waiting (to check for signals); it may throw.
  Lane(Identity identity, std::vector<std::string> addresses, std::function<void()> idle);
  ~Lane();

  // Throws Refused and UserError as servers answer, TransientError at the deadline, when closed, or when what is
  // asked for is gone.
  void run(std::vector<Part>& parts, const Seed& seed, double timeout_s, const char* what);
  // Greets every server, so that it gets what it lacks. Of a lane that pushes. Throws as `run`.
  void meet(const Seed& seed, double timeout_s);

  void move(std::vector<std::string> addresses);
  void close();
  const Identity& identity() const { return identity_; }
  uint32_t servers() const { return static_cast<uint32_t>(links_.size()); }
  // How long each server took to answer in the last run, if it was asked. For the thread that runs.
  const std::vector<double>& answered_s() const { return answered_s_; }
  // Those since the last call. For the thread that runs.
  std::vector<Met> take_met() { return std::exchange(met_, {}); }
  // The same after the last run, and what servers lack that were not met before it ended.
  std::vector<Met> take_rest();
  // Whether the room for kept pushes is half full. For the thread that runs.
  bool crowded() const;
  // The bytes of a part of the last push that the room has no place for; 0: there was none. For the thread that runs.
  size_t too_large() const;
  // The newest push that every server has acknowledged. For the thread that runs.
  int64_t acknowledged() const;
  // The servers' predecessors had acknowledged the pushes up to this one. Before the first run.
  void begin_after(int64_t sequence);

 private:
  enum class Until { answered, met };
  void run(std::vector<Part>& parts, const Seed& seed, double timeout_s, const char* what, Until until);
  void note_met(size_t server);
  void wait(Time deadline);
  void listen_to_owner();
  [[noreturn]] void give_up(double timeout_s, const char* what);

  Identity identity_;
  std::vector<std::unique_ptr<Link>> links_;
  std::vector<double> answered_s_;
  std::vector<std::string> met_at_;  // the address of each server that was met last
  std::vector<Met> met_;
  std::function<void()> idle_;
  int wake_;
  std::mutex mutex_;
  std::vector<std::string> moved_;  // guarded by mutex_; empty: nothing new
  bool closed_ = false;             // guarded by mutex_
};

}  // namespace elasticdl
