#include "elasticdl/ps/native/connection.h"

#include <errno.h>

#include <algorithm>

#include "elasticdl/ps/native/connections.h"
#include "elasticdl/rpc/native/greeting.h"

namespace elasticdl::ps {
namespace {

constexpr std::chrono::seconds kStall{60};  // within a frame
constexpr std::chrono::seconds kGreeting{10};
constexpr size_t kSliceBytes = 1 << 20;
constexpr size_t kWakeAt = 128 << 10;

bool later() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

Connection::Connection(uint64_t number, const Shared& shared, std::shared_ptr<Poller> poller, Socket socket, Clock::time_point now)
    : number_(number), since_(now), server_(shared.server), connections_(shared.connections), frames_(shared.frames),
      unpacking_(shared.unpacked), replies_(shared.replies), poller_(std::move(poller)), socket_(std::move(socket)),
      deadline_((now + kGreeting).time_since_epoch().count()) {
  if (const TlsContext& tls = server_.config().tls; tls != nullptr) {
    socket_.secure(tls, "");
    stage_ = Stage::securing;
  }
  poller_->add(socket_.fd(), *this);
}

Connection::~Connection() {
  poller_->remove(socket_.fd());
  socket_.shutdown();
  for (Budget* budget : {&frames_, &unpacking_, &replies_}) budget->cancel(*this);
  frames_.give_back(frame_share_);
  unpacking_.give_back(unpacked_share_);
  replies_.give_back(reply_share_);
}

void Connection::start() { end(Next::readable); }

void Connection::wake() {
  if (wait_.exchange(Wait::woken) == Wait::waiting) poller_->arm(socket_.fd(), *this, When::soon);
}

void Connection::slice() {
  wait_.exchange(Wait::none);  // sees all that the slice before has written
  Next next = Next::close;
  try {
    next = advance();
  } catch (const std::exception& error) {
    // Beyond what a request may cause, or a reply has begun: only closing the connection can revoke it.
    closing_ = true;
    if (stage_ != Stage::reply && stage_ != Stage::securing) {
      try {
        fail(wire::Status::transient, error.what());
        Allowance allowance(kSliceBytes);
        reply_.send(socket_, allowance);
      } catch (const std::exception&) {  // nothing more can be said
      }
    }
  }
  end(next);
}

// Nothing of the connection may be touched afterwards, which another thread may serve by then.
void Connection::end(Next next) {
  if (next == Next::close) {
    connections_.remove(*this);
    return;
  }
  limit(next);
  Wait none = Wait::none;
  if (next == Next::wait) {
    if (wait_.compare_exchange_strong(none, Wait::waiting)) return;
    next = Next::soon;
  }
  wait_ = Wait::none;
  poller_->arm(socket_.fd(), *this, next == Next::readable ? When::readable : next == Next::writable ? When::writable : When::soon);
}

// From the first byte of a frame on the peer must keep sending, and then receiving.
void Connection::limit(Next next) {
  const bool idle = next == Next::wait || (stage_ == Stage::header && have_ == 0);
  if (phase_ != Phase::serve) return;
  if (idle) deadline_ = kNone;
  else if (advanced_ || deadline_ == kNone) deadline_ = (Clock::now() + kStall).time_since_epoch().count();
}

Connection::Next Connection::advance() {
  Allowance allowance(kSliceBytes);
  advanced_ = stage_ == Stage::reply;  // the socket has room again
  std::optional<Next> next;
  if (stage_ == Stage::securing && (next = secure())) return *next;
  if (stage_ == Stage::header) {
    if ((next = receive(reinterpret_cast<char*>(&header_), sizeof header_, allowance))) return *next;
    if ((next = check_header())) return *next;
  }
  if (stage_ == Stage::room && (next = make_room())) return *next;
  if (stage_ == Stage::payload) {
    if ((next = receive(received_, header_.payload_bytes, allowance))) return *next;
    stage_ = Stage::answer;
  }
  if (stage_ == Stage::answer) {
    switch (answer()) {
      case Answer::wait:
        // Those that it waits for may need the room: then the pushes of a cut could not come behind those that are kept out.
        if (unpacked_share_ > 0) drop_unpacked();
        frames_.give_back(std::exchange(frame_share_, 0));
        return Next::wait;
      case Answer::room: return Next::wait;
      case Answer::close: return Next::close;
      case Answer::reply: stage_ = Stage::reply;
    }
  }
  return send(allowance);
}

std::optional<Connection::Next> Connection::secure() {
  if (socket_.handshake()) {
    stage_ = Stage::header;
    return {};
  }
  if (later()) return socket_.pending() ? Next::writable : Next::readable;
  ++server_.statistics().bad_frames;
  return Next::close;
}

std::optional<Connection::Next> Connection::receive(char* to, size_t bytes, Allowance& allowance) {
  while (have_ < bytes) {
    if (allowance.spent()) return Next::soon;
    const ssize_t got = socket_.receive_some(to + have_, bytes - have_);
    if (got < 0 && later()) {
      expect(bytes - have_);
      return Next::readable;
    }
    if (got <= 0) return Next::close;
    have_ += static_cast<size_t>(got);
    allowance.spend(static_cast<size_t>(got));
    advanced_ = true;
  }
  have_ = 0;
  expect(1);
  return {};
}

// A wake-up for each segment would be a large part of the time that a large frame takes.
void Connection::expect(size_t bytes) {
  const size_t expected = bytes >= kWakeAt ? kWakeAt : 1;
  if (expected != std::exchange(expected_, expected)) socket_.expect(expected);
}

std::optional<Connection::Next> Connection::check_header() {
  const uint64_t bytes = header_.payload_bytes;
  bool good = header_.magic == wire::kMagic && header_.version == wire::kVersion;
  switch (phase_) {
    case Phase::hello: good = good && header_.kind == wire::Kind::hello && bytes >= sizeof(wire::Hello) && bytes <= wire::kMaxHello; break;
    case Phase::prove: good = good && header_.kind == wire::Kind::prove && bytes == sizeof(Digest); break;
    case Phase::serve: good = good && bytes <= wire::kMaxPayload; break;
  }
  stage_ = Stage::room;
  if (good) return {};
  ++server_.statistics().bad_frames;
  if (header_.magic == wire::kMagic && header_.version != wire::kVersion) {
    fail_and_close(wire::Status::user, wire::other_version("this server", wire::kVersion, "the worker", header_.version));
    stage_ = Stage::reply;
    return {};
  }
  if (phase_ != Phase::serve) return Next::close;
  fail_and_close(wire::Status::user, "not a frame of this protocol, or larger than 1 GiB");
  stage_ = Stage::reply;
  return {};
}

// Where the payload of the frame at hand goes. A push goes to kept memory, from where the next process can complete it.
std::optional<Connection::Next> Connection::make_room() {
  const uint64_t bytes = std::max<uint64_t>(header_.payload_bytes, 1);
  if (bytes > kLarge) {
    if (!frames_.take(*this, bytes)) return Next::wait;
    frame_share_ = bytes;
  }
  kept_ = header_.kind == wire::Kind::push && session_ != 0 && server_.kept() != nullptr && server_.model() != nullptr;
  if (kept_ && !redo_) redo_ = server_.kept()->take_redo();
  received_ = kept_ ? redo_.room(bytes) : payload_.room(bytes);
  received_bytes_ = header_.payload_bytes;
  unpacked_ = false;
  stage_ = Stage::payload;
  return {};
}

Connection::Next Connection::send(Allowance& allowance) {
  for (;;) {
    if (pulling_) put_rows();
    switch (reply_.send(socket_, allowance)) {
      case Reply::Sent::some: return Next::soon;
      case Reply::Sent::blocked: return Next::writable;
      case Reply::Sent::lost: return Next::close;
      case Reply::Sent::all: break;
    }
    if (!pulling_ || pulling_->table == pulling_->counts.size()) return replied();
  }
}

Connection::Next Connection::replied() {
  if (pulling_) count_pull();
  if (closing_) return Next::close;
  pulling_.reset();
  reply_.clear();
  for (Buffer* buffer : {&payload_, &dense_, &packed_}) buffer->trim(0);
  std::vector<int64_t>().swap(frozen_ids_);
  std::vector<char>().swap(frozen_values_);
  if (redo_) {
    redo_.trim(kRedoKept);
    redo_ = Redo();
  }
  frames_.give_back(std::exchange(frame_share_, 0));
  unpacking_.give_back(std::exchange(unpacked_share_, 0));
  replies_.give_back(std::exchange(reply_share_, 0));
  stage_ = Stage::header;
  return socket_.buffered() ? Next::soon : Next::readable;
}

Connection::Answer Connection::answer() {
  if (phase_ == Phase::serve) return serve();
  try {
    return phase_ == Phase::hello ? hello() : prove();
  } catch (const Refused& error) {
    ++server_.statistics().refused;
    return fail_and_close(wire::Status::refused, error.what());
  } catch (const UserError& error) {
    ++server_.statistics().bad_frames;
    return fail_and_close(wire::Status::user, error.what());
  }
}

// Proves that this server knows the token of the peer.
Connection::Answer Connection::hello() {
  wire::Cursor cursor(received_, header_.payload_bytes);
  auto hello = cursor.take<wire::Hello>();
  name_ = cursor.text(hello.name_bytes);
  cursor.end();
  if (!wire::is_process_name(name_)) throw UserError("invalid process name in hello: expected 1 to 253 of A-Z a-z 0-9 . _ -");
  if (hello.session == 0) throw UserError("a hello without a session");
  if (hello.last < 0) throw UserError("a hello after push " + std::to_string(hello.last));
  session_ = hello.pushes != 0 ? hello.session : 0;
  last_ = hello.last;
  keeps_ = hello.kept != 0;
  hello_.assign(received_, header_.payload_bytes);
  nonce_ = random_digest();
  const wire::Challenge challenge{nonce_, wire::proof(wire::Side::server, wire::bulk_token(server_.config().key, name_), hello_, nonce_)};
  reply_.begin(header_, wire::Status::ok, sizeof challenge);
  reply_.put(&challenge, sizeof challenge);
  phase_ = Phase::prove;
  return Answer::reply;
}

// Has the peer prove that it knows its token.
Connection::Answer Connection::prove() {
  Digest proof{};
  std::memcpy(proof.data(), received_, proof.size());
  const std::string token = wire::bulk_token(server_.config().key, name_);
  if (!same_digest(proof, wire::proof(wire::Side::client, token, hello_, nonce_))) throw Refused("the token is wrong, or another process's");
  if (!connections_.admit(*this)) return fail_and_close(wire::Status::transient, connections_.full(server_.config().server));
  const int64_t gone = keeps_ && server_.replays() ? 0 : last_;
  const std::optional<int64_t> last = server_.admission().greet(name_, session_, gone, *this);
  if (!last) return Answer::wait;
  const ServerConfig& config = server_.config();
  const int64_t version = server_.admission().version();
  wire::HelloReply hello{config.instance, version, config.server, config.servers, server_.model() != nullptr, server_.replays(), *last};
  reply_.begin(header_, wire::Status::ok, sizeof hello);
  reply_.put(&hello, sizeof hello);
  std::string().swap(hello_);
  phase_ = Phase::serve;
  return Answer::reply;
}

Connection::Answer Connection::serve() {
  try {
    server_.admission().check(name_);
    wire::Cursor cursor(received_, received_bytes_);
    if (header_.kind == wire::Kind::initialise) return initialise(cursor);
    if (server_.model() == nullptr) return fail(wire::Status::empty, "this server has no parameters yet");
    // Once: a push that has to wait is answered again.
    if (header_.kind == wire::Kind::packed_push && !unpacked_ && !unpack_push(cursor)) return Answer::room;
    switch (header_.kind) {
      case wire::Kind::pull: return pull(cursor);
      case wire::Kind::packed_pull: return pull_packed(cursor);
      case wire::Kind::push:
      case wire::Kind::packed_push: return push();
      case wire::Kind::rows: return rows(cursor);
      default: break;
    }
    ++server_.statistics().bad_frames;
    return fail_and_close(wire::Status::user, "a frame of unknown kind " + std::to_string(static_cast<int>(header_.kind)));
  } catch (const Refused& error) {
    ++server_.statistics().refused;
    return fail(wire::Status::refused, error.what());
  } catch (const UserError& error) {
    return fail(wire::Status::user, error.what());
  } catch (const Gone& error) {
    return fail(wire::Status::gone, error.what());
  } catch (const TransientError& error) {
    return fail(wire::Status::transient, error.what());
  } catch (const std::bad_alloc&) {
    return fail(wire::Status::transient, "out of memory");
  } catch (const std::length_error& error) {
    return fail(wire::Status::user, error.what());
  }
}

Connection::Answer Connection::fail(wire::Status status, const std::string& message) {
  pulling_.reset();
  for (Budget* budget : {&unpacking_, &replies_}) budget->cancel(*this);  // what waited for room may have it by now
  reply_.begin(header_, status, message.size());
  reply_.put(message.data(), message.size());
  return Answer::reply;
}

Connection::Answer Connection::fail_and_close(wire::Status status, const std::string& message) {
  closing_ = true;
  return fail(status, message);
}

}  // namespace elasticdl::ps
