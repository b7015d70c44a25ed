#include "elasticdl/ps/native/connection.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>

namespace elasticdl::ps {
namespace {

constexpr double kStallS = 60.0;      // within a frame
constexpr double kGreetingS = 10.0;
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
    socket_.limit_receive_s(kGreetingS);
    if (greet()) {
      socket_.limit_receive_s(kStallS);
      while (next()) {
      }
    }
  } catch (const std::exception& error) {
    fail(wire::Status::transient, error.what());
  }
  look_.reset();
  for (Buffer* buffer : {&payload_, &room_, &dense_}) buffer->trim(0);
  socket_.shutdown();
}

bool Connection::greet() {
  if (!socket_.receive(reinterpret_cast<char*>(&header_), sizeof header_)) return false;
  bool frame = header_.magic == wire::kMagic && header_.version == wire::kVersion && header_.kind == wire::Kind::hello &&
               header_.payload_bytes >= sizeof(wire::Hello) && header_.payload_bytes <= wire::kMaxHello;
  if (!frame) {
    ++server_.statistics().bad_frames;
    return false;
  }
  char* payload = payload_.room(header_.payload_bytes);
  if (!socket_.receive(payload, header_.payload_bytes)) return false;
  try {
    wire::Cursor cursor(payload, header_.payload_bytes);
    auto hello = cursor.take<wire::Hello>();
    std::string token = cursor.text(hello.token_bytes);
    name_ = cursor.text(hello.name_bytes);
    cursor.end();
    if (!wire::same_secret(token, server_.facts().token)) throw Refused("the job's token is wrong");
    if (name_.empty() || hello.session == 0) throw UserError("a hello without a name or session");
    session_ = hello.pushes != 0 ? hello.session : 0;
    server_.admission().greet(name_, session_);
  } catch (const Refused& error) {
    ++server_.statistics().refused;
    return fail(wire::Status::refused, error.what()), false;
  } catch (const UserError& error) {
    ++server_.statistics().bad_frames;
    return fail(wire::Status::user, error.what()), false;
  }
  const Facts& facts = server_.facts();
  wire::HelloReply hello{facts.instance, server_.admission().version(), facts.server, facts.servers, server_.model() != nullptr, 0};
  Reply reply(socket_, room_);
  reply.begin(header_, wire::Status::ok, sizeof hello);
  reply.put(&hello, sizeof hello);
  return reply.end();
}

// Waiting for the first byte may take for ever; from there on the peer must keep sending.
bool Connection::receive_header() {
  char* at = reinterpret_cast<char*>(&header_);
  for (;;) {
    ssize_t got = ::recv(socket_.fd(), at, sizeof header_, 0);
    if (got > 0) return socket_.receive(at + got, sizeof header_ - static_cast<size_t>(got));
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return false;
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
    return fail(wire::Status::transient, "too many large frames are on their way at the same time"), false;
  }
  bool received = socket_.receive(payload_.room(std::max<uint64_t>(bytes, 1)), bytes);
  bool good = received && answer();
  payload_.trim(kPayloadKept);
  budget_.give_back(counted);
  return good;
}

bool Connection::answer() {
  try {
    server_.admission().check(name_);
    wire::Cursor cursor(payload_.data(), header_.payload_bytes);
    if (header_.kind == wire::Kind::initialise) return initialise(cursor);
    if (server_.model() == nullptr) return fail(wire::Status::empty, "this server has no parameters yet");
    switch (header_.kind) {
      case wire::Kind::pull: return pull(cursor);
      case wire::Kind::push: return push(cursor);
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
