// Servers, clients and the bulk plane between them without Python, for the sanitizers. Exit 0: all held.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include <poll.h>
#include <unistd.h>

#include "elasticdl/checkpoint/native/part_file.h"
#include "elasticdl/ps/native/connection.h"
#include "elasticdl/rpc/native/pool.h"
#include "tests/native/check.h"

using namespace elasticdl;

namespace {
using Addresses = std::vector<std::string>;

constexpr double kLimitS = 60.0;
constexpr size_t kDense = 6, kDim = 2;

struct Served {
  ps::Server core;
  ps::Listener listener;
  int port = 0;
  Served(uint32_t server, uint32_t servers) : core({server, servers, "token", 17}), listener(core) {
    port = listener.listen("127.0.0.1", 0);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port); }
};

// Plain SGD on zeros: minus a weight is the number of updates it had.
Spec counting_spec() {
  Spec spec;
  spec.trainable = kDense;
  spec.tables.push_back({"t", kDim, {InitializerSpec::CONSTANT, 0.0f, 0.0f}, 0});
  spec.json = "{}";
  return spec;
}

struct Worker {
  Pool pool;
  int64_t sequence = 0;
  std::vector<int64_t> versions;
  Worker(const Addresses& addresses, const std::string& name)
      : pool(addresses, "token", name, nullptr), versions(addresses.size(), 0) {
    std::vector<float> zeros(kDense);
    pool.initialise(counting_spec(), zeros.data(), kLimitS);
  }

  void push(const std::vector<int64_t>& ids) {
    std::vector<float> dense(kDense, 1.0f), gradients(ids.size() * kDim, 1.0f);
    PushRequest request{++sequence, 1, 0, sequence, versions, 1.0, dense.data(), {{ids.data(), ids.size()}}, {gradients.data()}};
    versions = pool.push(request, nullptr, kLimitS).versions;
  }

  std::vector<float> pull(const std::vector<int64_t>& ids, int64_t snapshot, std::vector<float>* rows) {
    std::vector<float> dense(kDense);
    rows->assign(ids.size() * kDim, -1.0f);
    pool.pull({{ids.data(), ids.size()}}, snapshot, dense.data(), {rows->data()}, nullptr, kLimitS);
    return dense;
  }
};

std::vector<int64_t> range(int64_t first, size_t count) {
  std::vector<int64_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

void cut(std::vector<std::unique_ptr<Served>>& servers, int64_t snapshot) {
  ps::Sequences numbers;
  for (auto& server : servers) {
    for (auto& [name, number] : server->core.admission().close(ps::Admission::Seconds(kLimitS))) {
      numbers[name] = std::max(numbers[name], number);
    }
  }
  std::vector<int64_t> versions;
  for (auto& server : servers) versions.push_back(server->core.cut(snapshot, numbers, ps::Admission::Seconds(kLimitS))->version);
  for (auto& server : servers) server->core.admission().open();
  for (int64_t version : versions) CHECK(version == versions[0]);
}

// Three workers push and pull, while views are cut, read, written to a file and dropped.
void pushes_pulls_cuts_and_saves_run_beside_one_another() {
  std::vector<std::unique_ptr<Served>> servers;
  Addresses addresses;
  for (uint32_t k = 0; k < 3; ++k) {
    servers.push_back(std::make_unique<Served>(k, 3));
    addresses.push_back(servers.back()->address());
  }
  constexpr int kWorkers = 3, kPushes = 60;
  std::vector<std::unique_ptr<Worker>> workers;
  for (int w = 0; w < kWorkers; ++w) workers.push_back(std::make_unique<Worker>(addresses, "worker-" + std::to_string(w)));
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
  for (int64_t snapshot = 0; running > 0; ++snapshot) {
    cut(servers, snapshot);
    std::vector<float> rows, again;
    std::vector<float> dense = reader.pull(range(-300, 600), snapshot, &rows);
    for (float value : dense) CHECK(value == dense[0]);
    for (float value : rows) CHECK(value == dense[0]);
    CHECK(reader.pool.rows(0, -1, nullptr, kLimitS).ids.size() >= (dense[0] < 0 ? 600u : 0u));
    auto view = servers[0]->core.views().get(snapshot);
    checkpoint::Writer writer("/dev/null");
    CHECK(!checkpoint::write_table(writer, view->model().table(0), view->slot(), 0));
    for (auto& server : servers) server->core.views().drop(snapshot);
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<float> rows;
  std::vector<float> dense = reader.pull({0, 1, 2}, -1, &rows);
  for (float value : dense) CHECK(value == -1.0f * kWorkers * kPushes);
  for (float value : rows) CHECK(value == -1.0f * kWorkers * kPushes);
}

// Servers go and come back elsewhere while a worker pushes; another thread moves, and in the end closes, its pool.
void servers_may_go_and_come_while_others_wait() {
  auto first = std::make_unique<Served>(0, 1);
  Worker worker({first->address()}, "worker-0");
  std::vector<float> seed(kDense, 5.0f);
  std::vector<std::unique_ptr<Served>> later;
  std::thread mover([&] {
    for (int i = 0; i < 5; ++i) {
      ::poll(nullptr, 0, 20);
      first->listener.stop();
      later.push_back(std::make_unique<Served>(0, 1));
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

void bytes_of_any_kind_do_no_harm() {
  Served served(0, 1);
  Worker worker({served.address()}, "worker-0");
  std::mt19937 random(1);
  for (int round = 0; round < 400; ++round) {
    Socket socket = begin_connect(served.address());
    pollfd ready{socket.fd(), POLLOUT, 0};
    CHECK(::poll(&ready, 1, 10'000) == 1);
    wire::Writer bytes;
    wire::Header hello;
    hello.payload_bytes = sizeof(wire::Hello) + 5 + 8;
    bytes.put(hello).put(wire::Hello{3, 5, 8, 1, 0}).text("tokenworker-5");
    for (int frame = 0; frame < 3; ++frame) {
      wire::Header header;
      header.kind = static_cast<wire::Kind>(random() % 7);
      header.payload_bytes = random() % 300;
      bytes.put(header);
      std::string payload(header.payload_bytes, '\0');
      for (int i = 0; i < 10 && !payload.empty(); ++i) payload[random() % payload.size()] = static_cast<char>(random() % 4);
      bytes.text(payload);
    }
    (void)!::write(socket.fd(), bytes.bytes().data(), random() % (bytes.bytes().size() + 1));
  }
  worker.push({1});
}

void specs_survive_their_encoding_and_nothing_else_does() {
  Spec spec = counting_spec();
  spec.optimizer.kind = OptimizerSpec::FTRL;
  spec.optimizer.l2_shrinkage = 0.25;
  spec.optimizer.weight_decay = 0.5;
  spec.tables.push_back({"second", 9, {InitializerSpec::NORMAL, 1.0f, 2.0f}, ~uint64_t{0}});
  const std::string bytes = spec.encode();
  Spec back = Spec::decode(bytes.data(), bytes.size());
  CHECK(back.encode() == bytes && back.tables[1].dim == 9 && back.optimizer.l2_shrinkage == 0.25);
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

}  // namespace

int main() {
  specs_survive_their_encoding_and_nothing_else_does();
  ids_find_their_owner_whatever_their_number();
  pushes_pulls_cuts_and_saves_run_beside_one_another();
  servers_may_go_and_come_while_others_wait();
  bytes_of_any_kind_do_no_harm();
  std::puts("all held");
}
