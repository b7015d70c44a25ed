// Packed frames: what they carry, when they are used, and what malformed ones do. Exit 0: all held.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "elasticdl/rpc/native/packed_weights.h"
#include "tests/native/servers.h"

using namespace elasticdl;
using namespace elasticdl::testing;

namespace {

using Random = std::mt19937_64;

// Two tables with the same ids and one with others, enough of them for codes; the same bits as in plain frames.
void packed_frames_carry_the_same_bits() {
  for (uint32_t count : {1u, 3u}) {
    std::vector<std::unique_ptr<TestServer>> servers;
    Addresses addresses;
    for (uint32_t k = 0; k < count; ++k) addresses.push_back((servers.push_back(std::make_unique<TestServer>(k, count)), servers.back()->address()));
    Spec spec;
    spec.trainable = 2001;
    spec.additive = 7;
    for (auto [name, dim] : {std::pair{"a", 16u}, {"b", 1u}, {"c", 3u}}) spec.tables.push_back({name, dim, {InitializerSpec::UNIFORM, -1.0f, 1.0f}, 5});
    spec.json = "{}";
    std::vector<float> dense(2008), gradient(2008);
    Random random(count);
    std::normal_distribution<float> normal;
    for (float& value : gradient) value = normal(random);
    std::vector<int64_t> ids, others = range(-9, 7);
    for (size_t i = 0; i < 1500; ++i) ids.push_back(static_cast<int64_t>(i * 7919 % 100'003) - 50'000);
    const std::vector<Ids> asked = {{ids.data(), ids.size()}, {ids.data(), ids.size()}, {others.data(), others.size()}};
    std::vector<std::vector<float>> gradients;
    for (size_t t = 0; t < 3; ++t) {
      gradients.emplace_back(asked[t].count * spec.tables[t].dim);
      for (float& value : gradients[t]) value = normal(random);
    }
    const auto talk = [&](Pool& pool, bool packed) {
      pool.initialise(spec, dense.data(), kLimitS);
      pool.pack(packed);
    };
    const auto pulled = [&](Pool& pool, int64_t snapshot, bool exact) {
      std::vector<std::vector<float>> all(4);
      all[3].resize(2008);
      std::vector<void*> rows;
      for (size_t t = 0; t < 3; ++t) rows.push_back((all[t].resize(gradients[t].size()), all[t].data()));
      pool.pull(asked, snapshot, all[3].data(), rows, nullptr, kLimitS, exact);
      return all;
    };
    const auto pushed = [&](Pool& pool, int64_t sequence) {
      const std::vector<int64_t> versions(count);
      pool.push({sequence, 0, 0, sequence, versions, 0.5, gradient.data(), asked, {gradients[0].data(), gradients[1].data(), gradients[2].data()}}, nullptr, kLimitS);
    };
    const auto named = [&](const std::string& name, Rounding rounding = Rounding::full) {
      return std::make_unique<Pool>(addresses, std::vector<std::string>(count, wire::bulk_token("key", name)), name, nullptr, trusting(), rounding);
    };
    const auto plain = named("worker-0"), packed = named("worker-1"), rough = named("worker-2", Rounding::bfloat16);
    talk(*plain, false), talk(*packed, true), talk(*rough, false);
    const auto first = pulled(*plain, -1, false);
    CHECK(first == pulled(*packed, -1, false));
    CHECK(first == pulled(*rough, -1, true));
    const auto rounded = pulled(*rough, -1, false);
    for (size_t t = 0; t < 4; ++t) {
      for (size_t i = 0; i < first[t].size(); ++i) CHECK(rounded[t][i] == from_bfloat16(to_bfloat16(first[t][i])));
    }
    // A packed push does what a plain one does; one in bfloat16 what the rounded gradients do, but to the additive part.
    pushed(*plain, 1);
    const auto once = pulled(*plain, -1, false);
    pushed(*packed, 1);
    const auto twice = pulled(*packed, -1, false);
    for (size_t t = 0; t < 3; ++t) {
      for (size_t i = 0; i < first[t].size(); ++i) {
        CHECK(once[t][i] == first[t][i] - 0.5f * gradients[t][i]);
        CHECK(twice[t][i] == once[t][i] - 0.5f * gradients[t][i]);
      }
    }
    for (size_t i = 0; i < 2008; ++i) CHECK(twice[3][i] == (i < spec.trainable ? once[3][i] - 0.5f * gradient[i] : once[3][i] + gradient[i]));
    pushed(*rough, 1);
    const auto third = pulled(*plain, -1, false);
    for (size_t t = 0; t < 3; ++t) {
      for (size_t i = 0; i < first[t].size(); ++i) CHECK(third[t][i] == twice[t][i] - 0.5f * from_bfloat16(to_bfloat16(gradients[t][i])));
    }
    for (size_t i = spec.trainable; i < 2008; ++i) CHECK(third[3][i] == twice[3][i] + gradient[i]);
  }
}

// Not every server has a slice of a model that is smaller than their number.
void packed_frames_serve_servers_without_dense_weights() {
  std::vector<std::unique_ptr<TestServer>> servers;
  Addresses addresses;
  for (uint32_t k = 0; k < 3; ++k) addresses.push_back((servers.push_back(std::make_unique<TestServer>(k, 3)), servers.back()->address()));
  Spec spec = counting_spec();
  spec.trainable = 1;
  Pool pool(addresses, std::vector<std::string>(3, wire::bulk_token("key", "worker-0")), "worker-0", nullptr, trusting());
  pool.pack(true);
  const float one = 1.0f;
  float dense = 0.0f;
  pool.initialise(spec, &dense, kLimitS);
  pool.push({1, 0, 0, 1, {0, 0, 0}, 1.0, &one, {{nullptr, 0}}, {nullptr}}, nullptr, kLimitS);
  pool.pull({{nullptr, 0}}, -1, &dense, {nullptr}, nullptr, kLimitS);
  CHECK(dense == -1.0f);
}

// Requests of 1 MB: what each takes plain, packed, and rounded; and the way to choose without rounding, and with it.
void what_takes_the_least_time_is_chosen() {
  constexpr size_t kBytes = 1 << 20;
  struct {
    double seconds[3];
    Encoding exact, any;
  } links[] = {{{0.0050, 0.0060, 0.0058}, Encoding::plain, Encoding::plain},        // a fast link, and busy cores
               {{0.0180, 0.0140, 0.0090}, Encoding::packed, Encoding::bfloat16},
               {{0.0180, 0.0175, 0.0170}, Encoding::packed, Encoding::packed},      // slow, but not because of the bytes
               {{0.0080, 0.0076, 0.0070}, Encoding::plain, Encoding::plain},
               {{0.0080, 0.0066, 0.0040}, Encoding::packed, Encoding::bfloat16},
               {{0.0001, 0.00001, 0.00001}, Encoding::plain, Encoding::plain},      // so fast that nothing is tried
               {{0.0180, 0.0140, 0.0150}, Encoding::packed, Encoding::packed}};
  for (bool may_round : {false, true}) {
    EncodingChoice choice;
    choice.begin(may_round);
    Random random(3);
    for (const auto& link : links) {  // the link changes under it
      size_t wrong = 0, rounded = 0;
      for (int request = 0; request < 2000; ++request) {
        const Encoding way = choice.next();
        if (request >= 1000) wrong += way != (may_round ? link.any : link.exact) ? 1 : 0;
        rounded += way == Encoding::bfloat16 ? 1 : 0;
        const double outlier = random() % 16 == 0 ? 10.0 : 1.0 + static_cast<double>(random() % 100) / 5000;
        choice.took(way, kBytes, link.seconds[static_cast<size_t>(way)] * outlier);
        choice.took(choice.next(), 1000, 10.0);                                                            // too small to tell
        choice.took(choice.next() == Encoding::plain ? Encoding::packed : Encoding::plain, kBytes, 1e-6);  // not the next way
      }
      CHECK(wrong <= ((may_round ? link.any : link.exact) == Encoding::plain ? 50 : 20));
      if (!may_round) CHECK(rounded == 0);
    }
    choice.give(Encoding::plain);
    for (int request = 0; request < 100; ++request) {
      CHECK(choice.next() == Encoding::plain);
      choice.took(Encoding::plain, kBytes, 1.0);
    }
  }
}

template <class Read>
bool refused(const std::string& bytes, Read read) {
  const std::vector<char> exact(bytes.begin(), bytes.end());  // so that the sanitizers see a step beyond its end
  wire::Cursor cursor(exact.data(), exact.size());
  try {
    read(cursor);
    cursor.end();
  } catch (const UserError&) {
    return true;
  }
  return false;
}

void packed_ids_come_back_and_malformed_ones_do_not() {
  Random random(4);
  const auto check = [](const std::vector<int64_t>& ids) {
    wire::Writer writer;
    const std::vector<uint32_t> places = pack_ids({ids.data(), ids.size()}, writer);
    wire::Cursor cursor(writer.bytes().data(), writer.bytes().size());
    const std::vector<int64_t> back = unpack_ids(cursor);
    cursor.end();
    CHECK(std::is_sorted(back.begin(), back.end()) && back.size() == ids.size());
    std::vector<uint32_t> every = places;
    std::sort(every.begin(), every.end());
    for (size_t i = 0; i < ids.size(); ++i) CHECK(back[i] == ids[places[i]] && every[i] == i);
  };
  check({});
  check({INT64_MAX, INT64_MIN, 0, -1, 1, INT64_MAX, 0});
  for (int round = 0; round < 300; ++round) {
    std::vector<int64_t> ids(random() % 400);
    const uint64_t shift = random() % 64;
    for (int64_t& id : ids) id = static_cast<int64_t>(random() >> shift) * (random() % 2 ? 1 : -1);
    check(ids);
  }
  const auto frame_of = [](uint64_t count, int64_t first, std::string_view rest) {
    wire::Writer writer;
    return std::move(writer.put(count).put(first).text(rest).bytes());
  };
  for (const std::string& bad : {frame_of(3, 0, "\x01"), frame_of(2, 0, ""), frame_of(2, 0, "\xff"), frame_of(2, INT64_MAX, "\x01"),
                                 frame_of(2, 0, std::string(11, '\xff')), frame_of(UINT64_MAX, 0, ""), frame_of(uint64_t{1} << 61, 0, "abc"), std::string("\1")}) {
    CHECK(refused(bad, unpack_ids));
  }
  for (const auto& [second, bad] : {std::pair{0u, false}, {1u, true}, {2u, true}, {UINT32_MAX, true}}) {
    wire::Writer writer;
    writer.put(uint32_t{0}).put(uint64_t{1}).put(int64_t{9}).put(second);  // table 1: like 0, or with ids that are not there
    CHECK(refused(writer.bytes(), [](wire::Cursor& cursor) { PackedIds(cursor, 2).unpack(); }) == bad);
  }
  // More ids than a plain frame has: refused before they get memory.
  const uint64_t many = wire::kMaxPayload / sizeof(int64_t) + 1;
  wire::Writer writer;
  writer.put(uint32_t{0}).put(many).put(int64_t{0}).bytes().resize(many + 20, '\0');
  CHECK(refused(writer.bytes(), [](wire::Cursor& cursor) { PackedIds(cursor, 1); }));
}

// Of every kind of distribution; then with bytes changed, cut or added: refused, or other numbers, but never a step beyond its end.
void packed_weights_come_back_and_malformed_ones_do_no_harm() {
  Random random(5);
  for (int round = 0; round < 400; ++round) {
    const Scalar scalar = random() % 4 ? Scalar::FLOAT32 : Scalar::FLOAT64;
    const auto precision = random() % 2 ? wire::Precision::full : wire::Precision::bfloat16;
    const size_t count = random() % 3 ? random() % 3000 : random() % 8;
    const uint64_t how = random() % 4;
    std::vector<double> doubles(count);
    std::vector<float> floats(count);
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < count; ++i) {
      uint32_t any = static_cast<uint32_t>(random());
      std::memcpy(&floats[i], &any, sizeof any);  // also NaN and infinite
      if (how == 1) floats[i] = 0.25f;
      if (how == 2) floats[i] = static_cast<float>(normal(random));
      if (how == 3) floats[i] = std::ldexp(1.0f, -static_cast<int>(std::min<uint64_t>(random() % 64 * (random() % 64 == 0), 100)));  // rare exponents: long codes
      doubles[i] = static_cast<double>(floats[i]);
    }
    const char* values = scalar == Scalar::FLOAT32 ? reinterpret_cast<const char*>(floats.data()) : reinterpret_cast<const char*>(doubles.data());
    PackedWeights weights(scalar, precision);
    std::string packed(weights.bound(count), 'x');
    packed.resize(weights.pack(values, count, packed.data()));
    std::string back(count * bytes_of(scalar), 'y');
    CHECK(!refused(packed, [&](wire::Cursor& cursor) { weights.unpack(cursor, count, back.data()); }));
    for (size_t i = 0; i < count; ++i) {
      if (precision == wire::Precision::full) {
        CHECK(std::memcmp(back.data() + i * bytes_of(scalar), values + i * bytes_of(scalar), bytes_of(scalar)) == 0);
        continue;
      }
      const double got = scalar == Scalar::FLOAT32 ? static_cast<double>(reinterpret_cast<float*>(back.data())[i]) : reinterpret_cast<double*>(back.data())[i];
      if (std::isnan(doubles[i])) CHECK(std::isnan(got));
      else if (std::isinf(got)) CHECK(std::abs(doubles[i]) > 3.38e38);
      else CHECK(std::abs(got - doubles[i]) <= std::max(std::abs(doubles[i]) / 256, 1e-40));
    }
    for (int change = 0; change < 20; ++change) {
      std::string bad = packed;
      for (uint64_t more = random() % 3; more > 0 && !bad.empty(); --more) bad[random() % std::min(bad.size(), size_t{300})] = static_cast<char>(random());
      if (random() % 3 == 0) bad.resize(random() % (bad.size() + 1));
      if (random() % 5 == 0) bad.resize(bad.size() + random() % 20);
      const size_t other = random() % 4 ? count : random() % 3000;
      back.resize(other * bytes_of(scalar));
      refused(bad, [&](wire::Cursor& cursor) { weights.unpack(cursor, other, back.data()); });
    }
  }
}

}  // namespace

int main() {
  packed_frames_carry_the_same_bits();
  packed_frames_serve_servers_without_dense_weights();
  if (!kOnlyRaces) {
    what_takes_the_least_time_is_chosen();
    packed_ids_come_back_and_malformed_ones_do_not();
    packed_weights_come_back_and_malformed_ones_do_no_harm();
  }
  std::puts("all held");
}
