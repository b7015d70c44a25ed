// How near elasticdl::Table comes to what this machine's memory allows, on one core.
//
// Each figure of the table is taken in turns with a loop that does the least that the same work can need: find the
// row by open addressing, then copy 64 bytes, or update 192 bytes by Adam. The loops know their table's size beforehand,
// have only ids >= 0, no lock, no views, no missing rows. A second table is in kept memory. Output: one JSON object, rows/s.
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "elasticdl/embedding/native/mapping.h"
#include "elasticdl/embedding/native/table.h"
#include "elasticdl/ps/native/kept_memory.h"

namespace {
using elasticdl::Mapping;
constexpr size_t kDim = 16, kRows = 1000000, kBatch = 50000, kBatches = 20, kRounds = 9;

// What a table cannot do without: keys and row numbers, half full.
class PlainIndex {
 public:
  explicit PlainIndex(const std::vector<int64_t>& ids) : keys_(kSlots, -1), rows_(kSlots) {
    for (size_t row = 0; row < ids.size(); ++row) {
      size_t at = home(ids[row]);
      while (keys_[at] != -1) at = (at + 1) % kSlots;
      keys_[at] = ids[row];
      rows_[at] = static_cast<uint32_t>(row);
    }
  }
  size_t find(int64_t id) const {
    size_t at = home(id);
    while (keys_[at] != id) at = (at + 1) % kSlots;
    return rows_[at];
  }
  void prefetch(int64_t id) const {
    __builtin_prefetch(&keys_[home(id)]);
    __builtin_prefetch(&rows_[home(id)]);
  }

 private:
  static constexpr size_t kSlots = size_t{1} << 21;
  static size_t home(int64_t id) { return (static_cast<uint64_t>(id) * 0x9e3779b97f4a7c15ULL) >> (64 - 21); }
  std::vector<int64_t> keys_;
  std::vector<uint32_t> rows_;
};

struct Work {
  std::vector<int64_t> ids;                   // of all rows
  std::vector<std::vector<int64_t>> batches;  // distinct within a batch
  std::vector<float> gradients = std::vector<float>(kBatch * kDim, 0.01f);
  std::vector<float> out = std::vector<float>(kBatch * kDim);

  Work() : ids(kRows), batches(kBatches) {
    std::mt19937_64 random(7);
    for (auto& id : ids) id = static_cast<int64_t>(random() >> 1);
    std::vector<int64_t> deck = ids;
    for (auto& batch : batches) {
      std::shuffle(deck.begin(), deck.end(), random);
      batch.assign(deck.begin(), deck.begin() + kBatch);
    }
  }
};

// `ahead` == 0: no prefetch.
template <class Visit>
void each(const PlainIndex& index, const std::vector<int64_t>& batch, size_t ahead, Visit visit) {
  for (size_t i = 0; i < kBatch; ++i) {
    if (ahead != 0 && i + ahead < kBatch) index.prefetch(batch[i + ahead]);
    visit(i, index.find(batch[i]));
  }
}

void adam_row(float* row, const float* gradient) {
  float *w = row, *m = row + kDim, *v = row + 2 * kDim;
  for (size_t j = 0; j < kDim; ++j) {
    m[j] = 0.9f * m[j] + 0.1f * gradient[j];
    v[j] = 0.999f * v[j] + 0.001f * gradient[j] * gradient[j];
    w[j] -= 1e-3f * m[j] / (std::sqrt(v[j]) + 1e-7f);
  }
}

struct Measure {
  std::string name;
  std::function<void()> pass;  // over all batches
  std::vector<double> rows_per_s = {};
};

double seconds_of(const std::function<void()>& pass) {
  const auto begin = std::chrono::steady_clock::now();
  pass();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void print(std::vector<Measure>& measures, const elasticdl::Table& table, double first_touch_rows_per_s, double kept_first_touch_rows_per_s) {
  std::printf("{");
  for (auto& m : measures) {
    std::sort(m.rows_per_s.begin(), m.rows_per_s.end());
    std::printf("\"%s\": %.0f, ", m.name.c_str(), m.rows_per_s[m.rows_per_s.size() / 2]);
  }
  std::printf("\"table_first_touch\": %.0f, \"kept_first_touch\": %.0f, \"raw_bytes\": %zu, \"table_bytes\": %zu}\n", first_touch_rows_per_s,
              kept_first_touch_rows_per_s, kRows * kDim * 3 * sizeof(float), table.memory_bytes());
}
}  // namespace

int main() {
  Work work;
  elasticdl::OptimizerSpec adam;
  adam.kind = elasticdl::OptimizerSpec::ADAM;
  elasticdl::Table table(kDim, {}, adam, 1);
  std::vector<float> all(kRows * kDim);
  const double first_touch_s = seconds_of([&] { table.lookup(work.ids.data(), kRows, all.data()); });
  elasticdl::ps::KeptMemory memory("/proc/self/fd/" + std::to_string(::memfd_create("table", 0)), 0.0);
  elasticdl::Table kept(kDim, {}, adam, 1, elasticdl::Scalar::FLOAT32, &memory);
  const double kept_first_touch_s = seconds_of([&] { kept.lookup(work.ids.data(), kRows, all.data()); });
  // As in a job with checkpoints: each update notes its rows.
  elasticdl::Table noted(kDim, {}, adam, 1);
  noted.lookup(work.ids.data(), kRows, all.data());
  noted.begin_view(0);
  noted.set_base(0, 0);
  noted.end_view(0);
  // Every row has missed steps, which a lookup makes up for: it reads the slots, too.
  elasticdl::Table idle(kDim, {}, adam, 1);
  idle.lookup(work.ids.data(), kRows, all.data());
  idle.advance(10, 1e-3);
  uint64_t done = 0, serial = 0;
  const auto keep = [&](const std::vector<int64_t>& batch) {
    done = 0;
    const elasticdl::Progress progress{++serial, &done, 0};
    kept.apply(batch.data(), kBatch, work.gradients.data(), {1e-3f, 10}, {}, &progress);
  };

  const PlainIndex index(work.ids);
  // As the loops of the measurement that the aim was set by: weights alone for the gather, on pages of 4 KiB.
  const Mapping weights(kRows * kDim * sizeof(float)), rows(kRows * kDim * 3 * sizeof(float));
  const Mapping huge_weights(weights.bytes(), true), huge_rows(rows.bytes(), true);
  for (const Mapping* memory : {&weights, &rows, &huge_weights, &huge_rows}) {
    float* values = reinterpret_cast<float*>(memory->address());
    std::fill(values, values + memory->bytes() / sizeof(float), 1e-3f);
  }
  const auto gather = [&](const Mapping& memory, size_t ahead) {
    return [&, ahead] {
      const float* values = reinterpret_cast<const float*>(memory.address());
      for (const auto& batch : work.batches) {
        each(index, batch, ahead, [&](size_t i, size_t row) { std::memcpy(&work.out[i * kDim], values + row * kDim, kDim * sizeof(float)); });
      }
    };
  };
  const auto update = [&](const Mapping& memory, size_t ahead) {
    return [&, ahead] {
      float* values = reinterpret_cast<float*>(memory.address());
      for (const auto& batch : work.batches) {
        each(index, batch, ahead, [&](size_t i, size_t row) { adam_row(values + row * 3 * kDim, &work.gradients[i * kDim]); });
      }
    };
  };
  std::vector<Measure> measures = {
      {"limit_lookup", gather(weights, 0)},
      {"limit_lookup_prefetch", gather(weights, 16)},
      {"limit_lookup_prefetch_huge", gather(huge_weights, 16)},
      {"table_lookup", [&] { for (const auto& batch : work.batches) table.lookup(batch.data(), kBatch, work.out.data()); }},
      {"idle_lookup", [&] { for (const auto& batch : work.batches) idle.lookup(batch.data(), kBatch, work.out.data()); }},
      {"limit_adam", update(rows, 0)},
      {"limit_adam_prefetch", update(rows, 16)},
      {"limit_adam_prefetch_huge", update(huge_rows, 16)},
      {"table_adam", [&] { for (const auto& batch : work.batches) table.apply(batch.data(), kBatch, work.gradients.data(), {1e-3f, 10}); }},
      {"noted_adam", [&] { for (const auto& batch : work.batches) noted.apply(batch.data(), kBatch, work.gradients.data(), {1e-3f, 10}); }},
      {"kept_lookup", [&] { for (const auto& batch : work.batches) kept.lookup(batch.data(), kBatch, work.out.data()); }},
      {"kept_adam", [&] { for (const auto& batch : work.batches) keep(batch); }},
  };
  for (size_t round = 0; round <= kRounds; ++round) {
    for (auto& m : measures) {
      const double s = seconds_of(m.pass);
      if (round != 0) m.rows_per_s.push_back(static_cast<double>(kBatch * kBatches) / s);  // round 0 warms up
    }
  }
  print(measures, table, static_cast<double>(kRows) / first_touch_s, static_cast<double>(kRows) / kept_first_touch_s);
}
