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
  // Its movement alone, which is what a reader of weights needs.
  double movement(uint64_t last, uint64_t idle, double rate) const;

 private:
  // base^exponent by a product of two that std::pow gave. The reference in Python multiplies the same two: the bits are equal.
  class Powers {
   public:
    Powers() = default;
    explicit Powers(double base);
    double operator()(uint64_t exponent) const {
      return low_[exponent % kPowers] * (exponent / kPowers < kPowers ? high_[exponent / kPowers] : high(exponent / kPowers));
    }

   private:
    static constexpr uint64_t kPowers = 1024;
    double high(uint64_t times) const;

    double base_ = 0.0;
    std::vector<double> low_, high_;  // exponents 0, 1, ...; 0, kPowers, ...
  };

  // The sum over j >= 1 of Adam's bias correction of step `last` + j times ratio^j.
  double corrections_after(uint64_t last) const;

  bool any_ = false, adam_ = false, nesterov_ = false;
  double ratio_ = 0.0;
  Powers momentum_, second_, movement_;  // of slot 0's factor, of slot 1's, of the ratio
  std::vector<double> corrections_;      // by step
};

}  // namespace elasticdl
