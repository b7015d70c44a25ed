// How the requests of one lane travel, by how long they have taken in each way.
//
// To pack and unpack takes about 6 ns a value, at both ends together. What it saves depends on the link, and on what else waits for
// it and for the cores. So all ways are tried, and the best one is used until they are tried again. They are tried in turn, a few
// requests each: a load that comes or goes meets all of them, and the pushes of a step mostly travel like its pull.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <optional>
#include <vector>

namespace elasticdl {

enum class Encoding : unsigned { plain = 0, packed = 1, bfloat16 = 2 };
constexpr const char* kEncodingNames[] = {"plain", "packed", "bfloat16"};

class EncodingChoice {
 public:
  // Whether bfloat16 may be chosen, too. Begins anew.
  void begin(bool may_round) {
    ways_ = may_round ? 3 : 2;
    chosen_ = Encoding::plain;
    period_ = kShortest;
    try_again_in(0);
  }
  // What is in use but for trials. Thread-safe.
  Encoding chosen() const { return chosen_; }
  // For the next request.
  Encoding next() const {
    if (given_) return *given_;
    return left_ > 0 ? chosen() : static_cast<Encoding>(tried_ / kInTurn % ways_);
  }
  // The last request took so long. `plain_bytes`: of its plain frames, both ways. Counts only if it travelled like `next`.
  void took(Encoding encoding, size_t plain_bytes, double seconds) {
    if (plain_bytes < kLeastBytes || given_ || encoding != next()) return;
    const double pace = seconds / static_cast<double>(plain_bytes);
    if (encoding == Encoding::plain && pace < kFastPace) {  // the link is fast for certain: nothing to try
      chosen_ = Encoding::plain;
      return try_again_in(kLongest);
    }
    if (left_ > 0) {
      --left_;
      return;
    }
    paces_[static_cast<size_t>(encoding)].push_back(pace);
    ++tried_;
    // A few requests suffice to confirm that packing pays: on such a link the plain ones of a trial are a good part of all bytes.
    const bool confirmed = chosen_ != Encoding::plain && tried_ == ways_ * kInTurn && best() == chosen_;
    if (!confirmed && tried_ < ways_ * kSamples) return;
    chosen_ = best();
    try_again_in(period_);
    period_ = std::min(period_ * 2, kLongest);
  }
  void give(Encoding encoding) {
    given_ = encoding;
    chosen_ = encoding;
  }

 private:
  static constexpr size_t kLeastBytes = 64 << 10;  // smaller requests measure the latency
  static constexpr size_t kSamples = 12, kInTurn = 4;
  // Soon at first, since other workers are still starting. A worker may make 4 requests a second only.
  static constexpr size_t kShortest = 16, kLongest = 512;
  static constexpr double kFastPace = 1 / 400e6, kSlowPace = 1 / 100e6;  // s/byte
  // The part of the time of plain frames that each may take. Another way must be clearly faster: cores are for training, too,
  // and every bit is worth something. On a slow link a worker sees only a part of what it saves: it waits for others' bytes, too.
  static constexpr std::array<double, 3> kParts = {1.0, 0.9, 0.7}, kPartsIfSlow = {1.0, 1.0, 0.85};

  void try_again_in(size_t requests) {
    left_ = requests;
    tried_ = 0;
    for (auto& paces : paces_) paces.clear();
  }

  Encoding best() {
    const auto& parts = median(paces_[0]) > kSlowPace ? kPartsIfSlow : kParts;
    size_t best = 0;
    for (size_t way = 1; way < ways_; ++way) {
      if (median(paces_[way]) / parts[way] < median(paces_[best]) / parts[best]) best = way;
    }
    return static_cast<Encoding>(best);
  }

  static double median(std::vector<double>& values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  }

  size_t ways_ = 2;
  size_t left_ = 0;   // requests until all ways are tried
  size_t tried_ = 0;  // requests of this trial
  size_t period_ = kShortest;
  std::array<std::vector<double>, 3> paces_;
  std::atomic<Encoding> chosen_{Encoding::plain};
  std::optional<Encoding> given_;
};

}  // namespace elasticdl
