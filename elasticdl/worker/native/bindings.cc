// Python bindings of what a worker needs without the interpreter's lock.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "interpreter_watch.h"

namespace nb = nanobind;

void bind_worker(nb::module_& m) {
  using elasticdl::worker::InterpreterWatch;
  using elasticdl::worker::PythonThread;
  nb::class_<InterpreterWatch>(m, "InterpreterWatch")
      .def(nb::init<double, int, int, std::string>(), nb::arg("limit_s"), nb::arg("output"), nb::arg("signal"), nb::arg("folder"))
      .def_prop_ro("channel", &InterpreterWatch::channel)
      .def("start", &InterpreterWatch::start)
      .def(
          "alive",
          [](InterpreterWatch& self, const std::vector<std::pair<int, std::string>>& threads) {
            std::vector<PythonThread> known;
            for (const auto& [id, name] : threads) known.push_back({static_cast<pid_t>(id), name});
            nb::gil_scoped_release release;
            self.alive(std::move(known));
          },
          nb::arg("threads"));
}
