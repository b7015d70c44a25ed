// Synchronous training: keeps the gradients of an open step, and applies the mean of those that the master names, once.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "elasticdl/ps/native/admission.h"
#include "elasticdl/ps/native/model.h"

namespace elasticdl::ps {

// A push that waits for its step.
struct Gradient {
  PushStamp stamp;
  double learning_rate = 0;
  std::vector<char> dense;                   // empty, or Model::dense_bytes()
  std::vector<std::vector<int64_t>> ids;     // by table, distinct
  std::vector<std::vector<char>> gradients;  // by table, of each id's weights
};

// One gradient of a step, by the number of its push, and the examples that it is the mean of.
struct Contribution {
  std::string worker;
  int64_t sequence = 0;
  double examples = 0;
};

class Steps {
 public:
  // `turns`: of one step, at most.
  Steps(Admission& admission, uint32_t turns) : admission_(admission), most_(2 * size_t{turns} + 8) {}

  // Keeps a push until its step. False if it was applied before. Throws as Admission::check_push.
  bool stage(const std::string& worker, Gradient gradient);
  // Applies the mean of these gradients as one update, and forgets all others. A repeated number does nothing. A
  // gradient that this server does not have is left out: it was lost with the server's previous process. Returns the version.
  int64_t apply(Model& model, int64_t number, const std::vector<Contribution>& contributions);

 private:
  struct Share {
    const Gradient* gradient;
    double examples;
  };
  std::vector<Share> take(const std::vector<Contribution>& contributions, std::vector<std::pair<std::string, PushStamp>>& stamps) const;

  Admission& admission_;
  const size_t most_;    // gradients kept of a worker
  std::mutex mutex_;     // guards all below; held while a step is applied
  int64_t applied_ = 0;  // number of the last step
  std::map<std::string, std::map<int64_t, Gradient>> staged_;  // by worker, by sequence
};

}  // namespace elasticdl::ps
