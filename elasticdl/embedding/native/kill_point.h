// Where tests kill the process: between the steps of what must survive that. Nothing is left of it in a build that does
// not ask for it.
#pragma once

#ifdef ELASTICDL_KILL_POINTS
namespace elasticdl {
inline void (*at_kill_point)() = nullptr;
inline void kill_point() {
  if (at_kill_point != nullptr) at_kill_point();
}
}  // namespace elasticdl
#else
namespace elasticdl {
inline void kill_point() {}
}  // namespace elasticdl
#endif
