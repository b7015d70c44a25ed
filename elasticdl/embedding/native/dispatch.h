// Compiles the file that ELASTICDL_KERNELS names once for each instruction set, in a namespace of its own, and
// picks one when the process starts. That file must not include anything: a standard library's inline function
// compiled for AVX-512 could be the copy that the linker keeps for everybody. No include guard: one use per .cc.
//
// To use: #define ELASTICDL_KERNELS "…_kernels.h", include this inside namespace elasticdl, then
// ELASTICDL_BEST(name) is a pointer to the best `name` of that file for this machine.

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ELASTICDL_BEST(name)                                                          \
  (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") ? avx512::name \
   : __builtin_cpu_supports("avx2")                                       ? avx2::name   \
                                                                          : baseline::name)
#pragma GCC push_options
#pragma GCC target("avx2")
namespace avx2 {
#include ELASTICDL_KERNELS
}
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,prefer-vector-width=512")
namespace avx512 {
#include ELASTICDL_KERNELS
}
#pragma GCC pop_options
#else
#define ELASTICDL_BEST(name) baseline::name
#endif
namespace baseline {
#include ELASTICDL_KERNELS
}
