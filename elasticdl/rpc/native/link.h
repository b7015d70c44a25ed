// One connection of a client to one server, as a state machine that never blocks.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "elasticdl/rpc/native/lane.h"
#include "elasticdl/rpc/native/push_log.h"

namespace elasticdl {

// Outgoing bytes.
class Outgoing {
 public:
  void clear();
  // What `parts` point to must outlive the sending; `own` is kept here and goes first.
  void put(std::string own, const std::vector<iovec>& parts = {});
  bool empty() const { return at_ == parts_.size(); }
  // Sends what the socket takes now; false when the connection is lost (see errno).
  bool flush(const Socket& socket);

 private:
  std::string own_;
  std::vector<iovec> parts_;
  size_t at_ = 0;
};

// An incoming payload: into targets, or whole into a buffer.
class Incoming {
 public:
  void expect(const std::vector<Target>* targets, uint64_t bytes);
  void expect(Buffer* whole, uint64_t bytes);
  enum class Progress { more, complete, lost };
  // Receives the available bytes; `more` if the socket has none left for now.
  Progress receive(const Socket& socket);

 private:
  Progress receive_whole(const Socket& socket);
  Progress receive_target(const Socket& socket, const Target& target);
  Progress receive_rows(const Socket& socket, const Target& target);

  const std::vector<Target>* targets_ = nullptr;
  size_t target_ = 0;
  Buffer* whole_ = nullptr;
  size_t bytes_ = 0;
  size_t have_ = 0;  // of the whole, or of the target at hand
  Buffer rows_;      // rows to be scattered
  size_t rows_have_ = 0;
};

class Link {
 public:
  Link(const Identity& identity, uint32_t server, uint32_t servers, std::string address);

  // Starts the exchange for `part`, over as many connections as needed. `held`: greet the server, but do not send the request yet.
  void start(Part& part, const Seed& seed, bool held);
  // Sends the request now, or as soon as the greeting is complete.
  void release();
  // Makes all progress possible without blocking. Throws Refused, UserError or Gone as the server answers.
  void advance(Time now);
  void move(const std::string& address);
  // Drops the part and closes the connection, so that no late reply is taken for another part's.
  void abandon();

  bool waiting() const { return part_ != nullptr; }
  // Held, and the greeting is complete.
  bool met() const { return held_ && state_ == State::ready; }
  bool away() const { return state_ == State::away; }
  bool reachable() const { return !address_.empty(); }
  const std::string& address() const { return address_; }
  // What the servers lack that were here since the last call: see Met. A server that took on the memory of one that was never met
  // lacks the same.
  int64_t take_lacks() { return std::exchange(lacks_, 0); }
  const std::string& lacks_at() const { return lacks_at_; }
  PushLog& log() { return log_; }
  const PushLog& log() const { return log_; }
  int fd() const { return socket_.fd(); }
  short events() const;
  Time retry_at() const { return retry_at_; }
  // For people.
  std::string name() const { return "ps-" + std::to_string(identity_.first + server_); }
  // The server's address and its last error.
  std::string story() const;

 private:
  enum class State { away, connecting, securing, greeting, proving, seeding, repeating, ready, asking };

  void connect(Time now);
  void connected(Time now);
  void secured(Time now);
  void greet();
  void send(State next, wire::Kind kind, std::string own, const std::vector<iovec>& rest);
  void seed();
  int64_t complete() const;
  void begin_anew();
  void compare(const wire::HelloReply& reply);
  void lack(int64_t last);
  void repeat();
  void ask();
  void ask_unless_held();
  bool receive(Time now);
  bool begin_payload();
  void answered(Time now);
  void answered_badly(Time now);
  void challenged(Time now);
  void greeted(Time now);
  void lost(const std::string& why, Time now);

  const Identity& identity_;
  const uint32_t server_;
  const uint32_t servers_;
  std::string address_;
  Socket socket_;
  State state_ = State::away;
  Part* part_ = nullptr;
  bool held_ = false;
  const Seed* seed_ = nullptr;
  Outgoing out_;
  Incoming in_;
  wire::Header header_;
  size_t header_have_ = 0;
  Buffer body_;
  size_t body_bytes_ = 0;
  uint64_t request_ = 0;
  std::string hello_;    // payload of this connection's hello
  int64_t version_ = 0;  // the newest version that this server reported
  PushLog log_;
  int64_t lacks_ = 0;
  std::string lacks_at_;  // the address of the server that lacks it: this link may have another one, or none, by now
  int64_t has_ = 0;  // the server's last push, while it gets again what it lacks
  double back_off_s_ = 0;
  Time retry_at_{};
  std::string problem_;
  std::minstd_rand random_;
};

}  // namespace elasticdl
