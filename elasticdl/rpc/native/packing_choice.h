// Whether packed frames pay, by how long requests of one lane have taken with them and without.
//
// To pack and unpack takes about 6 ns a value, at both ends together. What it saves depends on the link, and on what else waits for
// it and for the cores. So both are tried, and the faster one is used until they are tried again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace elasticdl {

class PackingChoice {
 public:
  // For the next request.
  bool packs() const { return given_.value_or(trying_ != chosen_); }
  // The last request took so long, packed or not as `packs` said. `plain_bytes`: of its plain frames, both ways.
  void took(size_t plain_bytes, double seconds) {
    if (plain_bytes < kLeastBytes || given_) return;
    const double pace = seconds / static_cast<double>(plain_bytes);
    std::vector<double>& paces = paces_[packs() ? 1 : 0];
    paces.push_back(pace);
    if (!packs() && pace < kFastPace) {  // the link is fast for certain: nothing to try
      chosen_ = trying_ = false;
      return next_phase(kPeriod);
    }
    if (--left_ > 0) return;
    if (trying_) chosen_ = median(paces_[1]) < kGain * median(paces_[0]);
    trying_ = !trying_;
    next_phase(trying_ ? kSamples : kPeriod);
  }
  void give(bool packs) { given_ = packs; }

 private:
  static constexpr size_t kLeastBytes = 64 << 10;  // smaller requests measure the latency
  static constexpr size_t kSamples = 8, kPeriod = 512;  // a worker may make 4 a second only
  static constexpr double kFastPace = 1 / 400e6;  // s/byte
  static constexpr double kGain = 0.9;            // the other one must be clearly faster: cores are for training, too

  void next_phase(size_t requests) {
    left_ = requests;
    // The newest of the choice that is in use, all new ones of the other.
    for (size_t k = 0; k < 2; ++k) {
      auto& paces = paces_[k];
      const size_t kept = trying_ && k == static_cast<size_t>(packs()) ? 0 : std::min(paces.size(), kSamples);
      paces.erase(paces.begin(), paces.end() - static_cast<std::ptrdiff_t>(kept));
    }
  }

  static double median(std::vector<double> values) {
    if (values.size() > kSamples) values.erase(values.begin(), values.end() - static_cast<std::ptrdiff_t>(kSamples));
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }

  std::vector<double> paces_[2];  // plain, packed
  size_t left_ = kSamples;        // requests of this phase
  bool chosen_ = false;
  bool trying_ = false;           // the other one than what is chosen
  std::optional<bool> given_;
};

}  // namespace elasticdl
