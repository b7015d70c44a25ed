// Python's view of a server: control and checkpoints. Pulls and pushes bypass Python.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <sys/random.h>

#include <optional>

#include "elasticdl/checkpoint/native/part_file.h"
#include "elasticdl/ps/native/listener.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace elasticdl::ps {
namespace {

uint64_t random_instance() {
  uint64_t instance = 0;
  while (::getrandom(&instance, sizeof instance, 0) != sizeof instance) {
  }
  return instance;
}

// A server with its bulk plane, and the model under restoration before the server gets it.
class NativeServer {
 public:
  NativeServer(uint32_t server, uint32_t servers, const std::string& key, const std::string& certificate, const std::string& private_key,
               uint32_t turns, const std::string& memory, const std::string& run)
      : core({server, servers, key, random_instance(), server_tls(certificate, private_key), turns, memory, run}), listener(core) {
    if (servers == 0 || server >= servers) throw UserError("server " + std::to_string(server) + " of " + std::to_string(servers));
  }

  std::shared_ptr<Model>& restoring() {
    if (restored == nullptr) throw std::logic_error("begin_restore comes first");
    return restored;
  }

  Server core;
  Listener listener;
  std::shared_ptr<Model> restored;
};

using PushesTuple = std::tuple<uint64_t, int64_t, int64_t, int64_t, int64_t>;  // session, sequence, shard, attempt, offset

PushesTuple as_tuple(const Pushes& pushes) {
  return {pushes.session, pushes.sequence, pushes.applied.shard, pushes.applied.attempt, pushes.applied.offset};
}

nb::object fence(NativeServer& native, const std::string& worker) {
  Pushes pushes;
  {
    nb::gil_scoped_release released;
    pushes = native.core.admission().fence(worker);
  }
  return pushes.any ? nb::cast(as_tuple(pushes)) : nb::none();
}

Sequences gate(NativeServer& native, double timeout_s) { return native.core.admission().close(Admission::Seconds(timeout_s)); }

int64_t apply_step(NativeServer& native, int64_t number, const std::vector<std::tuple<std::string, int64_t, double>>& contributions) {
  std::vector<Contribution> all;
  for (const auto& [worker, sequence, examples] : contributions) all.push_back({worker, sequence, examples});
  return native.core.apply_step(number, all);
}

using StepTuple = std::pair<int64_t, std::vector<std::tuple<std::string, int64_t, double>>>;  // number, (worker, sequence, examples)

std::vector<StepTuple> recent_steps(NativeServer& native) {
  std::vector<StepTuple> all;
  for (const AppliedStep& step : native.core.steps().recent()) {
    auto& [number, contributions] = all.emplace_back();
    number = step.number;
    for (const Contribution& one : step.contributions) contributions.emplace_back(one.worker, one.sequence, one.examples);
  }
  return all;
}

// Whether all tables know what was changed since the view that was made the base under this number.
bool has_base(const View& view, int64_t base) {
  for (size_t t = 0; t < view.model().tables(); ++t) {
    if (!view.model().table(t).has_base(view.slot(), base)) return false;
  }
  return true;
}

nb::dict facts_of(const View& view, int64_t base = -1) {
  const Model& model = view.model();
  const bool delta = base >= 0 && model.tables() > 0 && has_base(view, base);
  nb::dict workers;
  for (const auto& [name, pushes] : view.pushes) workers[nb::str(name.data(), name.size())] = as_tuple(pushes);
  nb::list rows, written;
  bool tagged = false;
  for (size_t t = 0; t < model.tables(); ++t) {
    const Table& table = model.table(t);
    tagged = tagged || table.tagged();
    rows.append(table.view_rows(view.slot()));
    written.append(delta ? table.changed_rows(view.slot()) : table.view_rows(view.slot()));
  }
  nb::dict facts;
  facts["version"] = view.version;
  facts["step_base"] = view.step_base;
  facts["workers"] = workers;
  facts["rows"] = rows;
  facts["delta"] = delta;
  facts["written"] = written;
  facts["tagged"] = tagged;
  facts["trainable"] = nb::make_tuple(model.trainable().begin, model.trainable().end);
  facts["additive"] = nb::make_tuple(model.additive().begin, model.additive().end);
  facts["slots"] = model.spec().optimizer.slots();
  facts["spec"] = model.spec().json;
  return facts;
}

nb::dict cut(NativeServer& native, int64_t snapshot, const Sequences& admit_until, double timeout_s) {
  std::shared_ptr<View> view;
  {
    nb::gil_scoped_release released;
    view = native.core.cut(snapshot, admit_until, Admission::Seconds(timeout_s));
  }
  return facts_of(*view);
}

nb::dict view_facts(NativeServer& native, int64_t snapshot, int64_t base) { return facts_of(*native.core.views().get(snapshot), base); }

void set_base(NativeServer& native, int64_t snapshot) { native.core.saved(snapshot); }

std::optional<checkpoint::NonFinite> write_view(checkpoint::Writer& writer, const View& view, bool delta) {
  const Model& model = view.model();
  const Dense& dense = view.dense();
  const Scalar scalar = model.spec().scalar;
  const uint64_t trainable = model.trainable().size();
  const size_t trainable_bytes = trainable * model.weight_bytes();
  auto bad = checkpoint::write_dense(writer, scalar, dense.weights(), trainable, model.trainable().begin);
  if (bad) return bad;
  for (size_t s = 0; s < dense.slots(); ++s) writer.put(dense.slot(s), trainable_bytes);
  const uint64_t first = model.spec().trainable + model.additive().begin;
  bad = checkpoint::write_dense(writer, scalar, dense.weights() + trainable_bytes, model.additive().size(), first);
  for (size_t t = 0; t < model.tables() && !bad; ++t) {
    bad = checkpoint::write_table(writer, model.table(t), view.slot(), static_cast<int64_t>(t), delta);
  }
  return bad;
}

// Returns (bytes, crc32c, seconds of pauses, the weight that is not finite: (table or -1, id or index, value)) of the file, whole if
// there is none. `pause_s`: of pauses at most, for each byte.
nb::tuple save(NativeServer& native, int64_t snapshot, const std::string& path, const std::string& header, bool delta, double pause_s) {
  std::optional<checkpoint::NonFinite> bad;
  uint64_t bytes = 0;
  uint32_t crc = 0;
  double paused_s = 0;
  {
    nb::gil_scoped_release released;
    auto view = native.core.views().get(snapshot);
    checkpoint::Pace pace(view->haste, pause_s, [&] { return view->is_large(); });
    checkpoint::Writer writer(path, &pace);
    checkpoint::write_header(writer, header);
    bad = write_view(writer, *view, delta);
    if (!bad) writer.finish();
    bytes = writer.bytes();
    crc = writer.crc();
    paused_s = pace.paused_s();
  }
  if (!bad) return nb::make_tuple(bytes, crc, paused_s, nb::none());
  return nb::make_tuple(bytes, crc, paused_s, nb::make_tuple(bad->table, bad->at, bad->value));
}

void hurry(NativeServer& native, int64_t snapshot) {
  if (auto view = native.core.views().find(snapshot)) view->haste.hurry();
}

void begin_restore(NativeServer& native, const Spec& spec) {
  if (native.core.model() != nullptr) throw std::logic_error("this server already has parameters");
  spec.check();
  native.restored = nullptr;  // of a try that failed
  native.restored = native.core.new_model(spec);
}

// Reads `count` weights at `offset` of a file to [at, at + count) of a section: -2 additive weights, -1 trainable
// weights, 0, 1, … optimizer slots; `at` counts within this server's slice.
void restore_dense(NativeServer& native, const std::string& path, uint64_t offset, int section, uint64_t at, uint64_t count) {
  Model& model = *native.restoring();
  Dense& dense = model.dense_being_restored();
  const bool additive = section == -2;
  const uint64_t size = additive ? model.additive().size() : model.trainable().size();
  if (section < -2 || section >= static_cast<int>(dense.slots()) || at > size || count > size - at) {
    throw std::out_of_range("a slice outside of section " + std::to_string(section));
  }
  char* base = additive ? dense.weights() + model.trainable().size() * model.weight_bytes()
                        : section == -1 ? dense.weights() : dense.slot(static_cast<size_t>(section));
  checkpoint::Reader(path).get(offset, base + at * model.weight_bytes(), count * model.weight_bytes());
}

uint64_t restore_rows(NativeServer& native, const std::string& path, uint64_t offset, uint64_t rows, size_t table, bool tagged) {
  Model& model = *native.restoring();
  if (table >= model.tables()) throw std::out_of_range("there is no table " + std::to_string(table));
  return checkpoint::read_table(checkpoint::Reader(path), offset, rows, tagged, model.table(table),
                                [&](int64_t id) { return wire::owner(id, model.servers()) == model.server(); });
}

void restore_worker(NativeServer& native, const std::string& name, const PushesTuple& known) {
  auto [session, sequence, shard, attempt, offset] = known;
  native.core.admission().restore(name, {session, sequence, {shard, attempt, offset}, true});
}

void end_restore(NativeServer& native, int64_t version, int64_t step_base) {
  native.core.give(std::move(native.restoring()), version, step_base, true);
  native.restored = nullptr;
}

template <class Array>
nb::list as_list(const Array& counts) {
  nb::list list;
  for (const auto& count : counts) list.append(static_cast<uint64_t>(count));
  return list;
}

nb::dict statistics(NativeServer& native) {
  const Statistics& all = native.core.statistics();
  auto model = native.core.model();
  nb::dict found;
  const std::pair<const char*, const std::atomic<uint64_t>*> counts[] = {
      {"pulls", &all.pulls}, {"pulled_rows", &all.pulled_rows}, {"pulled_bytes", &all.pulled_bytes}, {"pushes", &all.pushes},
      {"pushed_rows", &all.pushed_rows}, {"pushed_bytes", &all.pushed_bytes}, {"repeated_pushes", &all.repeated_pushes},
      {"refused", &all.refused}, {"bad_frames", &all.bad_frames}, {"connections", &all.connections}};
  for (const auto& [name, count] : counts) found[name] = count->load();
  found["rows"] = model ? model->rows() : 0;
  found["memory_bytes"] = model ? model->memory_bytes() : 0;
  found["kept_bytes"] = native.core.kept() != nullptr ? native.core.kept()->bytes() : 0;
  found["staleness"] = as_list(all.staleness);
  found["pull_times"] = as_list(all.pull_time.counts());
  found["push_times"] = as_list(all.push_time.counts());
  return found;
}

}  // namespace
}  // namespace elasticdl::ps

void bind_ps(nb::module_& m) {
  using namespace elasticdl::ps;
  using Released = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<NativeServer>(m, "Server")
      .def(nb::init<uint32_t, uint32_t, const std::string&, const std::string&, const std::string&, uint32_t, const std::string&, const std::string&>(),
           "server"_a, "servers"_a, "key"_a, "certificate"_a = "", "private_key"_a = "", "turns"_a = 0, "memory"_a = "", "run"_a = "", Released())
      .def("take_on", [](NativeServer& native) { return native.core.take_on(); }, Released())
      .def_prop_ro("memory_id", [](NativeServer& native) { return native.core.kept() != nullptr ? native.core.kept()->id() : uint64_t{0}; })
      .def_prop_ro("discarded", [](NativeServer& native) { return native.core.discarded(); })
      .def("listen", [](NativeServer& native, const std::string& host, int port) { return native.listener.listen(host, port); },
           "host"_a, "port"_a = 0, Released())
      .def_prop_ro("most_connections", [](NativeServer& native) { return native.listener.most_connections(); })
      .def("stop", [](NativeServer& native) { native.listener.stop(); }, Released())
      .def("fence", &fence, "worker"_a)
      .def("gate", &gate, "timeout_s"_a, Released())
      .def("ungate", [](NativeServer& native) { native.core.admission().open(); }, Released())
      .def("apply_step", &apply_step, "number"_a, "contributions"_a, Released())
      .def("recent_steps", &recent_steps, Released())
      .def("cut", &cut, "snapshot"_a, "admit_until"_a, "timeout_s"_a)
      .def("view", &view_facts, "snapshot"_a, "base"_a = -1)
      .def("set_base", &set_base, "snapshot"_a, Released())
      .def("drop", [](NativeServer& native, int64_t snapshot) { native.core.views().drop(snapshot); }, "snapshot"_a, Released())
      .def("save", &save, "snapshot"_a, "path"_a, "header"_a, "delta"_a = false, "pause_s"_a = 0.0)
      .def("hurry", &hurry, "snapshot"_a, Released())
      .def("begin_restore", &begin_restore, "spec"_a, Released())
      .def("restore_dense", &restore_dense, "path"_a, "offset"_a, "section"_a, "at"_a, "count"_a, Released())
      .def("restore_rows", &restore_rows, "path"_a, "offset"_a, "rows"_a, "table"_a, "tagged"_a, Released())
      .def("restore_worker", &restore_worker, "name"_a, "known"_a, Released())
      .def("end_restore", &end_restore, "version"_a, "step_base"_a, Released())
      .def("statistics", &statistics)
      .def_prop_ro("version", [](NativeServer& native) { return native.core.admission().version(); })
      .def_prop_ro("has_state", [](NativeServer& native) { return native.core.model() != nullptr; });
}
