#include <nanobind/nanobind.h>
// One function a part of the extension; each registers its own classes.
void bind_data(nanobind::module_&);
void bind_embedding(nanobind::module_&);

NB_MODULE(_native, m) {
  m.doc() = "Hot paths of elasticdl.";
  bind_data(m);
  bind_embedding(m);
}
