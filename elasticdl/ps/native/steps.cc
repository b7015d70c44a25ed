#include "elasticdl/ps/native/steps.h"

#include <algorithm>
#include <tuple>

namespace elasticdl::ps {
namespace {

struct Part {
  const char* values;
  double examples;
};

// The mean weighted by examples, summed in the order of the parts and in double precision.
void mean(Scalar scalar, const std::vector<Part>& parts, double examples, size_t size, char* out) {
  with_type(scalar, [&](auto zero) {
    using T = decltype(zero);
    for (size_t i = 0; i < size; ++i) {
      double sum = 0;
      for (const Part& part : parts) sum += part.examples * reinterpret_cast<const T*>(part.values)[i];
      reinterpret_cast<T*>(out)[i] = static_cast<T>(sum / examples);
    }
  });
}

// A row of a table in one gradient.
struct Row {
  int64_t id;
  size_t part;  // its gradient: rows of an id are summed in this order
  const char* values;
};

}  // namespace

bool Steps::stage(const std::string& worker, Gradient gradient) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!admission_.check_push(worker, gradient.stamp)) return false;
  auto& mine = staged_[worker];
  // Numbers of another session mean other pushes.
  if (!mine.empty() && mine.begin()->second.stamp.session != gradient.stamp.session) mine.clear();
  const int64_t sequence = gradient.stamp.sequence;
  mine.insert_or_assign(sequence, std::move(gradient));
  // A worker has a turn for each push, so it has at most one step's here beside those that were late for the step
  // before. Only a worker that pushes without turns loses one.
  if (mine.size() > most_) mine.erase(mine.begin());
  return true;
}

std::vector<Steps::Share> Steps::take(const std::vector<Contribution>& contributions,
                                      std::vector<std::pair<std::string, PushStamp>>& stamps) const {
  std::vector<Share> shares;
  for (const Contribution& one : contributions) {
    auto worker = staged_.find(one.worker);
    if (worker == staged_.end()) continue;
    auto found = worker->second.find(one.sequence);
    if (found == worker->second.end()) continue;
    shares.push_back({&found->second, one.examples});
    stamps.emplace_back(one.worker, found->second.stamp);
  }
  // In the order of the data, whoever computed what: the same gradients give the same bits.
  std::sort(shares.begin(), shares.end(), [](const Share& a, const Share& b) {
    const Applied &left = a.gradient->stamp.applied, &right = b.gradient->stamp.applied;
    return std::tie(left.shard, left.offset) < std::tie(right.shard, right.offset);
  });
  return shares;
}

// Ends the process if memory runs out half-way (noexcept), as a push does: the job restores a dead server.
int64_t Steps::apply(Model& model, int64_t number, const std::vector<Contribution>& contributions) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (number <= applied_) return admission_.version();
  const int64_t step = admission_.begin_step();
  std::vector<std::pair<std::string, PushStamp>> stamps;
  [&]() noexcept {
    const std::vector<Share> shares = take(contributions, stamps);
    double examples = 0;
    for (const Share& share : shares) examples += share.examples;
    if (shares.empty() || !(examples > 0)) return;
    // All were computed at one version, so all have the same rate.
    const StepContext context{shares.front().gradient->learning_rate, step};
    std::vector<Part> parts;
    const Scalar scalar = model.spec().scalar;
    std::vector<char> result(model.dense_bytes());
    for (const Share& share : shares) {
      if (!share.gradient->dense.empty()) parts.push_back({share.gradient->dense.data(), share.examples});
    }
    if (!parts.empty()) {
      mean(scalar, parts, examples, model.dense_size(), result.data());
      model.apply_dense(result.data(), context);
    }
    for (size_t t = 0; t < model.tables(); ++t) {
      const size_t dim = model.spec().tables[t].dim, row_bytes = model.row_bytes(t);
      std::vector<Row> rows;
      for (size_t s = 0; s < shares.size(); ++s) {
        const Gradient& gradient = *shares[s].gradient;
        for (size_t i = 0; i < gradient.ids[t].size(); ++i) rows.push_back({gradient.ids[t][i], s, gradient.gradients[t].data() + i * row_bytes});
      }
      std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return std::tie(a.id, a.part) < std::tie(b.id, b.part); });
      std::vector<int64_t> ids;
      result.resize(rows.size() * row_bytes);
      for (size_t begin = 0, end; begin < rows.size(); begin = end) {
        parts.clear();
        for (end = begin; end < rows.size() && rows[end].id == rows[begin].id; ++end) parts.push_back({rows[end].values, shares[rows[end].part].examples});
        mean(scalar, parts, examples, dim, result.data() + ids.size() * row_bytes);
        ids.push_back(rows[begin].id);
      }
      if (!ids.empty()) model.apply_rows(t, ids.data(), ids.size(), result.data(), context);
    }
  }();
  applied_ = number;
  // What is left was computed for this step or an earlier one, and came too late.
  staged_.clear();
  return admission_.finish_step(stamps);
}

}  // namespace elasticdl::ps
