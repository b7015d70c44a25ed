// Kept memory without Python, for the sanitizers: servers in processes of their own that are killed at any instant, beside
// twins that are not. Exit 0: all held.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "tests/native/servers.h"

extern char** environ;

using namespace elasticdl;
using namespace elasticdl::testing;

namespace {

using Bytes = std::vector<char>;

std::string path_of(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

// A server in a process of its own, in memory that this process holds. It tells its port, and then the version after each
// step that it is told to apply: of the pushes with the step's number, of `worker-0` and `worker-1`. Told 0, it tells how
// many kill points it has passed.
int serve(char** arguments) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int memory = std::atoi(arguments[0]), kill_at = std::atoi(arguments[3]);
  const auto server = static_cast<uint32_t>(std::atoi(arguments[1])), servers = static_cast<uint32_t>(std::atoi(arguments[2]));
  const auto turns = static_cast<uint32_t>(std::atoi(arguments[4]));
  static std::atomic<int> passed{0};
  static const int last = kill_at;
  at_kill_point = [] {
    if (++passed == last) ::kill(::getpid(), SIGKILL);
  };
  ps::ServerConfig config{server, servers, "key", 17, nullptr, turns, path_of(memory), "run"};
  ps::Server core(config);
  core.take_on();
  ps::Listener listener(core);
  std::printf("%d\n", listener.listen("127.0.0.1", 0));
  std::fflush(stdout);
  int64_t number = 0;
  while (std::scanf("%ld", &number) == 1) {
    const int64_t told = number == 0 ? passed.load() : core.apply_step(number, {{"worker-0", number, 3.0}, {"worker-1", number, 1.0}});
    std::printf("%ld\n", told);
    std::fflush(stdout);
  }
  return 0;
}

// Its memory, and the process that serves it at the moment.
class Kept {
 public:
  Kept(uint32_t server, uint32_t servers, uint32_t turns) : server_(server), servers_(servers), turns_(turns), memory_(::memfd_create("kept", 0)) {
    CHECK(memory_ >= 0);
  }
  ~Kept() {
    end();
    ::close(memory_);
  }

  std::string memory() const { return path_of(memory_); }
  int fd() const { return memory_; }

  // Until a process serves; it ends at its kill point of this number (0: never).
  void start(int kill_at) {
    for (tries_ = 0;; kill_at = 0) {
      spawn(kill_at);
      if (std::fscanf(from_, "%d", &port_) == 1) break;
      CHECK(++tries_ < 5);
      end();
    }
    tries_ = 0;
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  // Any thread may do this beside the one that starts processes. A process that never gets to serve would lose the memory.
  void kill_at_any_time() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (pid_ != 0 && tries_ < 3) ::kill(pid_, SIGKILL);
  }
  // Processes that have been started so far.
  int processes() const { return processes_; }

  bool ended() {
    siginfo_t info{};
    return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == pid_;
  }

  void end() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (pid_ == 0) return;
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, nullptr, 0);
      pid_ = 0;
    }
    std::fclose(from_);
    std::fclose(to_);
  }

  // Has it apply a step, the next process if need be; `moved` is called when there is one.
  template <class Moved>
  int64_t step(int64_t number, Moved moved) {
    int64_t version = 0;
    while (std::fprintf(to_, "%ld\n", number) < 0 || std::fflush(to_) != 0 || std::fscanf(from_, "%ld", &version) != 1) {
      end();
      start(0);
      moved();
    }
    return version;
  }

 private:
  void spawn(int kill_at) {
    int out[2], in[2];
    CHECK(::pipe2(out, O_CLOEXEC) == 0 && ::pipe2(in, O_CLOEXEC) == 0);
    std::vector<std::string> texts = {"kept", "--serve"};
    for (int64_t number : {int64_t{memory_}, int64_t{server_}, int64_t{servers_}, int64_t{kill_at}, int64_t{turns_}}) texts.push_back(std::to_string(number));
    std::vector<char*> arguments;
    for (std::string& text : texts) arguments.push_back(text.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    pid_t pid = 0;
    CHECK(::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, arguments.data(), environ) == 0);
    std::lock_guard<std::mutex> lock(mutex_);
    pid_ = pid;
    posix_spawn_file_actions_destroy(&actions);
    ++processes_;
    ::close(in[0]);
    ::close(out[1]);
    to_ = ::fdopen(in[1], "w");
    from_ = ::fdopen(out[0], "r");
  }

  const uint32_t server_, servers_, turns_;
  const int memory_;
  std::mutex mutex_;  // guards pid_ against a kill of a number that is another process's by then
  pid_t pid_ = 0;
  std::atomic<int> tries_{0};
  int port_ = 0, processes_ = 0;
  FILE *to_ = nullptr, *from_ = nullptr;
};

// Two tables and dense weights of several blocks, with slots and an additive part, all of odd sizes.
Spec rich_spec(Scalar scalar) {
  Spec spec;
  spec.scalar = scalar;
  spec.optimizer.kind = OptimizerSpec::ADAM;
  spec.trainable = 1500;
  spec.additive = 77;
  spec.tables.push_back({"a", 3, {InitializerSpec::NORMAL, 0.0f, 1.0f}, 5});
  spec.tables.push_back({"b", 8, {InitializerSpec::UNIFORM, -1.0f, 1.0f}, 6});
  spec.json = "{}";
  return spec;
}

// One worker's pushes to one server, the same for every server that gets them.
class Pusher {
 public:
  Pusher(const Spec& spec, const std::string& address, const std::string& name, uint64_t seed)
      : spec_(spec), pool({address}, {wire::bulk_token("key", name)}, name, nullptr), random_(seed) {
    std::vector<double> zeros(spec.trainable + spec.additive);
    pool.initialise(spec, zeros.data(), kLimitS);
  }

  // `ids` new rows of each table, and as many old ones.
  void push(size_t ids) {
    ++sequence_;
    std::vector<Bytes> gradients;
    std::vector<std::vector<int64_t>> all;
    for (const TableShape& table : spec_.tables) {
      all.push_back(range(static_cast<int64_t>(next_ - ids), 2 * ids));
      gradients.push_back(values(all.back().size() * table.dim));
    }
    next_ += ids;
    const Bytes dense = values(spec_.trainable + spec_.additive);
    // Some ids come several times in the batch, and two parts of the dense weights are embeddings.
    const std::vector<uint64_t> marks(Marks::words(2 * ids), 0x8421'1248'0180'4002);
    const Bytes squares = values(2 * ids * spec_.tables.back().dim, true), dense_squares = values(600, true);
    PushRequest request{sequence_, 1, 2, 10 * sequence_, {0}, 0.01, dense.data(), {}, {}};
    for (size_t t = 0; t < all.size(); ++t) {
      request.ids.push_back({all[t].data(), all[t].size()});
      request.gradients.push_back(gradients[t].data());
      request.squares.push_back({marks.data(), squares.data()});
    }
    request.spans = {{100, 400}, {700, 1000}};
    request.dense_squares = dense_squares.data();
    pool.push(request, nullptr, kLimitS);
  }

  const Spec spec_;
  Pool pool;

 private:
  Bytes values(size_t count, bool positive = false) {
    std::normal_distribution<double> normal;
    Bytes bytes(count * bytes_of(spec_.scalar));
    with_type(spec_.scalar, [&](auto zero) {
      for (size_t i = 0; i < count; ++i) reinterpret_cast<decltype(zero)*>(bytes.data())[i] = static_cast<decltype(zero)>(positive ? std::abs(normal(random_)) : normal(random_));
    });
    return bytes;
  }

  std::mt19937_64 random_;
  int64_t sequence_ = 0;
  size_t next_ = 1;
};

struct Everything {
  int64_t version;
  Bytes dense;
  std::vector<std::map<int64_t, Bytes>> tables;
  std::map<std::string, std::pair<int64_t, int64_t>> workers;  // sequence, offset
  std::vector<std::tuple<int64_t, std::string, int64_t, double>> steps;

  bool operator==(const Everything& other) const {
    return version == other.version && dense == other.dense && tables == other.tables && workers == other.workers && steps == other.steps;
  }
};

Everything everything_of(ps::Server& core, const std::vector<std::string>& workers) {
  auto model = core.model();
  CHECK(model != nullptr);
  Everything all{core.admission().version(), {}, {}, {}, {}};
  const auto dense = model->freeze_dense();
  all.dense.assign(dense->weights(), dense->weights() + dense->bytes());
  for (size_t t = 0; t < model->tables(); ++t) {
    const Table& table = model->table(t);
    std::vector<int64_t> ids(table.rows());
    Bytes rows(table.rows() * table.row_bytes());
    CHECK(table.read(-1, 0, ids.size(), ids.data(), rows.data()) == ids.size());
    auto& found = all.tables.emplace_back();
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(i * table.row_bytes());
      CHECK(found.emplace(ids[i], Bytes(begin, begin + static_cast<std::ptrdiff_t>(table.row_bytes()))).second);
    }
  }
  for (const std::string& worker : workers) {
    const ps::Pushes pushes = core.admission().fence(worker);
    all.workers[worker] = {pushes.sequence, pushes.applied.offset};
  }
  for (const ps::AppliedStep& step : core.steps().recent()) {
    for (const ps::Contribution& one : step.contributions) all.steps.emplace_back(step.number, one.worker, one.sequence, one.examples);
  }
  return all;
}

Everything everything_kept(Kept& kept, uint32_t turns, const std::vector<std::string>& workers) {
  kept.end();
  ps::Server core({0, 1, "key", 17, nullptr, turns, kept.memory(), "run"});
  const bool took = core.take_on();
  if (!took) std::fprintf(stderr, "discarded: %s\n", core.discarded().c_str());
  CHECK(took);
  return everything_of(core, workers);
}

// Starts the next process whenever one has ended, until it is destroyed. The first of them end at `kills`, as they take on
// what is there or later.
class Restarting {
 public:
  Restarting(Kept& kept, std::vector<Pool*> pools, std::vector<int> kills = {})
      : kept_({&kept}), pools_(std::move(pools)), kills_(std::move(kills)), thread_([this] { watch(); }) {}
  Restarting(std::vector<Kept*> kept, std::vector<Pool*> pools) : kept_(std::move(kept)), pools_(std::move(pools)), thread_([this] { watch(); }) {}
  ~Restarting() {
    over_ = true;
    thread_.join();
  }

 private:
  void watch() {
    while (!over_) {
      ::poll(nullptr, 0, 1);
      for (Kept* one : kept_) {
        if (one->ended()) restart(*one);
      }
    }
  }

  void restart(Kept& kept) {
    kept.end();
    int kill_at = 0;
    if (!kills_.empty()) {
      kill_at = kills_.back();
      kills_.pop_back();
    }
    kept.start(kill_at);
    Addresses addresses;
    for (Kept* one : kept_) addresses.push_back(one->address());
    for (Pool* pool : pools_) pool->move(addresses);
  }

  std::vector<Kept*> kept_;
  std::vector<Pool*> pools_;
  std::vector<int> kills_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

// `make fuzz` sets the variable: it takes every point.
bool is_long_run() { return std::getenv("ELASTICDL_FUZZ_S") != nullptr; }

// A process starts slowly under a sanitizer, so a short run takes some of the points, from another first one.
int stride() {
#if defined(__SANITIZE_THREAD__)
  return is_long_run() ? 1 : 37;
#elif defined(__SANITIZE_ADDRESS__)
  return is_long_run() ? 1 : 13;
#else
  return 1;
#endif
}

int first_point_after(int point) { return point + 1 + static_cast<int>(std::random_device()() % static_cast<unsigned>(stride())); }

constexpr int kPushes = 4;
constexpr size_t kIds = 2;

// Whether its process was still there at the end, so that there is no later kill point.
bool push_with_a_kill_at(int kill_at, const Everything& expected, Scalar scalar, size_t ids, const std::vector<int>& later_kills = {}) {
  Kept kept(0, 1, 0);
  kept.start(kill_at);
  bool survived = false;
  {
    Pusher pusher(rich_spec(scalar), kept.address(), "worker-0", 1);
    {
      Restarting restarting(kept, {&pusher.pool}, later_kills);
      for (int push = 0; push < kPushes; ++push) pusher.push(ids);
    }
    survived = kept.processes() == 1;
  }
  CHECK(everything_kept(kept, 0, {"worker-0"}) == expected);
  return survived;
}

Everything pushed_to_a_twin(Scalar scalar, size_t ids) {
  TestServer twin(0, 1);
  Pusher pusher(rich_spec(scalar), twin.address(), "worker-0", 1);
  for (int push = 0; push < kPushes; ++push) pusher.push(ids);
  return everything_of(twin.core, {"worker-0"});
}

// A process passes these before it has parameters: until then the client would have to begin again.
int points_before_the_first_push(uint32_t turns) {
  Kept kept(0, 1, turns);
  kept.start(0);
  const Pusher pusher(rich_spec(Scalar::FLOAT32), kept.address(), "worker-0", 1);
  const Pusher other(rich_spec(Scalar::FLOAT32), kept.address(), "worker-1", 1);
  return static_cast<int>(kept.step(0, [] {}));
}

void a_push_survives_a_kill_between_any_two_of_its_stores() {
  const Everything expected = pushed_to_a_twin(Scalar::FLOAT32, kIds);
  const int first = points_before_the_first_push(0);
  int kill_at = first_point_after(first);
  while (!push_with_a_kill_at(kill_at, expected, Scalar::FLOAT32, kIds)) kill_at += stride();
  std::fprintf(stderr, "killed at 1 of %d of %d points\n", stride(), kill_at - first);
  CHECK(kill_at - first > 100);
}

// Tables grow: chunks, indexes, huge pages. All points are too many, so some are drawn.
void growing_tables_survive_kills_at_some_points() {
  constexpr size_t kMany = 700;
  std::mt19937_64 random(static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()));
  for (Scalar scalar : {Scalar::FLOAT32, Scalar::FLOAT64}) {
    const Everything expected = pushed_to_a_twin(scalar, kMany);
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(is_long_run() ? fuzz_s() / 4 : fuzz_s() / 2);
    while (std::chrono::steady_clock::now() < end) {
      const int kill_at = 200 + static_cast<int>(random() % 60000);
      const std::vector<int> later = {1 + static_cast<int>(random() % 20000), 1 + static_cast<int>(random() % 300)};
      std::fprintf(stderr, "kills at %d, %d, %d\n", kill_at, later[1], later[0]);
      push_with_a_kill_at(kill_at, expected, scalar, kMany, later);
    }
  }
}

std::vector<std::unique_ptr<Pusher>> two_workers(const std::string& address) {
  std::vector<std::unique_ptr<Pusher>> workers;
  for (uint64_t w = 0; w < 2; ++w) workers.push_back(std::make_unique<Pusher>(rich_spec(Scalar::FLOAT64), address, "worker-" + std::to_string(w), w));
  return workers;
}

constexpr int64_t kSteps = 3;

// Whether its process was still there at the end.
bool steps_with_a_kill_at(int kill_at, const Everything& expected) {
  Kept kept(0, 1, 2);
  kept.start(kill_at);
  auto workers = two_workers(kept.address());
  for (int64_t number = 1; number <= kSteps; ++number) {
    {
      Restarting restarting(kept, {&workers[0]->pool, &workers[1]->pool});
      for (auto& worker : workers) worker->push(kIds);
    }
    const auto move = [&] {
      for (auto& worker : workers) worker->pool.move({kept.address()});
    };
    CHECK(kept.step(number, move) == number);
  }
  const bool survived = kept.processes() == 1 && !kept.ended();
  workers.clear();
  CHECK(everything_kept(kept, 2, {"worker-0", "worker-1"}) == expected);
  return survived;
}

// Also where pushes wait for their step.
void a_step_survives_a_kill_between_any_two_of_its_stores() {
  Everything expected;
  {
    TestServer twin(0, 1, 2);
    auto workers = two_workers(twin.address());
    for (int64_t number = 1; number <= kSteps; ++number) {
      for (auto& worker : workers) worker->push(kIds);
      twin.core.apply_step(number, {{"worker-0", number, 3.0}, {"worker-1", number, 1.0}});
    }
    expected = everything_of(twin.core, {"worker-0", "worker-1"});
    CHECK(expected.steps.size() == 2 * kSteps);
  }
  const int first = points_before_the_first_push(2);
  int kill_at = first_point_after(first);
  while (!steps_with_a_kill_at(kill_at, expected)) kill_at += stride();
  std::fprintf(stderr, "killed at 1 of %d of %d points of steps\n", stride(), kill_at - first);
  CHECK(kill_at - first > 100);
}

// One of several workers of two servers: each push takes 1 from the dense weights and from the rows that it names.
struct Counting {
  Worker worker;
  std::vector<int> counts;
  std::mt19937_64 random;
  Counting(const Addresses& addresses, size_t number) : worker(addresses, "worker-" + std::to_string(number)), counts(kRows), random(number) {}

  static constexpr size_t kRows = 5000;

  void push() {
    const auto begin = static_cast<int64_t>(random() % (kRows - 100));
    const std::vector<int64_t> ids = range(begin, 100);
    worker.push(ids);
    for (int64_t id : ids) ++counts[static_cast<size_t>(id)];
  }
};

void pushes_count_once_while_servers_are_killed_at_any_instant() {
  constexpr uint32_t kServers = 2;
  constexpr size_t kWorkers = 3;
  std::vector<std::unique_ptr<Kept>> servers;
  std::vector<Kept*> every;
  Addresses addresses;
  for (uint32_t k = 0; k < kServers; ++k) {
    servers.push_back(std::make_unique<Kept>(k, kServers, 0));
    servers.back()->start(0);
    every.push_back(servers.back().get());
    addresses.push_back(servers.back()->address());
  }
  std::vector<std::unique_ptr<Counting>> workers;
  std::vector<Pool*> pools;
  for (size_t w = 0; w < kWorkers; ++w) {
    workers.push_back(std::make_unique<Counting>(addresses, w));
    pools.push_back(&workers.back()->worker.pool);
    pools.back()->pack(w != 1);  // what a process keeps of a packed push must be enough for the next one
  }
  Worker looking(addresses, "looking");
  pools.push_back(&looking.pool);
  {
    Restarting restarting(every, pools);
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(is_long_run() ? fuzz_s() / 2 : fuzz_s());
    std::vector<std::thread> threads;
    for (auto& one : workers) {
      threads.emplace_back([&one, end] {
        while (std::chrono::steady_clock::now() < end) one->push();
      });
    }
    threads.emplace_back([&looking, end] {  // makes rows, too
      std::vector<float> rows;
      for (int64_t first = 100000; std::chrono::steady_clock::now() < end; first += 50) looking.pull(range(first, 50), -1, &rows);
    });
    std::mt19937_64 random(7);
    for (size_t turn = 0; std::chrono::steady_clock::now() < end; ++turn) {
      ::usleep(static_cast<useconds_t>(random() % 20000));
      every[turn < kServers ? turn : random() % kServers]->kill_at_any_time();
    }
    for (std::thread& thread : threads) thread.join();
  }
  int64_t pushes = 0;
  for (auto& one : workers) pushes += one->worker.sequence;
  int processes = 0;
  for (uint32_t k = 0; k < kServers; ++k) {
    CHECK(servers[k]->processes() > 1);  // each was killed
    processes += servers[k]->processes();
    servers[k]->end();
    ps::Server core({k, kServers, "key", 17, nullptr, 0, servers[k]->memory(), "run"});
    CHECK(core.take_on() && core.admission().version() == pushes);
    const auto dense = core.model()->freeze_dense();
    for (size_t i = 0; i < core.model()->dense_size(); ++i) CHECK(reinterpret_cast<const float*>(dense->weights())[i] == -static_cast<float>(pushes));
    for (size_t id = 0; id < Counting::kRows; ++id) {
      if (wire::owner(static_cast<int64_t>(id), kServers) != k) continue;
      int count = 0;
      for (auto& one : workers) count += one->counts[id];
      const auto wanted = static_cast<int64_t>(id);
      float row[kDim];
      core.model()->table(0).peek(&wanted, 1, row, -1);
      for (float value : row) CHECK(value == -static_cast<float>(count));
    }
    for (size_t w = 0; w < kWorkers; ++w) CHECK(core.admission().fence("worker-" + std::to_string(w)).sequence == workers[w]->worker.sequence);
  }
  std::fprintf(stderr, "%ld pushes, %d processes killed\n", pushes, processes - static_cast<int>(kServers));
}

// What is there is of no use: the server begins without it, and says why.
void memory_of_something_else_is_discarded() {
  Kept kept(0, 1, 0);
  kept.start(0);
  {
    Pusher pusher(rich_spec(Scalar::FLOAT32), kept.address(), "worker-0", 1);
    pusher.push(kIds);
  }
  kept.end();
  const auto discarded = [&](uint32_t server, uint32_t servers, uint32_t turns, const std::string& run) {
    const int copy = ::memfd_create("copy", 0);
    off_t at = 0;
    constexpr ssize_t kBytes = ssize_t{80} << 20;  // all that it has
    CHECK(::sendfile(copy, kept.fd(), &at, kBytes) == kBytes);
    CHECK(::ftruncate(copy, ::lseek(kept.fd(), 0, SEEK_END)) == 0);
    std::string why;
    {
      ps::Server core({server, servers, "key", 17, nullptr, turns, path_of(copy), run});
      CHECK(!core.take_on() == !core.discarded().empty());
      why = core.discarded();
      // It is of use again, to this server.
      std::vector<float> zeros(2000);
      const Spec spec = rich_spec(Scalar::FLOAT32);
      if (!why.empty()) CHECK(core.initialise(spec, zeros.data(), even_slice(1500, server, servers).size() + even_slice(77, server, servers).size(), 3));
    }
    {
      ps::Server core({server, servers, "key", 17, nullptr, turns, path_of(copy), run});
      CHECK(core.take_on() && core.admission().version() == (why.empty() ? 1 : 3));
    }
    ::close(copy);
    return why;
  };
  CHECK(discarded(0, 1, 0, "run").empty());
  CHECK(discarded(0, 1, 0, "another").find("another run") != std::string::npos);
  CHECK(discarded(1, 2, 0, "run").find("server 0 of 1") != std::string::npos);
  CHECK(discarded(0, 1, 4, "run").find("another way to train") != std::string::npos);
  const char other = 'X';
  CHECK(::pwrite(kept.fd(), &other, 1, 3) == 1);
  CHECK(discarded(0, 1, 0, "run").find("another format") != std::string::npos);
}

void one_process_at_a_time_has_the_memory() {
  Kept kept(0, 1, 0);
  auto first = std::make_unique<ps::KeptMemory>(kept.memory(), 0.0);
  bool refused = false;
  try {
    ps::KeptMemory second(kept.memory(), 0.05);
  } catch (const TransientError& error) {
    refused = true;
  }
  CHECK(refused);
  std::thread gone([&] {
    ::poll(nullptr, 0, 30);
    first.reset();
  });
  ps::KeptMemory second(kept.memory(), kLimitS);
  gone.join();
}

// A server's file, with what it takes for a while: large frames, views, and connections that come and go.
void memory_that_is_not_needed_goes_back() {
#if defined(__SANITIZE_THREAD__)  // it takes ten times as long for each weight
  constexpr size_t kDenseWeights = size_t{9} << 18;
#else
  constexpr size_t kDenseWeights = size_t{3} << 20;
#endif
  Kept kept(0, 1, 0);
  TestServer served(0, 1, 0, kept.memory());
  Spec spec = counting_spec();
  spec.trainable = kDenseWeights;
  std::vector<float> dense(kDenseWeights, 1.0f);
  size_t most = 0;
  for (int client = 0; client < 6; ++client) {
    const std::string name = "worker-" + std::to_string(client);
    Pool pool({served.address()}, {wire::bulk_token("key", name)}, name, nullptr);
    pool.initialise(spec, dense.data(), kLimitS);
    for (int64_t push = 1; push <= 3; ++push) {
      const auto view = served.core.look();  // so that this push writes to a copy
      const std::vector<int64_t> ids = range(0, 1000 * static_cast<size_t>(push));
      const std::vector<float> gradients(ids.size() * kDim);
      pool.push({push, 0, 0, push, {0}, 1.0, dense.data(), {{ids.data(), ids.size()}}, {gradients.data()}}, nullptr, kLimitS);
    }
    if (client == 2) most = served.core.kept()->bytes();
    CHECK(served.core.kept()->bytes() >= kDenseWeights * sizeof(float));
  }
  // A client may begin before the last one's connection is closed: then there is one more payload, which is kept as a spare.
  constexpr size_t kPayload = kDenseWeights * sizeof(float) * 9 / 8 + (size_t{2} << 20);
  CHECK(served.core.kept()->bytes() <= most + kPayload + (size_t{1} << 20));
  CHECK(most < 4 * kDenseWeights * sizeof(float));
}

}  // namespace

int main(int count, char** arguments) {
  if (count > 2 && std::string(arguments[1]) == "--serve") return serve(arguments + 2);
  ::signal(SIGPIPE, SIG_IGN);  // of a process that was killed before it was told
  a_push_survives_a_kill_between_any_two_of_its_stores();
  a_step_survives_a_kill_between_any_two_of_its_stores();
  growing_tables_survive_kills_at_some_points();
  pushes_count_once_while_servers_are_killed_at_any_instant();
  memory_of_something_else_is_discarded();
  one_process_at_a_time_has_the_memory();
  memory_that_is_not_needed_goes_back();
  std::puts("all held");
}
