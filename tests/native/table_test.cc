// The table without Python, for the sanitizers. Exit 0: all held.
#include "elasticdl/embedding/native/table.h"

#include "elasticdl/embedding/native/mapping.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/native/check.h"

using namespace elasticdl;

namespace {
using Ids = std::vector<int64_t>;
using Floats = std::vector<float>;

OptimizerSpec rule(OptimizerSpec::Kind kind) {
  OptimizerSpec spec;
  spec.kind = kind;
  return spec;
}

Ids range(int64_t first, size_t n) {
  Ids ids(n);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// Lengths around those with kernels of their own, exact buffers so that one value too many is seen.
template <class T>
void every_length_and_rule_stays_in_its_arrays(Scalar scalar) {
  for (int dim : {1, 3, 8, 15, 16, 17, 31, 32, 64, 65, 200}) {
    for (auto kind : {OptimizerSpec::SGD, OptimizerSpec::ADAM, OptimizerSpec::ADAGRAD, OptimizerSpec::FTRL}) {
      for (auto initial : {InitializerSpec::CONSTANT, InitializerSpec::UNIFORM, InitializerSpec::NORMAL, InitializerSpec::TRUNCATED_NORMAL}) {
        OptimizerSpec optimizer = rule(kind);
        optimizer.amsgrad = true;
        Table table(dim, {initial, 0.0f, 1.0f}, optimizer, 3, scalar);
        const Ids ids = range(-50, 100);
        const auto d = static_cast<size_t>(dim), width = static_cast<size_t>(table.row_floats());
        CHECK(table.row_bytes() == width * sizeof(T));
        std::vector<T> out(ids.size() * d), gradients(ids.size() * d, T(0.5)), values(ids.size() * width);
        Ids back(ids.size());
        table.lookup(ids.data(), ids.size(), out.data());
        table.apply(ids.data(), ids.size(), gradients.data(), {0.1, 1});
        CHECK(table.read(-1, 0, 1000, back.data(), values.data()) == ids.size());
        CHECK(back == ids);
        for (T value : values) CHECK(std::isfinite(value));
        for (size_t i = 0; i < out.size(); ++i) CHECK(out[i] != values[i / d * width + i % d] || out[i] == T(0));
      }
    }
  }
}

void a_large_table_keeps_every_row_in_little_memory() {
  constexpr size_t kRows = 300000;
  Table table(16, {}, rule(OptimizerSpec::ADAM), 1);
  Ids ids = range(std::numeric_limits<int64_t>::min(), kRows);
  for (size_t i = 0; i < kRows; i += 2) ids[i] = static_cast<int64_t>(i) << 40;  // hashes must not care
  Floats first(kRows * 16), again(kRows * 16);
  table.lookup(ids.data(), kRows, first.data());
  table.lookup(ids.data(), kRows, again.data());
  CHECK(table.rows() == kRows);
  CHECK(first == again);
  CHECK(table.memory_bytes() < kRows * 192 * 6 / 5 + (size_t{8} << 20));
}

void what_is_not_there_is_refused() {
  int refused = 0;
  try { Table table(0, {}, {}, 0); } catch (const std::invalid_argument&) { ++refused; }
  Table table(4, {}, {}, 0);
  try { table.begin_view(Table::kViews); } catch (const std::invalid_argument&) { ++refused; }
  try { table.view_rows(2); } catch (const std::out_of_range&) { ++refused; }
  CHECK(refused == 3);
  table.end_view(2);
  table.lookup(nullptr, 0, nullptr);
}

// Every apply adds 1 to every weight of 0..kRows-1, so a consistent state has one value everywhere.
void threads_see_whole_updates_and_views_whole_states() {
  constexpr size_t kRows = 2000, kDim = 8, kUpdates = 60;
  Table table(static_cast<int>(kDim), {InitializerSpec::CONSTANT, 0.0f, 0.0f}, rule(OptimizerSpec::SGD), 1);
  const Ids ids = range(0, kRows);
  std::atomic<int> writers{2};
  const auto write = [&] {
    const Floats gradients(kRows * kDim, -1.0f);
    for (size_t step = 1; step <= kUpdates; ++step) table.apply(ids.data(), kRows, gradients.data(), {1.0f, static_cast<int64_t>(step)});
    --writers;
  };
  const auto look = [&](int64_t others) {
    Floats out(kRows * kDim), more(100 * kDim);
    while (writers > 0) {
      table.peek(ids.data(), kRows, out.data(), -1);
      for (float value : out) CHECK(value == out[0]);
      const Ids fresh = range(others += 100, 100);
      table.lookup(fresh.data(), fresh.size(), more.data());
      CHECK(table.memory_bytes() > 0);
    }
  };
  const auto freeze = [&](int view) {
    Floats values(kRows * kDim), again(kRows * kDim);
    Ids read(kRows);
    while (writers > 0) {
      table.begin_view(view);
      const size_t rows = std::min(table.view_rows(view), kRows);
      CHECK(table.read(view, 0, rows, read.data(), values.data()) == rows);
      std::this_thread::yield();
      table.read(view, 0, rows, read.data(), again.data());
      table.end_view(view);
      CHECK(values == again);
      for (size_t i = 0; i < rows; ++i) {
        if (read[i] >= 0 && read[i] < static_cast<int64_t>(kRows)) CHECK(values[i * kDim] == values[0] && values[i * kDim + kDim - 1] == values[0]);
      }
    }
  };
  Floats start(kRows * kDim);
  table.lookup(ids.data(), kRows, start.data());
  std::vector<std::thread> threads;
  threads.emplace_back(write);
  threads.emplace_back(write);
  threads.emplace_back(look, 10000);
  threads.emplace_back(look, 20000000);
  threads.emplace_back(freeze, 0);
  threads.emplace_back(freeze, 7);
  for (auto& thread : threads) thread.join();
  table.lookup(ids.data(), kRows, start.data());
  for (float value : start) CHECK(value == 2.0f * kUpdates);
}

void mappings_of_any_size_keep_to_themselves() {
  std::vector<Mapping> held;
  for (size_t i = 0; i < 60; ++i) {
    held.emplace_back((i + 1) * 123457, i % 3 != 0);
    CHECK(held.back().bytes() >= (i + 1) * 123457);
    CHECK(i % 3 == 0 || reinterpret_cast<uintptr_t>(held.back().address()) % Mapping::kHugePage == 0);
    std::memset(held.back().address(), static_cast<int>(i), held.back().bytes());
    if (i % 7 == 6) held.erase(held.begin());
  }
  for (const Mapping& one : held) {
    for (size_t at = 0; at < one.bytes(); at += 4096) CHECK(one.address()[at] == one.address()[0]);
  }
}

void duplicates_are_found_and_summed() {
  Ids ids;
  for (size_t i = 0; i < 5000; ++i) ids.push_back(static_cast<int64_t>(i * i % 1009) - 500);
  Ids found(ids.size());
  std::vector<int32_t> positions(ids.size());
  found.resize(unique_ids(ids.data(), ids.size(), found.data(), positions.data()));
  for (size_t i = 0; i < ids.size(); ++i) CHECK(found[static_cast<size_t>(positions[i])] == ids[i]);
  for (size_t dim : {1, 7, 16}) {
    const Floats ones(ids.size() * dim, 1.0f);
    Floats sums(found.size() * dim);
    merge_rows(Scalar::FLOAT32, ones.data(), positions.data(), ids.size(), dim, sums.data(), found.size());
    CHECK(std::accumulate(sums.begin(), sums.end(), 0.0f) == static_cast<float>(ids.size() * dim));
  }
}
}  // namespace

int main() {
  if (!kOnlyRaces) {
    every_length_and_rule_stays_in_its_arrays<float>(Scalar::FLOAT32);
    every_length_and_rule_stays_in_its_arrays<double>(Scalar::FLOAT64);
    a_large_table_keeps_every_row_in_little_memory();
    what_is_not_there_is_refused();
    duplicates_are_found_and_summed();
    mappings_of_any_size_keep_to_themselves();
  }
  threads_see_whole_updates_and_views_whole_states();
  std::puts("all held");
}
