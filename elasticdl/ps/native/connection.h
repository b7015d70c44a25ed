// The bulk plane of a server: one thread a connection, frames in, frames out. Validates everything that it receives.
#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "elasticdl/ps/native/server.h"
#include "elasticdl/rpc/native/buffer.h"
#include "elasticdl/rpc/native/socket.h"
#include "elasticdl/rpc/native/wire.h"

namespace elasticdl::ps {

// The budget in bytes that all connections share for large frames in transit.
class Budget {
 public:
  explicit Budget(uint64_t bytes) : left_(static_cast<int64_t>(bytes)) {}
  bool take(uint64_t bytes);
  void give_back(uint64_t bytes) { left_ += static_cast<int64_t>(bytes); }

 private:
  std::atomic<int64_t> left_;
};

// A reply sent in pieces, so that a large one needs no buffer of its size.
class Reply {
 public:
  Reply(const Socket& socket, Buffer& room) : socket_(socket), room_(room.room(kRoom)) {}

  void begin(const wire::Header& request, wire::Status status, uint64_t payload_bytes);
  // Returns room for `bytes` <= kPiece, which the caller must fill before the next call.
  char* piece(size_t bytes);
  void put(const void* data, size_t bytes);
  // False if the peer is gone.
  bool end();

  static constexpr size_t kPiece = 128 << 10;

 private:
  static constexpr size_t kRoom = 2 * kPiece;
  void flush();

  const Socket& socket_;
  char* room_;
  size_t used_ = 0;
  bool alive_ = true;
};

class Connection {
 public:
  Connection(Server& server, Budget& budget, Socket socket) : server_(server), budget_(budget), socket_(std::move(socket)) {}

  // Serves until the peer is gone, sends an invalid frame, or `stop` is called.
  void serve();
  void stop() { socket_.shutdown(); }
  // Whether the peer has proved its name by its token.
  bool known() const { return known_; }

 private:
  bool greet();
  bool receive_greeting(wire::Kind kind, uint64_t least, uint64_t most, std::chrono::steady_clock::time_point deadline);
  void challenge(std::chrono::steady_clock::time_point deadline);
  bool next();
  bool receive_header();
  char* room();
  bool answer();
  bool fail(wire::Status status, const std::string& message);
  bool initialise(wire::Cursor cursor);
  bool pull(wire::Cursor cursor);
  bool push();
  bool rows(wire::Cursor cursor);
  bool put_frozen_rows(const wire::RowsReply& result, const int64_t* ids, const char* values, size_t row_bytes);
  void put_rows(Reply& reply, Model& model, const View* view, size_t table, const int64_t* ids, size_t count);

  Server& server_;
  Budget& budget_;
  Socket socket_;
  std::atomic<bool> known_{false};
  std::string name_;
  uint64_t session_ = 0;  // 0: may not push
  wire::Header header_;
  Buffer payload_;
  Redo redo_;  // of pushes, with kept memory: their payload
  bool kept_ = false;               // the payload of the frame at hand is in redo_
  const char* received_ = nullptr;  // the payload, in one of the two
  Buffer room_;
  Buffer dense_;
  std::shared_ptr<View> look_;  // the view for `rows` requests without a snapshot
};

class Listener {
 public:
  explicit Listener(Server& server);
  ~Listener();

  // Begins to accept. Returns the port.
  int listen(const std::string& host, int port);
  void stop();

 private:
  struct Client {
    std::unique_ptr<Connection> connection;
    std::thread thread;
    std::atomic<bool> done{false};
    bool hung_up = false;  // closed to make room for another
  };
  void accept();
  void take(Socket socket);
  void make_room();
  void reap();

  Server& server_;
  Budget budget_;
  Socket listener_;
  std::thread acceptor_;
  std::mutex mutex_;  // guards clients_ and stopped_
  std::list<Client> clients_;
  bool stopped_ = false;
};

}  // namespace elasticdl::ps
