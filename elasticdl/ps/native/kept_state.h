// What a server keeps beyond its process: where its model is, what it has admitted of whom, and updates under way.
//
// An update that has begun is completed, by the next process if need be. Its payload is in kept memory as it was received;
// `done` counts its items; and an undo has the values of the one item that was being written. So a process may be killed
// at any instant: what it admitted is applied once and wholly, and counted.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "elasticdl/ps/native/kept_memory.h"
#include "elasticdl/ps/native/pushes.h"
#include "elasticdl/rpc/native/sha256.h"
#include "elasticdl/rpc/native/spec.h"

namespace elasticdl::ps {

class KeptState;

// What a server knows of a worker.
struct WorkerState {
  static constexpr size_t kOwn = 16;      // more than --max-staleness may be
  static constexpr size_t kRetired = 16;

  Pushes pushes;
  Outcome last;
  uint64_t retired[kRetired] = {};  // sessions that newer ones replaced, the oldest overwritten; 0: none
  int64_t own[kOwn] = {};           // versions after its newest pushes, to exclude its own updates from staleness; 0: none
  uint32_t next_retired = 0, next_own = 0;
  bool fenced = false;
};

// The same in kept memory: of two states one counts.
struct KeptWorker {
  static constexpr size_t kMostName = 255;

  char name[kMostName + 1];
  uint32_t which;
  uint32_t padding;
  WorkerState states[2];

  const WorkerState& state() const { return states[which & 1]; }
  // A process that is killed leaves the old state or the new one.
  void keep(const WorkerState& state);
};

// One push of a synchronous step, as its redo names it.
struct StepPush {
  uint64_t worker;  // its number
  PushStamp stamp;
  double examples;
};

// A step that was applied, in a ring of the newest; its pushes follow.
struct KeptStep {
  struct Push {
    uint64_t worker;  // its number
    int64_t sequence;
    double examples;
  };

  int64_t number;  // 0: none
  uint64_t count;

  Push* pushes() { return reinterpret_cast<Push*>(this + 1); }
};

// The head of an update in kept memory.
struct RedoHead {
  enum State : uint64_t { FREE, STAGED, BEGUN, ENDING };

  uint64_t state;
  uint64_t serial;   // grows with every update that is staged or begun
  uint64_t done;     // items
  uint64_t payload;  // where its region is
  uint64_t bytes;    // of the update; the pushes of a step follow at the next multiple of 8
  uint64_t worker;   // number of the pushing worker
  PushStamp stamp;
  int64_t step;      // number of the update for the optimizer
  int64_t number;    // of a synchronous step; 0: a push
  uint64_t pushes;   // of a synchronous step
  int64_t version;   // after it, once it is ending
};

// An update that survives the process, and the room for its payload. Movable; goes back to its pool when destroyed.
class Redo {
 public:
  Redo() = default;
  Redo(Redo&& other) noexcept { *this = std::move(other); }
  Redo& operator=(Redo&& other) noexcept {
    std::swap(state_, other.state_);
    std::swap(head_, other.head_);
    std::swap(payload_, other.payload_);
    return *this;
  }
  ~Redo();

  explicit operator bool() const { return head_ != nullptr; }
  const RedoHead& head() const { return *head_; }
  const char* data() const { return payload_.address(); }
  Progress progress() const { return {head_->serial, &head_->done, 0}; }

  // At least `bytes`, with any content. Only while it is free. Throws std::bad_alloc.
  char* room(size_t bytes);
  // Gives up room beyond `bytes`. Only while it is free.
  void trim(size_t bytes);

  // A push that waits for its step.
  void stage(uint64_t worker, const PushStamp& stamp, uint64_t bytes);
  // A push that will be applied whatever happens.
  void begin(uint64_t worker, const PushStamp& stamp, int64_t step, uint64_t bytes);
  // A synchronous step that will be applied whatever happens. The pushes are behind the update.
  void begin_step(int64_t number, int64_t step, uint64_t bytes, uint64_t pushes);
  // All is applied; what follows is to be counted.
  void end(int64_t version);
  void free();

  // The pushes of a step.
  const StepPush* pushes() const { return reinterpret_cast<const StepPush*>(data() + (head_->bytes + 7) / 8 * 8); }
  static size_t bytes_with(uint64_t update_bytes, size_t pushes) { return (update_bytes + 7) / 8 * 8 + pushes * sizeof(StepPush); }

 private:
  friend class KeptState;
  Redo(KeptState& state, RedoHead& head, Region payload) : state_(&state), head_(&head), payload_(std::move(payload)) {}

  KeptState* state_ = nullptr;
  RedoHead* head_ = nullptr;
  Region payload_;
};

// Whose memory it is. What another one left is of no use.
struct Identity {
  std::string run;
  uint32_t server = 0;
  uint32_t servers = 1;
  bool steps = false;
};

// Thread-safe.
class KeptState {
 public:
  static constexpr size_t kSteps = 256;  // that a master that takes over may ask for: more than workers can be behind

  // See KeptMemory.
  KeptState(const std::string& path, double patience_s, Identity identity);

  Memory& memory() { return memory_; }
  size_t bytes() const { return memory_.bytes(); }

  // Whether a process before this one has left anything.
  bool used() const { return memory_.used(); }
  // Reads what it left. Throws Corrupted, with the reason, if that is of no use.
  void take_on();
  // What it left was taken on: frees the rest of it.
  void settle();
  // Drops everything and begins anew. Nothing of it may be in use. With `of_another` it was not this process's.
  void reset(bool of_another);
  // Tells what this process has, and what later ones take on, from everything else: random.
  uint64_t id() const { return id_; }

  // The model: once it is complete, all of this counts.
  void begin_model(const Spec& spec);
  Spec spec() const;
  // `replays`: see Server.
  void complete_model(int64_t version, int64_t step_base, bool replays);
  bool complete() const;

  int64_t version() const { return root().version; }
  void keep_version(int64_t version) { root().version = version; }
  int64_t step_base() const { return root().step_base; }
  bool replays() const { return root().replays != 0; }
  int64_t step() const { return root().step; }
  // Room for steps of at most so many pushes, before the first step begins. Throws std::bad_alloc.
  void prepare_steps(size_t most);
  void keep_step(int64_t number, const std::vector<KeptStep::Push>& pushes);
  // The newest steps that were kept, in their order. Throws Corrupted.
  std::vector<std::pair<int64_t, std::vector<KeptStep::Push>>> steps(size_t most);
  uint64_t dense() const { return root().dense; }
  void keep_dense(uint64_t offset);

  // A new worker's number. Throws std::bad_alloc.
  uint64_t add_worker(const std::string& name, const WorkerState& state);
  size_t workers() const { return root().workers; }
  KeptWorker& worker(uint64_t number);

  // A free one. Throws std::bad_alloc.
  Redo take_redo();
  uint64_t next_serial();
  // Those that the process before left, with a payload, in the order in which they were staged or begun.
  std::vector<Redo> left_redos();
  // Whether the process before had begun this item of an update, and not completed it.
  bool torn(uint64_t serial, uint64_t item) const;

 private:
  friend class Redo;

  struct Root {
    Digest run;
    uint64_t id;
    uint32_t format, server, servers, steps;
    uint64_t complete;
    uint64_t replays;
    uint64_t trials;  // processes that began to take this on and did not get to the end
    uint64_t spec_bytes, spec_crc;
    int64_t version, step_base, step;
    uint64_t dense;
    uint64_t workers;
  };

  Root& root() const { return *reinterpret_cast<Root*>(memory_.root()); }
  void begin();
  KeptStep& step_at(int64_t number) const;
  void give_back(RedoHead* head, Region payload) noexcept;
  Region payload(size_t bytes);
  void spare(Region payload) noexcept;

  const Identity identity_;
  uint64_t id_;
  KeptMemory memory_;
  Region spec_, steps_;
  size_t step_bytes_ = 0;  // of one in the ring
  std::mutex mutex_;  // guards all below
  std::vector<Region> worker_pages_, redo_pages_;
  std::vector<std::pair<RedoHead*, Region>> free_;
  std::vector<Region> spare_;  // payloads that nobody uses
  size_t spare_bytes_ = 0;
  uint64_t serial_ = 0;
};

}  // namespace elasticdl::ps
