#include "elasticdl/embedding/native/initializer.h"

namespace elasticdl {
namespace {
constexpr uint64_t kStep = 0x9e3779b97f4a7c15ULL;
constexpr size_t kBlock = 64;
// P(z < -2) of the normal distribution.
constexpr double kBelowMinusTwo = 0.022750131948179195;
// Coefficients of AS 241, from the constant term up: near the middle, and in the tails as far as 32 bits reach.
constexpr double kNearTop[8] = {3.3871328727963666080e0, 1.3314166789178437745e+2, 1.9715909503065514427e+3, 1.3731693765509461125e+4,
                                4.5921953931549871457e+4, 6.7265770927008700853e+4, 3.3430575583588128105e+4, 2.5090809287301226727e+3};
constexpr double kNearBottom[8] = {1.0, 4.2313330701600911252e+1, 6.8718700749205790830e+2, 5.3941960214247511077e+3,
                                   2.1213794301586595867e+4, 3.9307895800092710610e+4, 2.8729085735721942674e+4, 5.2264952788528545610e+3};
constexpr double kFarTop[8] = {1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0,
                               1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4};
constexpr double kFarBottom[8] = {1.0, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1,
                                  1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9};

#define ELASTICDL_KERNELS "elasticdl/embedding/native/initializer_kernels.h"
#include "elasticdl/embedding/native/dispatch.h"

using Initialise = void (*)(const InitializerSpec&, uint64_t, int64_t, size_t, void*);
}  // namespace

void initialise_weights(const InitializerSpec& spec, Scalar scalar, uint64_t seed, int64_t id, size_t dim, void* weights) {
  static const Initialise best[] = {ELASTICDL_BEST(initialise<float>), ELASTICDL_BEST(initialise<double>)};
  best[static_cast<size_t>(scalar)](spec, seed, id, dim, weights);
}

}  // namespace elasticdl
