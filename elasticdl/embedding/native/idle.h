// What a rule does to a row in steps that bring it no gradient: in Keras momentum and Adam's averages move it then, too. A
// table makes up for all such steps at once, when the row is next read or updated.
#pragma once
#include <cstdint>
#include <vector>

#include "elasticdl/embedding/native/rule.h"

namespace elasticdl {

// Step numbers count the model's updates from 1. Thread-safe.
class IdleSteps {
 public:
  explicit IdleSteps(const OptimizerSpec& spec);

  // Whether rows move at all without a gradient. No: the rest must not be called.
  bool any() const { return any_; }
  // Of `idle` steps, at least 1, after step `last`. `rate` is the learning rate of that step; Adam's steps are taken at it, too.
  Catchup after(uint64_t last, uint64_t idle, double rate) const;

 private:
  static constexpr uint64_t kPowers = 1024;

  // 0^0, ratio^0, ... by powers that std::pow gives, so that the reference in Python gives the same bits.
  static std::vector<double> powers_of(double base);
  static double power(const std::vector<double>& powers, uint64_t exponent);
  // The sum over j >= 1 of Adam's bias correction of step `last` + j times ratio^j.
  double corrections_after(uint64_t last) const;

  bool any_ = false, adam_ = false, nesterov_ = false;
  double ratio_ = 0.0;
  std::vector<double> momentum_, second_, movement_;  // powers: of slot 0's factor, of slot 1's, of the ratio
  std::vector<double> corrections_;                   // by step
};

}  // namespace elasticdl
