#include "elasticdl/ps/native/connection.h"

#include <errno.h>

#include <algorithm>

#include "elasticdl/rpc/native/greeting.h"

namespace elasticdl::ps {
namespace {

constexpr double kStallS = 60.0;      // within a frame
constexpr std::chrono::seconds kGreeting{10};
constexpr size_t kPayloadKept = 8 << 20;
constexpr uint64_t kLarge = 16 << 20;  // frames above it share a budget

}  // namespace

bool Budget::take(uint64_t bytes) {
  if (left_.fetch_sub(static_cast<int64_t>(bytes)) >= static_cast<int64_t>(bytes)) return true;
  give_back(bytes);
  return false;
}

void Reply::begin(const wire::Header& request, wire::Status status, uint64_t payload_bytes) {
  wire::Header header;
  header.kind = request.kind;
  header.status = status;
  header.request = request.request;
  header.payload_bytes = payload_bytes;
  put(&header, sizeof header);
}

char* Reply::piece(size_t bytes) {
  if (used_ + bytes > kRoom) flush();
  char* begin = room_ + used_;
  used_ += bytes;
  return begin;
}

void Reply::put(const void* data, size_t bytes) {
  if (bytes == 0) return;  // `data` may be null then
  if (bytes <= kPiece) {
    std::memcpy(piece(bytes), data, bytes);
    return;
  }
  flush();
  alive_ = alive_ && socket_.send(static_cast<const char*>(data), bytes);
}

void Reply::flush() {
  alive_ = alive_ && socket_.send(room_, used_);
  used_ = 0;
}

bool Reply::end() {
  flush();
  return alive_;
}

void Connection::serve() {
  try {
    socket_.limit_send_s(kStallS);
    if (greet()) {
      socket_.limit_receive_s(kStallS);
      while (next()) {
      }
    }
  } catch (const std::exception& error) {
    fail(wire::Status::transient, error.what());
  }
  look_.reset();
  redo_ = Redo();
  for (Buffer* buffer : {&payload_, &room_, &dense_}) buffer->trim(0);
  socket_.shutdown();
}

// Reads the next frame of a greeting into payload_. False if the peer is gone, late, or unknown.
bool Connection::receive_greeting(wire::Kind kind, uint64_t least, uint64_t most, std::chrono::steady_clock::time_point deadline) {
  if (!socket_.receive_by(deadline, reinterpret_cast<char*>(&header_), sizeof header_)) return false;
  const uint64_t bytes = header_.payload_bytes;
  if (header_.magic != wire::kMagic || header_.version != wire::kVersion || header_.kind != kind || bytes < least || bytes > most) {
    ++server_.statistics().bad_frames;
    return false;
  }
  return socket_.receive_by(deadline, payload_.room(bytes), bytes);
}

// Proves that this server knows the token of the peer, and has the peer prove it. Throws Refused.
void Connection::challenge(std::chrono::steady_clock::time_point deadline) {
  const std::string hello(payload_.data(), header_.payload_bytes);
  const std::string token = wire::bulk_token(server_.config().key, name_);
  const Digest nonce = random_digest();
  const wire::Challenge challenge{nonce, wire::proof(wire::Side::server, token, hello, nonce)};
  Reply reply(socket_, room_);
  reply.begin(header_, wire::Status::ok, sizeof challenge);
  reply.put(&challenge, sizeof challenge);
  Digest proof{};
  if (reply.end() && receive_greeting(wire::Kind::prove, sizeof proof, sizeof proof, deadline)) {
    std::memcpy(proof.data(), payload_.data(), proof.size());
  }
  if (!same_digest(proof, wire::proof(wire::Side::client, token, hello, nonce))) throw Refused("the token is wrong, or another process's");
  known_ = true;
}

bool Connection::greet() {
  const auto deadline = std::chrono::steady_clock::now() + kGreeting;
  if (const TlsContext& tls = server_.config().tls; tls != nullptr) {
    socket_.secure(tls, "");
    if (!socket_.handshake_by(deadline)) {
      ++server_.statistics().bad_frames;
      return false;
    }
  }
  if (!receive_greeting(wire::Kind::hello, sizeof(wire::Hello), wire::kMaxHello, deadline)) return false;
  try {
    wire::Cursor cursor(payload_.data(), header_.payload_bytes);
    auto hello = cursor.take<wire::Hello>();
    name_ = cursor.text(hello.name_bytes);
    cursor.end();
    if (!wire::is_process_name(name_)) throw UserError("invalid process name in hello: expected 1 to 253 of A-Z a-z 0-9 . _ -");
    if (hello.session == 0) throw UserError("a hello without a session");
    challenge(deadline);
    session_ = hello.pushes != 0 ? hello.session : 0;
    server_.admission().greet(name_, session_);
  } catch (const Refused& error) {
    ++server_.statistics().refused;
    return fail(wire::Status::refused, error.what()), false;
  } catch (const UserError& error) {
    ++server_.statistics().bad_frames;
    return fail(wire::Status::user, error.what()), false;
  }
  const ServerConfig& config = server_.config();
  wire::HelloReply hello{config.instance, server_.admission().version(), config.server, config.servers, server_.model() != nullptr, 0};
  Reply reply(socket_, room_);
  reply.begin(header_, wire::Status::ok, sizeof hello);
  reply.put(&hello, sizeof hello);
  return reply.end();
}

// Waits without limit for the first byte; from there on the peer must keep sending.
bool Connection::receive_header() {
  char* at = reinterpret_cast<char*>(&header_);
  for (;;) {
    ssize_t got = socket_.receive_some(at, sizeof header_);
    if (got > 0) return socket_.receive(at + got, sizeof header_ - static_cast<size_t>(got));
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK)) return false;
  }
}

bool Connection::next() {
  if (!receive_header()) return false;
  if (header_.magic != wire::kMagic || header_.version != wire::kVersion || header_.payload_bytes > wire::kMaxPayload) {
    ++server_.statistics().bad_frames;
    return fail(wire::Status::user, "not a frame of this protocol, or larger than 1 GiB"), false;
  }
  const uint64_t bytes = header_.payload_bytes;
  const uint64_t counted = bytes > kLarge ? bytes : 0;
  if (!budget_.take(counted)) {
    return fail(wire::Status::transient, "too many large frames at the same time"), false;
  }
  char* const at = room();
  received_ = at;
  bool received = socket_.receive(at, bytes);
  bool good = received && answer();
  payload_.trim(kPayloadKept);
  if (redo_) redo_.trim(kPayloadKept);
  budget_.give_back(counted);
  return good;
}

// Where the payload of the frame at hand goes. A push goes to kept memory, from where the next process can complete it.
char* Connection::room() {
  const uint64_t bytes = std::max<uint64_t>(header_.payload_bytes, 1);
  kept_ = header_.kind == wire::Kind::push && session_ != 0 && server_.kept() != nullptr && server_.model() != nullptr;
  if (!kept_) return payload_.room(bytes);
  if (!redo_) redo_ = server_.kept()->take_redo();
  return redo_.room(bytes);
}

bool Connection::answer() {
  try {
    server_.admission().check(name_);
    wire::Cursor cursor(received_, header_.payload_bytes);
    if (header_.kind == wire::Kind::initialise) return initialise(cursor);
    if (server_.model() == nullptr) return fail(wire::Status::empty, "this server has no parameters yet");
    switch (header_.kind) {
      case wire::Kind::pull: return pull(cursor);
      case wire::Kind::push: return push();
      case wire::Kind::rows: return rows(cursor);
      default: break;
    }
    ++server_.statistics().bad_frames;
    return fail(wire::Status::user, "a frame of unknown kind " + std::to_string(static_cast<int>(header_.kind))), false;
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

bool Connection::fail(wire::Status status, const std::string& message) {
  Reply reply(socket_, room_);
  reply.begin(header_, status, message.size());
  reply.put(message.data(), message.size());
  return reply.end();
}

}  // namespace elasticdl::ps
