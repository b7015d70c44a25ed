// Synchronous steps on servers without Python, for the sanitizers. Exit 0: all held.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/native/servers.h"

using namespace elasticdl;
using namespace elasticdl::testing;

namespace {

using Servers = std::vector<std::unique_ptr<TestServer>>;
using Contributions = std::vector<ps::Contribution>;

// Five turns a step: `any_contributions` names no more.
Servers stepping(uint32_t count) {
  Servers servers;
  for (uint32_t k = 0; k < count; ++k) servers.push_back(std::make_unique<TestServer>(k, count, 5));
  return servers;
}

Addresses addresses(const Servers& servers) {
  Addresses all;
  for (auto& server : servers) all.push_back(server->address());
  return all;
}

// Three workers push at the same time, one of them too late for the step. Meanwhile others pull, and steps are ordered
// again. Between steps there are cuts.
void each_step_is_applied_once_beside_late_pushes_pulls_and_cuts() {
  Servers servers = stepping(3);
  constexpr int kWorkers = 3, kSteps = 40;
  std::vector<std::unique_ptr<Worker>> workers;
  for (int w = 0; w < kWorkers; ++w) workers.push_back(std::make_unique<Worker>(addresses(servers), "worker-" + std::to_string(w)));
  workers[1]->pool.pack(true);
  Worker reader(addresses(servers), "reader");
  std::atomic<int64_t> applied{0};
  std::thread beside([&] {
    std::vector<float> rows;
    while (applied < kSteps) {
      reader.pull(range(-500, 1000), -1, &rows);
      for (auto& server : servers) server->core.apply_step(applied, {{"worker-0", 1, 1.0}});
    }
  });
  for (int64_t step = 1; step <= kSteps; ++step) {
    const int late = static_cast<int>(step % kWorkers);
    Contributions named;
    std::vector<std::thread> punctual;
    for (int w = 0; w < kWorkers; ++w) {
      if (w == late) continue;
      named.push_back({"worker-" + std::to_string(w), workers[w]->sequence + 1, 1.0 + w});
      punctual.emplace_back([&workers, w] { workers[w]->push(range(-300, 600)); });
    }
    for (std::thread& thread : punctual) thread.join();
    std::thread too_late([&] { workers[late]->push(range(-300, 600)); });
    for (auto& server : servers) CHECK(server->core.apply_step(step, named) == step);
    applied = step;
    too_late.join();
    if (step % 4 != 0) continue;
    cut(servers, step);
    Worker looking(addresses(servers), "looking");
    std::vector<float> rows;
    for (float value : looking.pull(range(-300, 600), step, &rows)) CHECK(value == -static_cast<float>(step));
    for (float value : rows) CHECK(value == -static_cast<float>(step));
    for (auto& server : servers) server->core.views().drop(step);
  }
  beside.join();
}

void a_server_that_stops_ends_the_wait_of_a_step() {
  Servers servers = stepping(1);
  Worker worker(addresses(servers), "worker-0");
  worker.push({1});
  ps::Admission& admission = servers[0]->core.admission();
  admission.close(ps::Admission::Seconds(kLimitS));
  std::atomic<bool> ended{false};
  std::thread waiting([&] {
    try {
      servers[0]->core.apply_step(1, {{"worker-0", 1, 1.0}});
    } catch (const TransientError&) {
      ended = true;
    }
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  servers[0]->listener.stop();
  waiting.join();
  CHECK(ended);
}

using Random = std::mt19937_64;

template <class T>
T one_of(Random& random, std::initializer_list<T> values) {
  return values.begin()[random() % values.size()];
}

std::string any_name(Random& random) { return "worker-" + std::to_string(random() % 4); }

// Of a worker whose numbers make no sense. Refusals are fine.
void push_anything(Worker& worker, Random& random) {
  std::vector<int64_t> ids(random() % 6);
  for (int64_t& id : ids) id = one_of<int64_t>(random, {0, 1, 1, -1, INT64_MIN, INT64_MAX, 7});
  const float value = one_of<float>(random, {0.0f, 1.0f, -1.0f, 1e38f, INFINITY, NAN});
  std::vector<float> dense(kDense, value), gradients(ids.size() * kDim, value);
  PushRequest request{one_of<int64_t>(random, {0, 1, 2, 3, 4, 5, INT64_MAX}),
                      one_of<int64_t>(random, {-1, 0, 1, INT64_MAX}),
                      0,
                      one_of<int64_t>(random, {0, 1, INT64_MAX}),
                      {one_of<int64_t>(random, {INT64_MIN, 0, INT64_MAX})},
                      one_of<double>(random, {0.1, NAN, 1e300}),
                      random() % 3 == 0 ? nullptr : dense.data(),
                      {{ids.data(), ids.size()}},
                      {gradients.data()}};
  try {
    worker.pool.push(request, nullptr, kLimitS);
  } catch (const UserError&) {
  } catch (const Refused&) {
  }
}

Contributions any_contributions(Random& random) {
  Contributions named(random() % 6);
  for (ps::Contribution& one : named) {
    one = {any_name(random), one_of<int64_t>(random, {-1, 0, 1, 2, 3, 4, 5, INT64_MAX}),
           one_of<double>(random, {0.0, -1.0, 1.0, 32.0, 1e308, 5e-324, INFINITY, NAN})};
  }
  return named;
}

// Steps and pushes in any order, with any numbers: each new number counts one update, and what follows still works.
void orders_of_any_kind_do_no_harm() {
  const uint64_t seed = static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  std::fprintf(stderr, "steps of seed %llu\n", static_cast<unsigned long long>(seed));
  Random random(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(fuzz_s());
  while (std::chrono::steady_clock::now() < end) {
    Servers servers = stepping(1);
    ps::Server& core = servers[0]->core;
    std::vector<std::unique_ptr<Worker>> workers;
    for (int w = 0; w < 3; ++w) workers.push_back(std::make_unique<Worker>(addresses(servers), any_name(random)));
    int64_t last = 0, version = 0;
    std::set<std::string> fenced;
    for (int move = 0; move < 60; ++move) {
      switch (random() % 8) {
        case 0: case 1: case 2: case 3: push_anything(*workers[random() % 3], random); break;
        case 4: {  // its connections void those of the same name
          auto& worker = workers[random() % 3];
          const std::string name = any_name(random);
          if (fenced.count(name) == 0) worker = std::make_unique<Worker>(addresses(servers), name);
          break;
        }
        case 5:
          if (random() % 4 == 0) {
            const std::string name = any_name(random);
            core.admission().fence(name);
            fenced.insert(name);
          }
          break;
        case 6: cut(servers, move); core.views().drop(move); break;
        default: {
          const int64_t number = last + one_of<int64_t>(random, {-1, 0, 1, 1, 1, 5});
          if (number > last) last = number, ++version;
          CHECK(core.apply_step(number, any_contributions(random)) == version);
        }
      }
    }
    Worker good(addresses(servers), "good");
    std::vector<float> rows, again;
    const std::vector<float> before = good.pull({5}, -1, &rows);
    good.push({5});
    CHECK(core.apply_step(last + 1, {{"good", 1, 8.0}}) == version + 1);
    const std::vector<float> after = good.pull({5}, -1, &again);
    for (size_t i = 0; i < kDense; ++i) CHECK(!std::isfinite(before[i]) || after[i] == before[i] - 1.0f);
    for (size_t i = 0; i < kDim; ++i) CHECK(again[i] == rows[i] - 1.0f);  // nobody else has this id
  }
}

}  // namespace

int main() {
  each_step_is_applied_once_beside_late_pushes_pulls_and_cuts();
  a_server_that_stops_ends_the_wait_of_a_step();
  orders_of_any_kind_do_no_harm();
  std::puts("all held");
}
