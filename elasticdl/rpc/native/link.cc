#include "elasticdl/rpc/native/link.h"

#include <errno.h>
#include <poll.h>

#include <algorithm>

#include "elasticdl/rpc/native/greeting.h"

namespace elasticdl {
namespace {

constexpr double kFirstBackOffS = 0.02;
constexpr double kLastBackOffS = 1.0;
constexpr uint64_t kMaxMessage = 64 << 10;

Time after(Time now, double seconds) {
  return now + std::chrono::duration_cast<Time::duration>(std::chrono::duration<double>(seconds));
}

template <class T>
iovec piece(const T* data, size_t count) {
  return {const_cast<T*>(data), count * sizeof(T)};
}

uint64_t total(const std::vector<Target>& targets) {
  uint64_t bytes = 0;
  for (const Target& target : targets) bytes += target.bytes;
  return bytes;
}

struct Received {
  size_t bytes;
  bool gone;
};
Received receive_some(const Socket& socket, char* data, size_t bytes) {
  ssize_t got = socket.receive_some(data, bytes);
  if (got > 0) return {static_cast<size_t>(got), false};
  bool later = got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  return {0, !later};
}

// With a header that no server of ours sends.
std::string what_is_wrong(const wire::Header& header) {
  if (header.magic != wire::kMagic || header.version == wire::kVersion) return "invalid answer";
  return wire::other_version("it", header.version, "this worker", wire::kVersion);
}

struct Slice {
  uint64_t begin, count;
};
Slice even(uint64_t size, uint64_t part, uint64_t parts) {
  uint64_t begin = size * part / parts;
  return {begin, size * (part + 1) / parts - begin};
}

}  // namespace

Link::Link(const Identity& identity, uint32_t server, uint32_t servers, std::string address)
    : identity_(identity), server_(server), servers_(servers), address_(std::move(address)),
      log_(identity.kept_bytes / servers), random_(static_cast<uint32_t>(identity.session) + server) {}

void Link::start(Part& part, const Seed& seed, bool held) {
  part_ = &part;
  held_ = held;
  seed_ = &seed;
  retry_at_ = Time{};
  if (state_ == State::ready) ask_unless_held();
}

void Link::release() {
  held_ = false;
  if (state_ == State::ready) ask();
}

void Link::move(const std::string& address) {
  if (address == address_) return;
  address_ = address;
  back_off_s_ = 0;
  retry_at_ = Time{};
  problem_ = "it was moved";
  socket_.close();
  state_ = State::away;
}

void Link::abandon() {
  part_ = nullptr;
  held_ = false;
  if (state_ == State::ready) return;
  socket_.close();
  state_ = State::away;
}

short Link::events() const {
  if (state_ == State::connecting) return POLLOUT;
  const bool all_left = !socket_.pending() && (state_ == State::securing || out_.empty());
  return static_cast<short>(all_left ? POLLIN : POLLIN | POLLOUT);
}

std::string Link::story() const {
  std::string text = name();
  text += address_.empty() ? " (it has no address at the moment)" : " at " + address_;
  if (!problem_.empty()) return text + ": " + problem_;
  return text + (state_ == State::asking ? ": it has not answered yet" : "");
}

void Link::advance(Time now) {
  if (state_ == State::away) connect(now);
  if (state_ == State::connecting) connected(now);
  if (state_ == State::securing) secured(now);
  while (state_ > State::securing && state_ != State::ready) {
    if (!out_.flush(socket_)) return lost(std::strerror(errno), now);
    // While the server works.
    if (state_ == State::asking && out_.empty() && part_->sequence > 0) log_.prepare(part_->sequence, part_->kind, part_->payload);
    if (!receive(now)) return;
  }
}

void Link::connect(Time now) {
  if (address_.empty() || now < retry_at_) return;
  try {
    socket_ = begin_connect(address_);
    state_ = State::connecting;
  } catch (const TransientError& error) {
    lost(error.what(), now);
  }
}

void Link::connected(Time now) {
  pollfd ready{socket_.fd(), POLLOUT, 0};
  if (::poll(&ready, 1, 0) == 0) return;
  std::string problem = connect_problem(socket_);
  if (!problem.empty()) return lost(problem, now);
  if (identity_.tls == nullptr) return greet();
  socket_.secure(identity_.tls, name());
  state_ = State::securing;
}

void Link::secured(Time now) {
  if (socket_.handshake()) return greet();
  if (errno != EAGAIN && errno != EWOULDBLOCK) lost(socket_.handshake_problem(), now);
}

void Link::greet() {
  wire::Hello hello{};
  hello.session = identity_.session;
  hello.nonce = random_digest();
  hello.name_bytes = static_cast<uint32_t>(identity_.name.size());
  hello.pushes = identity_.pushes ? 1 : 0;
  hello.last = complete();
  hello.kept = log_.empty() ? 0 : 1;
  wire::Writer payload;
  payload.put(hello).text(identity_.name);
  hello_ = std::move(payload.bytes());
  send(State::greeting, wire::Kind::hello, hello_, {});
}

void Link::send(State next, wire::Kind kind, std::string own, const std::vector<iovec>& rest) {
  wire::Header header;
  header.kind = kind;
  header.request = ++request_;
  header.payload_bytes = own.size();
  for (const iovec& part : rest) header.payload_bytes += part.iov_len;
  std::string first(reinterpret_cast<const char*>(&header), sizeof header);
  out_.put(first + own, rest);
  header_have_ = 0;
  state_ = next;
}

void Link::seed() {
  Slice trainable = even(seed_->trainable, server_, servers_);
  Slice additive = even(seed_->additive, server_, servers_);
  const size_t bytes = seed_->weight_bytes;
  wire::Writer payload;
  payload.put(wire::Initialise{version_, seed_->spec.size(), trainable.count + additive.count}).text(seed_->spec).align();
  send(State::seeding, wire::Kind::initialise, std::move(payload.bytes()),
       {piece(seed_->dense + trainable.begin * bytes, trainable.count * bytes),
        piece(seed_->dense + (seed_->trainable + additive.begin) * bytes, additive.count * bytes)});
}

// The last push that is not made again by the caller. This server may have acknowledged the one that others have not.
int64_t Link::complete() const { return std::min(log_.last(), std::max<int64_t>(part_->sequence - 1, 0)); }

// The server gets this process's present values, which have the pushes of before.
void Link::begin_anew() {
  log_.clear();
  lack(complete());
}

void Link::lack(int64_t last) {
  if (last <= lacks_) return;
  lacks_ = last;
  lacks_at_ = address_;
}

// The server may have begun again with a checkpoint, or with values that another worker gave it.
void Link::compare(const wire::HelloReply& reply) {
  has_ = reply.sequence;
  if (has_ >= log_.last()) return;
  if (reply.replays == 0) return begin_anew();
  const PushLog::Frame* next = log_.after(has_);
  const int64_t lacks = next == nullptr ? complete() : next->sequence - 1;
  if (lacks > has_) lack(lacks);
}

void Link::repeat() {
  const PushLog::Frame* next = log_.after(has_);
  if (next == nullptr) return ask_unless_held();
  has_ = next->sequence;
  send(State::repeating, next->kind, "", {piece(next->payload.data(), next->bytes)});
}

void Link::ask() { send(State::asking, part_->kind, "", part_->payload); }

void Link::ask_unless_held() {
  if (held_) state_ = State::ready;
  else ask();
}

// True if a whole reply was processed and more may follow.
bool Link::receive(Time now) {
  while (header_have_ < sizeof header_) {
    auto [got, gone] = receive_some(socket_, reinterpret_cast<char*>(&header_) + header_have_, sizeof header_ - header_have_);
    if (gone) return lost("the connection broke", now), false;
    if (got == 0) return false;
    header_have_ += got;
    if (header_have_ == sizeof header_ && !begin_payload()) return lost(what_is_wrong(header_), now), false;
  }
  switch (in_.receive(socket_)) {
    case Incoming::Progress::more: return false;
    case Incoming::Progress::lost: return lost("the connection broke", now), false;
    case Incoming::Progress::complete: break;
  }
  if (header_.status != wire::Status::ok) answered_badly(now);
  else answered(now);
  return true;
}

bool Link::begin_payload() {
  if (header_.magic != wire::kMagic || header_.version != wire::kVersion || header_.request != request_) return false;
  bool good = header_.status == wire::Status::ok;
  const bool known = state_ > State::proving;
  if (header_.payload_bytes > (good && known ? wire::kMaxPayload : kMaxMessage)) return false;
  if (good && state_ == State::asking && !part_->targets.empty()) {
    if (header_.payload_bytes != total(part_->targets)) return false;
    in_.expect(&part_->targets, header_.payload_bytes);
  } else {
    body_bytes_ = header_.payload_bytes;
    in_.expect(&body_, body_bytes_);
  }
  return true;
}

void Link::answered(Time now) {
  switch (state_) {
    case State::greeting: return challenged(now);
    case State::proving: return greeted(now);
    case State::seeding: return ask_unless_held();
    case State::repeating: return repeat();
    default: break;
  }
  // The parts of `meet` have a number, but no reply.
  if (part_->sequence > 0 && !part_->targets.empty()) {
    wire::PushReply reply;
    std::memcpy(&reply, part_->targets.front().data, sizeof reply);
    log_.acknowledged(part_->sequence);
    log_.covered(reply.covered);
  }
  if (part_->targets.empty()) {
    std::swap(part_->reply, body_);
    part_->reply_bytes = body_bytes_;
  }
  part_ = nullptr;
  state_ = State::ready;
  back_off_s_ = 0;
  problem_.clear();
}

void Link::answered_badly(Time now) {
  // An unauthenticated peer must not end this process, and its text must not be repeated.
  if (state_ == State::greeting) return lost("it refused the greeting", now);
  std::string message(body_.data(), body_bytes_);
  std::string text = name() + ": " + message;
  switch (header_.status) {
    case wire::Status::user: throw UserError(text);
    case wire::Status::refused: throw Refused(text);
    case wire::Status::gone: throw Gone(text);
    case wire::Status::empty:
      if (!seed_->spec.empty() && state_ == State::asking) return begin_anew(), seed();
      return lost("it has no parameters yet, and this process has none to give it", now);
    default: return lost(message, now);
  }
}

// The address may belong to another process now: no data go out before the server's proof.
void Link::challenged(Time now) {
  if (body_bytes_ != sizeof(wire::Challenge)) return lost("it answered nonsense", now);
  wire::Challenge challenge;
  std::memcpy(&challenge, body_.data(), sizeof challenge);
  if (!same_digest(challenge.proof, wire::proof(wire::Side::server, identity_.tokens[server_], hello_, challenge.nonce))) {
    return lost("it does not know this process's token, so it is not " + name() + " of this job", now);
  }
  const Digest proof = wire::proof(wire::Side::client, identity_.tokens[server_], hello_, challenge.nonce);
  send(State::proving, wire::Kind::prove, std::string(reinterpret_cast<const char*>(proof.data()), proof.size()), {});
}

void Link::greeted(Time now) {
  if (body_bytes_ != sizeof(wire::HelloReply)) return lost("invalid answer", now);
  wire::HelloReply reply;
  std::memcpy(&reply, body_.data(), sizeof reply);
  if (reply.server != server_ || reply.servers != servers_) {
    return lost("it is number " + std::to_string(reply.server) + " of " + std::to_string(reply.servers) + " servers, wanted is number " +
                    std::to_string(server_) + " of " + std::to_string(servers_), now);
  }
  version_ = std::max(version_, reply.version);
  if (reply.has_state == 0 && part_->kind != wire::Kind::initialise && !seed_->spec.empty()) return begin_anew(), seed();
  if (!identity_.pushes) return ask_unless_held();
  compare(reply);
  repeat();
}

// Reconnects at once the first time: the server may have closed an idle connection.
void Link::lost(const std::string& why, Time now) {
  socket_.close();
  state_ = State::away;
  problem_ = why;
  retry_at_ = after(now, back_off_s_ * (0.5 + 0.5 * random_() / static_cast<double>(random_.max())));
  back_off_s_ = std::min(std::max(back_off_s_ * 2, kFirstBackOffS), kLastBackOffS);
}

}  // namespace elasticdl
