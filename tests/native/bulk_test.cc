// Servers, clients and the bulk plane between them without Python, for the sanitizers. Exit 0: all held.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "elasticdl/checkpoint/native/part_file.h"
#include "elasticdl/rpc/native/push_log.h"
#include "tests/native/servers.h"

using namespace elasticdl;
using namespace elasticdl::testing;

namespace {

using Random = std::mt19937_64;

constexpr double kLongPauseS = 10;

// Three workers push and pull, while views are cut, read, written to a file and dropped.
void pushes_pulls_cuts_and_saves_run_beside_one_another(bool packed = false) {
  std::vector<std::unique_ptr<TestServer>> servers;
  Addresses addresses;
  for (uint32_t k = 0; k < 3; ++k) {
    servers.push_back(std::make_unique<TestServer>(k, 3));
    addresses.push_back(servers.back()->address());
  }
  constexpr int kWorkers = 3, kPushes = 60;
  std::vector<std::unique_ptr<Worker>> workers;
  for (int w = 0; w < kWorkers; ++w) workers.push_back(std::make_unique<Worker>(addresses, "worker-" + std::to_string(w)));
  for (auto& worker : workers) worker->pool.pack(packed);
  std::atomic<int> running{kWorkers};
  std::vector<std::thread> threads;
  for (auto& worker : workers) {
    threads.emplace_back([&running, &worker] {
      std::vector<float> rows;
      for (int i = 0; i < kPushes; ++i) {
        worker->push(range(-300, 600));
        worker->pull(range(-500, 1000), -1, &rows);
      }
      --running;
    });
  }
  Worker reader(addresses, "reader");
  reader.pool.pack(packed);
  for (int64_t snapshot = 0; running > 0; ++snapshot) {
    cut(servers, snapshot);
    std::vector<float> rows, again;
    std::vector<float> dense = reader.pull(range(-300, 600), snapshot, &rows);
    for (float value : dense) CHECK(value == dense[0]);
    for (float value : rows) CHECK(value == dense[0]);
    size_t made = 0;
    for (uint32_t server = 0; server < servers.size(); ++server) made += reader.pool.rows(server, 0, -1, 0, nullptr, kLimitS).total;
    CHECK(made >= (dense[0] < 0 ? 600u : 0u));
    auto view = servers[0]->core.views().get(snapshot);
    checkpoint::Writer writer("/dev/null");
    Table& table = servers[0]->core.model()->table(0);
    const bool delta = table.has_base(view->slot(), snapshot - 1);
    CHECK(delta == (snapshot > 0));
    CHECK(!checkpoint::write_table(writer, table, view->slot(), 0, delta));
    table.set_base(view->slot(), snapshot);
    for (auto& server : servers) server->core.views().drop(snapshot);
    // Nobody could end the pauses of a writer from now on.
    CHECK(view->haste.pause(kLongPauseS) == 0);
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<float> rows;
  std::vector<float> dense = reader.pull({0, 1, 2}, -1, &rows);
  for (float value : dense) CHECK(value == -1.0f * kWorkers * kPushes);
  for (float value : rows) CHECK(value == -1.0f * kWorkers * kPushes);
}

// Odd numbers of everything, so that a section that is not aligned would show; values that float32 does not have.
void float64_weights_cross_the_wire_whole(bool packed = false) {
  constexpr size_t kServers = 3, kOddDim = 3;
  std::vector<std::unique_ptr<TestServer>> servers;
  Addresses addresses;
  for (uint32_t k = 0; k < kServers; ++k) {
    servers.push_back(std::make_unique<TestServer>(k, kServers));
    addresses.push_back(servers.back()->address());
  }
  Spec spec;
  spec.scalar = Scalar::FLOAT64;
  spec.trainable = 11;
  spec.additive = 5;
  spec.tables.push_back({"t", kOddDim, {InitializerSpec::CONSTANT, 0.0f, 0.0f}, 0});
  spec.tables.push_back({"u", 1, {InitializerSpec::CONSTANT, 0.0f, 0.0f}, 0});
  spec.json = "{\"odd\": 1}";
  Pool pool(addresses, std::vector<std::string>(kServers, wire::bulk_token("key", "worker-0")), "worker-0", nullptr, trusting());
  pool.pack(packed);
  const double third = 1.0 / 3.0;
  std::vector<double> dense(16, third), pulled(16);
  pool.initialise(spec, dense.data(), kLimitS);
  const std::vector<int64_t> ids = range(-7, 10), few = range(100, 1);
  const std::vector<double> gradients(ids.size() * kOddDim, third);
  pool.push({1, 0, 0, 1, {0, 0, 0}, 1.0, dense.data(), {{ids.data(), ids.size()}, {few.data(), 1}}, {gradients.data(), gradients.data()}},
            nullptr, kLimitS);
  std::vector<double> rows(ids.size() * kOddDim), one(1);
  pool.pull({{ids.data(), ids.size()}, {few.data(), 1}}, -1, pulled.data(), {rows.data(), one.data()}, nullptr, kLimitS);
  for (size_t i = 0; i < pulled.size(); ++i) CHECK(pulled[i] == (i < spec.trainable ? 0.0 : third + third));
  for (double value : rows) CHECK(value == -third);
  CHECK(one[0] == -third);
  size_t count = 0;
  for (uint32_t server = 0; server < kServers; ++server) {
    const RowsPage page = pool.rows(server, 0, -1, 0, nullptr, kLimitS);
    CHECK(!page.lost && page.total == page.ids.size() && page.values.size() == page.total * kOddDim * sizeof(double));
    for (size_t i = 0; i < page.total * kOddDim; ++i) CHECK(reinterpret_cast<const double*>(page.values.data())[i] == -third);
    count += page.total;
  }
  CHECK(count == ids.size());
}

// Servers go and come back elsewhere while a worker pushes; another thread moves, and in the end closes, its pool.
void servers_may_go_and_come_while_others_wait() {
  auto first = std::make_unique<TestServer>(0, 1);
  Worker worker({first->address()}, "worker-0");
  std::vector<float> seed(kDense, 5.0f);
  std::vector<std::unique_ptr<TestServer>> later;
  std::thread mover([&] {
    for (int i = 0; i < 5; ++i) {
      ::poll(nullptr, 0, 20);
      first->listener.stop();
      later.push_back(std::make_unique<TestServer>(0, 1));
      worker.pool.move({later.back()->address()});
      std::swap(first, later.back());
    }
    ::poll(nullptr, 0, 20);
    worker.pool.close();
  });
  bool closed = false;
  for (int64_t sequence = 1; !closed; ++sequence) {
    std::vector<float> dense(kDense, 1.0f);
    PushRequest request{sequence, 1, 0, sequence, {0}, 1.0, dense.data(), {{nullptr, 0}}, {nullptr}};
    try {
      worker.pool.push(request, seed.data(), kLimitS);
    } catch (const TransientError& error) {
      closed = true;
    }
  }
  mover.join();
}

// A server begins anew with a checkpoint, several times, and gets the pushes again that came after.
void pushes_come_again_to_a_server_that_lost_them() {
  auto server = std::make_unique<TestServer>(0, 1);
  Worker worker({server->address()}, "worker-0");
  for (int i = 0; i < 3; ++i) {
    for (int k = 0; k < 4; ++k) worker.push({k});
    server = std::make_unique<TestServer>(0, 1);
    server->core.give(server->core.new_model(counting_spec()), 0, 0, true);
    worker.pool.move({server->address()});
    const std::vector<Met> met = worker.pool.meet(nullptr, kLimitS);
    CHECK(met.size() == 1 && met[0].address == server->address() && met[0].lacks == 0);
    CHECK(server->core.admission().version() == worker.sequence);
  }
  std::vector<float> rows;
  const std::vector<float> dense = worker.pull({0, 1}, -1, &rows);
  for (float weight : dense) CHECK(weight == -static_cast<float>(worker.sequence));
  for (float weight : rows) CHECK(weight == -3.0f);
}

// As a worker makes and keeps them.
void keep(PushLog& log, int64_t sequence, size_t bytes) {
  std::vector<char> payload(bytes, static_cast<char>(sequence));
  log.prepare(sequence, wire::Kind::push, {{payload.data(), payload.size()}});
  log.acknowledged(sequence);
}

int64_t oldest(const PushLog& log) { return log.after(0) == nullptr ? 0 : log.after(0)->sequence; }

void kept_pushes_take_no_more_memory_than_their_room() {
  for (size_t bytes : {1, 100, 700, 5000, 70'000}) {
    constexpr size_t kRoom = 1 << 20;
    PushLog log(kRoom);
    int64_t count = 0;
    for (; oldest(log) <= 1; ++count) {
      keep(log, count + 1, bytes);
      CHECK(log.bytes() <= kRoom);
    }
    // Most of the room is for what is kept, not for what surrounds it.
    CHECK(static_cast<size_t>(count) * (bytes + 256) * 3 / 2 >= kRoom / 2);
    CHECK(log.crowded() && log.too_large() == 0);
    const int64_t first = oldest(log);
    for (int64_t sequence = first; sequence <= count; ++sequence) {
      const PushLog::Frame* frame = log.after(sequence - 1);
      CHECK(frame->sequence == sequence && frame->bytes == bytes && frame->payload.data()[bytes - 1] == static_cast<char>(sequence));
    }
    log.covered(count);
    CHECK(log.bytes() == 0 && log.empty() && !log.crowded());
  }
}

// A server that gets pushes again must get each.
void a_push_without_a_place_ends_the_log_before_it() {
  PushLog log(1 << 20);
  for (int64_t sequence = 1; sequence <= 3; ++sequence) keep(log, sequence, 100);
  keep(log, 4, 2 << 20);
  CHECK(log.empty() && log.last() == 4 && !log.crowded() && log.too_large() == size_t{2} << 20);
  keep(log, 5, 100);
  CHECK(oldest(log) == 5 && !log.crowded() && log.too_large() == 0);
  // The push under way has its place, too.
  std::vector<char> large(400 << 10);  // a block may be twice as large
  log.prepare(6, wire::Kind::push, {{large.data(), large.size()}});
  CHECK(log.bytes() <= size_t{1} << 20 && log.bytes() >= large.size());
}

void a_repeated_push_is_kept_once_and_after_the_log_began_anew() {
  PushLog log(1 << 20);
  keep(log, 1, 100);
  keep(log, 2, 100);
  const size_t bytes = log.bytes();
  keep(log, 2, 100);
  CHECK(log.bytes() == bytes && oldest(log) == 1);
  log.clear();
  keep(log, 2, 100);
  CHECK(oldest(log) == 2 && log.last() == 2);
}

// More workers than threads push, and cuts close the gate, while a server stops under the last of them.
void many_workers_share_the_threads_of_a_server() {
  constexpr int kWorkers = 40, kPushes = 10;
  std::vector<std::unique_ptr<TestServer>> servers;
  servers.push_back(std::make_unique<TestServer>(0, 1));
  const Addresses addresses = {servers[0]->address()};
  Worker first(addresses, "first");  // gives the server its parameters, without which there is no cut
  std::atomic<int> running{kWorkers};
  std::vector<std::thread> threads;
  for (int w = 0; w < kWorkers; ++w) {
    threads.emplace_back([&, w] {
      Worker worker(addresses, "worker-" + std::to_string(w));
      std::vector<float> rows;
      for (int i = 0; i < kPushes; ++i) {
        worker.push(range(w, 2));
        worker.pull(range(0, 10), -1, &rows);
      }
      --running;
    });
  }
  for (int64_t snapshot = 0; running > 0; ++snapshot) {
    cut(servers, snapshot);
    servers[0]->core.views().drop(snapshot);
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(servers[0]->core.admission().version() == kWorkers * kPushes);
  servers[0]->core.admission().close(ps::Admission::Seconds(kLimitS));
  std::atomic<bool> refused{false};
  std::thread waiting([&] {
    try {
      Pool pool(addresses, {wire::bulk_token("key", "worker-0")}, "worker-0", nullptr, trusting());
      std::vector<float> dense(kDense, 1.0f);
      pool.initialise(counting_spec(), dense.data(), kLimitS);
      pool.push({1, 1, 0, 1, {0}, 1.0, dense.data(), {{nullptr, 0}}, {nullptr}}, nullptr, 2.0);
    } catch (const TransientError&) {
      refused = true;
    }
  });
  ::poll(nullptr, 0, 200);
  servers[0]->listener.stop();
  waiting.join();
  CHECK(refused && servers[0]->core.admission().version() == kWorkers * kPushes);
}

struct Counting : ps::Waiter {
  int woken = 0;
  void wake() override { ++woken; }
};

// Neither who is gone nor who gives up keeps others from their share.
void a_share_that_is_not_taken_goes_to_the_next() {
  ps::Budget budget(10);
  auto first = std::make_shared<Counting>(), second = std::make_shared<Counting>(), third = std::make_shared<Counting>();
  CHECK(budget.take(*first, 8) && !budget.take(*second, 6) && !budget.take(*third, 10));
  budget.give_back(8);
  CHECK(second->woken == 1 && third->woken == 0);
  budget.cancel(*second);  // it was granted its share, and did not come for it
  CHECK(third->woken == 1 && budget.take(*third, 10));
  CHECK(!budget.take(*second, 1) && !budget.take(*first, 3));
  budget.cancel(*second);
  bool refused = false;
  try {
    budget.take(*second, 11);
  } catch (const UserError&) {
    refused = true;
  }
  CHECK(refused);
  budget.give_back(10);
  CHECK(second->woken == 1 && first->woken == 1 && budget.take(*first, 3) && budget.take(*third, 7));
}

// What a client of ours sends; the spec is the one of `Worker`.
std::string good_payload(wire::Kind kind) {
  wire::Writer writer;
  const std::string spec = counting_spec().encode();
  const int64_t ids[] = {-5, 7};
  const float floats[kDense + 2 * kDim] = {};
  switch (kind) {
    case wire::Kind::initialise:
      writer.put(wire::Initialise{0, spec.size(), kDense}).text(spec).align();
      for (size_t i = 0; i < kDense; ++i) writer.put(floats[i]);
      break;
    case wire::Kind::pull: writer.put(wire::Pull{-1, 1, 1}).put(uint64_t{2}).put(ids); break;
    case wire::Kind::push: writer.put(wire::Push{1, 2, 3, 4, 0, 0.1, kDense, 1, 0}).put(uint64_t{2}).put(ids).put(floats); break;
    case wire::Kind::rows: writer.put(wire::Rows{-1, 0, 0, 0, 10}); break;
    case wire::Kind::packed_pull:
      writer.put(wire::PackedPull{{-1, 1, 1}, wire::Precision::bfloat16, 0}).put(uint32_t{0});
      pack_ids({ids, 2}, writer);
      break;
    case wire::Kind::packed_push:
      writer.put(wire::PackedPush{{1, 2, 3, 4, 0, 0.1, kDense, 1, 0}, wire::Precision::full, 0}).put(uint32_t{0});
      pack_ids({ids, 2}, writer);
      for (size_t part : {kDense, size_t{0}, 2 * kDim}) {  // each packed plainly
        writer.put(uint8_t{0});
        for (size_t i = 0; i < part; ++i) writer.put(floats[i]);
      }
      break;
    default: break;
  }
  return std::move(writer.bytes());
}

// Numbers at which counts, sums and casts go wrong.
void put_odd_number(std::string& bytes, Random& random) {
  static constexpr uint64_t kOdd[] = {0, 1, 2, 5, 7, 255, 4096, 65537, 1u << 30, (1u << 30) + 1, 0x7fffffff, 0x80000000, 0xffffffff,
                                      uint64_t{1} << 32, uint64_t{1} << 61, (uint64_t{1} << 61) + 1, uint64_t{1} << 62, INT64_MAX,
                                      uint64_t{1} << 63, UINT64_MAX - 1, UINT64_MAX, 0x7ff0000000000000, 0x7ff8000000000000};
  const uint64_t number = random() % 4 == 0 ? random() : kOdd[random() % std::size(kOdd)];
  const size_t width = random() % 2 ? 8 : 4;
  if (bytes.size() >= width) std::memcpy(&bytes[random() % (bytes.size() / width) * width], &number, width);
}

std::string any_frame(Random& random) {
  wire::Header header;
  header.kind = static_cast<wire::Kind>(random() % 16 == 0 ? random() : std::array{1, 2, 3, 4, 5, 7, 8}[random() % 7]);
  std::string payload = good_payload(header.kind);
  for (uint64_t changes = random() % 4; changes > 0; --changes) {
    if (random() % 3 == 0 && !payload.empty()) payload[random() % payload.size()] = static_cast<char>(random());
    else put_odd_number(payload, random);
  }
  if (random() % 8 == 0) payload.resize(random() % (payload.size() + 1));
  if (random() % 8 == 0) payload.resize(payload.size() + random() % 40);
  header.payload_bytes = payload.size();
  wire::Writer writer;
  writer.put(header);
  if (random() % 32 == 0) put_odd_number(writer.bytes(), random);
  writer.text(payload);
  return std::move(writer.bytes());
}

std::string frame(wire::Kind kind, const std::string& payload) {
  wire::Header header;
  header.kind = kind;
  header.payload_bytes = payload.size();
  wire::Writer writer;
  writer.put(header).text(payload);
  return std::move(writer.bytes());
}

void read_exactly(const Socket& socket, char* at, size_t bytes) {
  while (bytes > 0) {
    pollfd ready{socket.fd(), POLLIN, 0};
    CHECK(::poll(&ready, 1, 10'000) == 1);
    const ssize_t got = ::read(socket.fd(), at, bytes);
    CHECK(got > 0);
    at += got;
    bytes -= static_cast<size_t>(got);
  }
}

// As a client of ours does.
void greet(const Socket& socket) {
  const std::string token = wire::bulk_token("key", "worker-5");
  wire::Writer writer;
  writer.put(wire::Hello{3, random_digest(), 8, 1, 0, 0}).text("worker-5");
  const std::string hello = std::move(writer.bytes()), first = frame(wire::Kind::hello, hello);
  CHECK(::write(socket.fd(), first.data(), first.size()) == static_cast<ssize_t>(first.size()));
  struct { wire::Header header; wire::Challenge challenge; } answer;
  read_exactly(socket, reinterpret_cast<char*>(&answer), sizeof answer);
  CHECK(same_digest(answer.challenge.proof, wire::proof(wire::Side::server, token, hello, answer.challenge.nonce)));
  const Digest proof = wire::proof(wire::Side::client, token, hello, answer.challenge.nonce);
  const std::string second = frame(wire::Kind::prove, std::string(reinterpret_cast<const char*>(proof.data()), proof.size()));
  CHECK(::write(socket.fd(), second.data(), second.size()) == static_cast<ssize_t>(second.size()));
}

// Sends all of it, after a greeting or as a stranger, and waits for the server's end of the connection.
void say(const TestServer& served, const std::string& bytes, bool stranger = false) {
  Socket socket = begin_connect(served.address());
  pollfd ready{socket.fd(), POLLOUT, 0};
  CHECK(::poll(&ready, 1, 10'000) == 1);
  if (!stranger) greet(socket);
  (void)!::write(socket.fd(), bytes.data(), bytes.size());
  ::shutdown(socket.fd(), SHUT_WR);
  for (char answer[4096];;) {
    ready = {socket.fd(), POLLIN, 0};
    CHECK(::poll(&ready, 1, 10'000) == 1);
    if (::read(socket.fd(), answer, sizeof answer) <= 0) return;
  }
}

void frames_of_any_kind_do_no_harm() {
  const uint64_t seed = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  std::fprintf(stderr, "frames of seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(fuzz_s());
  while (std::chrono::steady_clock::now() < end) {
    TestServer served(0, 1);
    const bool given = random() % 4 != 0;  // else one of the frames may give it parameters
    std::unique_ptr<Worker> worker;
    if (given) worker = std::make_unique<Worker>(Addresses{served.address()}, "worker-0");
    for (int connection = 0; connection < 50; ++connection) {
      const bool stranger = random() % 8 == 0;
      std::string bytes;
      if (stranger && random() % 2) {
        wire::Writer writer;
        bytes = frame(wire::Kind::hello, std::move(writer.put(wire::Hello{3, {}, 8, 1, 0, 0}).text("worker-5").bytes()));
        if (random() % 2) bytes += frame(wire::Kind::prove, std::string(random() % 40, 'x'));
      }
      for (int count = 0; count < 6; ++count) bytes += any_frame(random);
      if (random() % 8 == 0) bytes.resize(random() % bytes.size());
      say(served, bytes, stranger);
    }
    served.core.admission().close(ps::Admission::Seconds(kLimitS));
    served.core.admission().open();
    if (given) worker->push({1});
  }
}

// Each was undefined behaviour once.
void numbers_at_the_edge_are_refused_or_clamped() {
  TestServer served(0, 1);
  Worker worker({served.address()}, "worker-0");
  wire::Push push{1, 0, 0, 0, INT64_MIN, 0.1, 0, 1, 0};
  for (int64_t version : {INT64_MIN, INT64_MAX}) {
    wire::Writer writer;
    push.version = version;
    wire::Header header;
    header.kind = wire::Kind::push;
    header.payload_bytes = sizeof push + sizeof(uint64_t);
    say(served, std::move(writer.put(header).put(push).put(uint64_t{0}).bytes()));
    ++push.sequence;
  }
  CHECK(served.core.admission().version() == 2);
  wire::Cursor cursor("", 0);
  for (uint64_t count : {uint64_t{1}, uint64_t{1} << 61, uint64_t{1} << 63, UINT64_MAX}) {
    bool refused = false;
    try {
      cursor.array<int64_t>(count);
    } catch (const UserError&) {
      refused = true;
    }
    CHECK(refused);
  }
}

std::string hex(const Digest& digest) {
  std::string text;
  for (unsigned char byte : digest) {
    char two[3];
    std::snprintf(two, sizeof two, "%02x", byte);
    text += two;
  }
  return text;
}

// Examples of FIPS 180-4 (NIST's "SHA256.pdf") and test cases 1, 2, 3 and 6 of RFC 4231.
void digests_are_those_of_the_standards() {
  CHECK(hex(sha256("")) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(hex(sha256("abc")) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")) ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(hex(sha256(std::string(1000000, 'a'))) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  CHECK(hex(hmac_sha256(std::string(20, '\x0b'), "Hi There")) == "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(hex(hmac_sha256("Jefe", "what do ya want for nothing?")) == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(hex(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))) == "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  CHECK(hex(hmac_sha256(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First")) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  Digest one = random_digest(), other = one;
  CHECK(same_digest(one, other) && one != random_digest());
  other[31] ^= 1;
  CHECK(!same_digest(one, other));
}

void only_text_is_taken_for_text() {
  for (const char* good : {"", "worker-0", "\xC3\xA4", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xEE\x80\x80", "\xF4\x8F\xBF\xBF"}) CHECK(wire::is_utf8(good));
  for (const char* bad : {"\x80", "\xC0\x80", "\xC3", "\xE0\x80\x80", "\xED\xA0\x80", "\xE2\x82", "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "a\xC3(b"}) {
    CHECK(!wire::is_utf8(bad));
  }
  for (const char* good : {"worker-0", "ps-1.2", "w"}) CHECK(wire::is_process_name(good));
  for (const char* bad : {"", "worker 0", "worker-\xff", "\xC3\xA4", "a/b"}) CHECK(!wire::is_process_name(bad));
  CHECK(!wire::is_process_name(std::string(254, 'w')) && !wire::is_process_name(std::string_view("a\0b", 3)));
}

void specs_survive_their_encoding_and_nothing_else_does() {
  Spec spec = counting_spec();
  spec.optimizer.kind = OptimizerSpec::FTRL;
  spec.optimizer.l2_shrinkage = 0.25;
  spec.optimizer.weight_decay = 0.5;
  spec.scalar = Scalar::FLOAT64;
  spec.tables.push_back({"second", 9, {InitializerSpec::NORMAL, 1.0f, 2.0f}, ~uint64_t{0}});
  const std::string bytes = spec.encode();
  Spec back = Spec::decode(bytes.data(), bytes.size());
  CHECK(back.encode() == bytes && back.tables[1].dim == 9 && back.optimizer.l2_shrinkage == 0.25 && back.scalar == spec.scalar);
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    std::vector<char> piece(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(cut));
    bool refused = false;
    try {
      Spec::decode(piece.data(), piece.size());
    } catch (const UserError&) {
      refused = true;
    }
    CHECK(refused);
  }
}

void ids_find_their_owner_whatever_their_number() {
  std::mt19937_64 random(2);
  for (uint32_t servers : {2u, 3u, 4u, 5u, 7u, 12u, 100u}) {
    std::vector<int64_t> ids = {0, -1, 1, INT64_MIN, INT64_MAX, int64_t{1} << 32, (int64_t{1} << 32) - 1, -(int64_t{1} << 32)};
    for (int i = 0; i < 5000; ++i) ids.push_back(static_cast<int64_t>(random() >> (random() % 64)) * (random() % 2 ? 1 : -1));
    Split split(servers, {{ids.data(), ids.size()}});
    size_t seen = 0;
    for (uint32_t k = 0; k < servers; ++k) {
      for (size_t i = 0; i < split.count(k, 0); ++i, ++seen) {
        CHECK(wire::owner(split.ids(k, 0)[i], servers) == k);
        CHECK(ids[split.positions(k, 0)[i]] == split.ids(k, 0)[i]);
      }
    }
    CHECK(seen == ids.size());
  }
}

void large_blocks_are_used_again_and_by_one_at_a_time() {
  constexpr size_t kMiB = 1 << 20, kPage = 4096;
  Buffer first, second;
  char* const large = first.room(20 * kMiB);
  first.trim(8 * kMiB);
  CHECK(first.data() == nullptr);
  CHECK(second.room(19 * kMiB) == large);
  CHECK(first.room(20 * kMiB) != large);
  second.trim(0);
  Buffer small;
  CHECK(small.room(2 * kMiB) != large);  // it would waste most of it
  std::vector<std::thread> threads;
  std::atomic<int> torn{0};
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([t, &torn] {
      Buffer buffer;
      for (size_t i = 0; i < 200; ++i) {
        const size_t bytes = (1 + (i * 7 + static_cast<size_t>(t)) % 5) * kMiB;
        char* const at = buffer.room(bytes);
        // One byte of each page, and the last one: ThreadSanitizer takes seconds for gigabytes of them.
        for (size_t k = 0; k < bytes; k += kPage) at[k] = static_cast<char>(t);
        at[bytes - 1] = static_cast<char>(t);
        std::this_thread::yield();
        if (at[bytes - 1] != t) ++torn;
        for (size_t k = 0; k < bytes; k += kPage) {
          if (at[k] != t) ++torn;
        }
        buffer.trim(0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(torn == 0);
}

// Wherever the writer is when somebody begins to wait.
void pauses_end_when_somebody_waits_for_the_file() {
  for (int round = 0; round < 20; ++round) {
    checkpoint::Haste haste;
    std::thread writing([&] { CHECK(haste.pause(kLongPauseS) < kLongPauseS); });
    haste.hurry();
    writing.join();
    CHECK(haste.pause(kLongPauseS) == 0);
  }
}

void pauses_are_bounded_by_the_bytes() {
  checkpoint::Haste haste;
  checkpoint::Pace pace(haste, 0.001, [] { return false; });
  const std::clock_t begin = std::clock();
  while (std::clock() - begin < CLOCKS_PER_SEC / 10) continue;
  // Otherwise 19 times the work, about two seconds.
  pace.rest(10);
  const double paused_s = pace.paused_s();
  CHECK(paused_s > 0.005 && paused_s < 1);
  pace.rest(0);
  CHECK(pace.paused_s() == paused_s);
}

}  // namespace

int main() {
  pauses_end_when_somebody_waits_for_the_file();
  pauses_are_bounded_by_the_bytes();
  a_share_that_is_not_taken_goes_to_the_next();
  large_blocks_are_used_again_and_by_one_at_a_time();
  specs_survive_their_encoding_and_nothing_else_does();
  ids_find_their_owner_whatever_their_number();
  pushes_pulls_cuts_and_saves_run_beside_one_another();
  servers_may_go_and_come_while_others_wait();
  pushes_come_again_to_a_server_that_lost_them();
  kept_pushes_take_no_more_memory_than_their_room();
  a_push_without_a_place_ends_the_log_before_it();
  a_repeated_push_is_kept_once_and_after_the_log_began_anew();
  many_workers_share_the_threads_of_a_server();
  float64_weights_cross_the_wire_whole();
  pushes_pulls_cuts_and_saves_run_beside_one_another(true);
  float64_weights_cross_the_wire_whole(true);
  numbers_at_the_edge_are_refused_or_clamped();
  only_text_is_taken_for_text();
  digests_are_those_of_the_standards();
  frames_of_any_kind_do_no_harm();
  certificates = std::getenv("TLS_CERTIFICATES");
  pushes_pulls_cuts_and_saves_run_beside_one_another();
  servers_may_go_and_come_while_others_wait();
  pushes_come_again_to_a_server_that_lost_them();
  std::puts("all held");
}
