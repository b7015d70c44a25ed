// Servers on loopback and workers beside them, for test programs in C++.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "elasticdl/ps/native/listener.h"
#include "elasticdl/rpc/native/greeting.h"
#include "elasticdl/rpc/native/pool.h"
#include "tests/native/check.h"

namespace elasticdl::testing {

using Addresses = std::vector<std::string>;

constexpr double kLimitS = 60.0;
constexpr size_t kDense = 6, kDim = 2;

// Where the certificates are; '' for clear text.
inline std::string certificates;

inline std::string pem(const std::string& name) {
  std::ifstream file(certificates + "/" + name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline TlsContext certified(uint32_t server) {
  const std::string name = "ps-" + std::to_string(server);
  return certificates.empty() ? nullptr : server_tls(pem(name + ".crt"), pem(name + ".key"));
}

inline TlsContext trusting() { return certificates.empty() ? nullptr : client_tls(pem("authority.crt")); }

struct TestServer {
  ps::Server core;
  ps::Listener listener;
  int port = 0;
  TestServer(uint32_t server, uint32_t servers, uint32_t turns = 0, const std::string& memory = "")
      : core({server, servers, "key", 17, certified(server), turns, memory, "run"}), listener(core) {
    port = listener.listen("127.0.0.1", 0);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port); }
};

// Plain SGD on zeros: minus a weight is the number of updates it had.
inline Spec counting_spec() {
  Spec spec;
  spec.trainable = kDense;
  spec.tables.push_back({"t", kDim, {InitializerSpec::CONSTANT, 0.0f, 0.0f}, 0});
  spec.json = "{}";
  return spec;
}

constexpr size_t kKeptBytes = 64 << 10;  // some tests push more than that

struct Worker {
  Pool pool;
  int64_t sequence = 0;
  std::vector<int64_t> versions;
  Worker(const Addresses& addresses, const std::string& name)
      : pool(addresses, std::vector<std::string>(addresses.size(), wire::bulk_token("key", name)), name, nullptr, trusting(), Rounding::full,
             kKeptBytes),
        versions(addresses.size(), 0) {
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

inline std::vector<int64_t> range(int64_t first, size_t count) {
  std::vector<int64_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

inline void cut(std::vector<std::unique_ptr<TestServer>>& servers, int64_t snapshot) {
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

// Seconds for one fuzzer: ELASTICDL_FUZZ_S, or a few.
inline double fuzz_s() {
  const char* given = std::getenv("ELASTICDL_FUZZ_S");
  return given != nullptr ? std::atof(given) : 1.5;
}

}  // namespace elasticdl::testing
