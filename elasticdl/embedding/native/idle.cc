#include "elasticdl/embedding/native/idle.h"

#include <algorithm>
#include <cmath>

namespace elasticdl {
namespace {

constexpr double kNegligible = 1e-12;
constexpr uint64_t kMostCorrections = uint64_t{1} << 16;

// Keras' constants are float32 where TensorFlow makes them so.
double as_cast(double number) { return static_cast<double>(static_cast<float>(number)); }

}  // namespace

IdleSteps::Powers::Powers(double base) : base_(base), low_(kPowers), high_(kPowers) {
  for (uint64_t k = 0; k < kPowers; ++k) {
    low_[k] = std::pow(base, static_cast<double>(k));
    high_[k] = high(k);
  }
}

double IdleSteps::Powers::high(uint64_t times) const { return std::pow(base_, static_cast<double>(times * kPowers)); }

IdleSteps::IdleSteps(const OptimizerSpec& spec) {
  if (spec.kind == OptimizerSpec::SGD && spec.momentum > 0.0) {
    any_ = true;
    ratio_ = as_cast(spec.momentum);
    nesterov_ = spec.nesterov;
    momentum_ = Powers(ratio_);
    return;
  }
  if (spec.kind != OptimizerSpec::ADAM) return;
  // A row moves by m / sqrt(v), of which each idle step leaves this share. Where it does not shrink there is no sum.
  ratio_ = spec.amsgrad ? spec.beta_1 : spec.beta_1 / std::sqrt(spec.beta_2);
  any_ = adam_ = ratio_ > 0.0 && ratio_ < 1.0;
  if (!any_) return;
  momentum_ = Powers(spec.beta_1);
  second_ = Powers(spec.beta_2);
  movement_ = Powers(ratio_);
  // From the last step at which the correction is not 1 yet, backwards: H(s) = ratio * (c(s + 1) + H(s + 1)).
  uint64_t steps = 1;
  while (steps < kMostCorrections && std::pow(std::max(spec.beta_1, spec.beta_2), static_cast<double>(steps)) > kNegligible) steps *= 2;
  corrections_.resize(steps + 1);
  corrections_[steps] = ratio_ / (1.0 - ratio_);
  for (uint64_t s = steps; s-- > 0;) {
    const double step = static_cast<double>(s + 1);
    const double correction = std::sqrt(1.0 - std::pow(as_cast(spec.beta_2), step)) / (1.0 - std::pow(as_cast(spec.beta_1), step));
    corrections_[s] = ratio_ * (correction + corrections_[s + 1]);
  }
}

double IdleSteps::corrections_after(uint64_t last) const { return corrections_[std::min<uint64_t>(last, corrections_.size() - 1)]; }

Catchup IdleSteps::after(uint64_t last, uint64_t idle, double rate) const {
  return {movement(last, idle, rate), momentum_(idle), adam_ ? second_(idle) : 0.0};
}

double IdleSteps::movement(uint64_t last, uint64_t idle, double rate) const {
  if (adam_) return rate * (corrections_after(last) - movement_(idle) * corrections_after(last + idle));
  const double moved = ratio_ == 1.0 ? static_cast<double>(idle) : ratio_ * (1.0 - momentum_(idle)) / (1.0 - ratio_);
  return nesterov_ ? ratio_ * moved : moved;
}

}  // namespace elasticdl
