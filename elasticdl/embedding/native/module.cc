#include <nanobind/nanobind.h>
// One function a part of the extension; each registers its own classes.
void bind_data(nanobind::module_&);
void bind_embedding(nanobind::module_&);
void bind_rpc(nanobind::module_&);
void bind_ps(nanobind::module_&);
void bind_worker(nanobind::module_&);

NB_MODULE(_native, m) {
  m.doc() = "Hot paths of elasticdl.";
  bind_data(m);
  bind_embedding(m);
  bind_rpc(m);
  bind_ps(m);
  bind_worker(m);
}
