// One connection of the bulk plane, as a state machine that never blocks: frames in, frames out. Validates everything that it
// receives.
//
// A slice receives, answers and sends at most one request, and at most kSliceBytes of a large one. So no connection keeps others
// waiting for longer than one request takes to compute. Between frames a connection holds no buffers.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "elasticdl/ps/native/budget.h"
#include "elasticdl/ps/native/loop.h"
#include "elasticdl/ps/native/reply.h"
#include "elasticdl/ps/native/server.h"
#include "elasticdl/rpc/native/buffer.h"
#include "elasticdl/rpc/native/socket.h"
#include "elasticdl/rpc/native/wire.h"

namespace elasticdl::ps {

class Connections;

// What all connections of a server share.
struct Shared {
  Server& server;
  Connections& connections;
  Budget& frames;    // large ones being received
  Budget& unpacked;  // what large packed pushes become
  Budget& replies;   // large ones being sent
};

class Connection : public Source, public Waiter {
 public:
  using Clock = std::chrono::steady_clock;

  // `number`: connections are numbered as they come. Throws std::bad_alloc, std::system_error.
  Connection(uint64_t number, const Shared& shared, std::shared_ptr<Poller> poller, Socket socket, Clock::time_point now);
  ~Connection() override;

  // The first slice may begin at once.
  void start();
  void slice() override;
  void wake() override;

  // Thread-safe: its next slice finds the connection ended.
  void hang_up() { socket_.shutdown(); }
  bool late(Clock::time_point now) const { return deadline_ != kNone && deadline_ < now.time_since_epoch().count(); }

  uint64_t number() const { return number_; }
  Clock::time_point since() const { return since_; }

 private:
  enum class Stage { securing, header, room, payload, answer, reply };
  enum class Phase { hello, prove, serve };  // what a frame is for
  enum class Next { readable, writable, soon, wait, close };
  enum class Answer { reply, wait, room, close };  // room: as wait, but it keeps the room that it has
  enum class Wait { none, waiting, woken };
  static constexpr Clock::rep kNone = 0;
  static constexpr uint64_t kLarge = 16 << 20;  // frames and copies above it share a budget
  static constexpr size_t kRedoKept = 8 << 20;

  // A pull whose rows are looked up while they are sent.
  struct Pulling {
    std::shared_ptr<Model> model;
    std::shared_ptr<View> view;  // null: the live parameters
    std::vector<uint64_t> counts;
    std::vector<const int64_t*> ids;
    uint64_t bytes;
    Clock::time_point begin;
    size_t table = 0;
    uint64_t row = 0;
  };

  Next advance();
  void end(Next next);
  void limit(Next next);
  std::optional<Next> secure();
  std::optional<Next> receive(char* to, size_t bytes, Allowance& allowance);
  void expect(size_t bytes);
  std::optional<Next> check_header();
  std::optional<Next> make_room();
  Next send(Allowance& allowance);
  Next replied();

  Answer answer();
  Answer serve();
  Answer hello();
  Answer prove();
  Answer fail(wire::Status status, const std::string& message);
  // The connection ends when the message has left.
  Answer fail_and_close(wire::Status status, const std::string& message);

  Answer initialise(wire::Cursor cursor);
  Answer pull(wire::Cursor cursor);
  Answer pull_packed(wire::Cursor cursor);
  bool unpack_push(wire::Cursor cursor);
  void drop_unpacked();
  Answer push();
  Answer rows(wire::Cursor cursor);
  Answer put_frozen_rows(const wire::RowsReply& result, size_t row_bytes);
  void put_rows();
  void count_pull();

  const uint64_t number_;
  const Clock::time_point since_;
  Server& server_;
  Connections& connections_;
  Budget& frames_;
  Budget& unpacking_;
  Budget& replies_;
  const std::shared_ptr<Poller> poller_;
  Socket socket_;
  std::atomic<Wait> wait_{Wait::none};
  std::atomic<Clock::rep> deadline_{kNone};

  // All below belongs to the thread that runs the slice.
  Stage stage_ = Stage::header;
  Phase phase_ = Phase::hello;
  bool closing_ = false;   // after this reply
  bool advanced_ = false;  // bytes moved in this slice
  std::string hello_;      // its payload, until the proof
  Digest nonce_{};
  std::string name_;
  uint64_t session_ = 0;  // 0: may not push
  int64_t last_ = 0;      // see Hello
  bool keeps_ = false;
  wire::Header header_;
  size_t expected_ = 1;        // see Socket::expect
  size_t have_ = 0;            // of the header or payload at hand
  uint64_t frame_share_ = 0;   // of the budgets
  uint64_t unpacked_share_ = 0;
  uint64_t reply_share_ = 0;
  Buffer payload_;
  Redo redo_;  // of a push, with kept memory: its payload
  bool kept_ = false;         // the payload of the frame at hand is in redo_
  char* received_ = nullptr;  // the payload, in one of the two; of a packed push what it unpacks to
  size_t received_bytes_ = 0;
  bool unpacked_ = false;  // received_ is what a packed push unpacks to
  Reply reply_;
  Buffer dense_;   // plain weights of a reply: copied to be sent, or to be packed
  Buffer packed_;  // a reply, or a push as it was received
  std::vector<int64_t> frozen_ids_;  // of a reply to `rows`
  std::vector<char> frozen_values_;
  std::optional<Pulling> pulling_;
  std::shared_ptr<View> look_;  // the view for `rows` requests without a snapshot
};

}  // namespace elasticdl::ps
