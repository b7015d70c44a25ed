#include <cstdint>

#include "elasticdl/rpc/native/pool.h"

namespace elasticdl {
namespace {

// `id mod servers` without a division for powers of two and for ids below 2^32 (Lemire's fastmod).
class Owner {
 public:
  explicit Owner(uint32_t servers)
      : servers_(servers), mask_((servers & (servers - 1)) == 0 ? servers - 1 : 0), magic_(UINT64_MAX / servers + 1) {}

  uint32_t operator()(int64_t id) const {
    if (mask_ != 0) return static_cast<uint32_t>(id) & mask_;
    if (static_cast<uint64_t>(id) >> 32) return wire::owner(id, servers_);
    uint64_t low = magic_ * static_cast<uint64_t>(id);
    return static_cast<uint32_t>((static_cast<unsigned __int128>(low) * servers_) >> 64);
  }

 private:
  uint32_t servers_, mask_;
  uint64_t magic_;
};

}  // namespace

Split::Split(uint32_t servers, const std::vector<Ids>& ids) : servers_(servers), ids_(ids), counts_(servers * ids.size()) {
  if (servers_ == 1) {
    for (size_t t = 0; t < ids_.size(); ++t) counts_[t] = ids_[t].count;
    return;
  }
  Owner owner(servers_);
  for (size_t t = 0; t < ids_.size(); ++t) {
    if (ids_[t].count > UINT32_MAX) throw UserError("more than 2^32 - 1 ids in one request");
    for (size_t i = 0; i < ids_[t].count; ++i) ++counts_[owner(ids_[t].data[i]) * tables() + t];
  }
  spread();
}

void Split::spread() {
  size_t total = 0;
  for (size_t count : counts_) {
    begins_.push_back(total);
    total += count;
  }
  auto* grouped = reinterpret_cast<int64_t*>(grouped_.room(total * sizeof(int64_t) + 1));
  auto* positions = reinterpret_cast<uint32_t*>(positions_.room(total * sizeof(uint32_t) + 1));
  std::vector<size_t> at = begins_;
  Owner owner(servers_);
  for (size_t t = 0; t < ids_.size(); ++t) {
    for (size_t i = 0; i < ids_[t].count; ++i) {
      size_t slot = at[owner(ids_[t].data[i]) * tables() + t]++;
      grouped[slot] = ids_[t].data[i];
      positions[slot] = static_cast<uint32_t>(i);
    }
  }
}

const int64_t* Split::ids(uint32_t server, size_t table) const {
  if (servers_ == 1) return ids_[table].data;
  return reinterpret_cast<const int64_t*>(grouped_.data()) + begins_[server * tables() + table];
}

const uint32_t* Split::positions(uint32_t server, size_t table) const {
  if (servers_ == 1) return nullptr;
  return reinterpret_cast<const uint32_t*>(positions_.data()) + begins_[server * tables() + table];
}

}  // namespace elasticdl
