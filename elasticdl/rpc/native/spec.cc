#include "elasticdl/rpc/native/spec.h"

namespace elasticdl {
namespace {

constexpr uint64_t kMaxDim = 1 << 16;
constexpr uint64_t kMaxDense = uint64_t{1} << 28;  // float32[2^28] is the largest frame

struct Fixed {
  uint32_t rule;
  uint32_t nesterov;
  uint32_t amsgrad;
  uint32_t tables;
  double constants[10];
  uint64_t trainable;
  uint64_t additive;
  uint64_t json_bytes;
};

struct FixedTable {
  uint64_t seed;
  uint32_t dim;
  uint32_t initializer;
  float a;
  float b;
  uint64_t name_bytes;
};

OptimizerSpec optimizer_of(const Fixed& fixed) {
  if (fixed.rule > OptimizerSpec::FTRL) throw UserError("update rule " + std::to_string(fixed.rule) + " is unknown");
  OptimizerSpec spec;
  spec.kind = static_cast<OptimizerSpec::Kind>(fixed.rule);
  spec.nesterov = fixed.nesterov != 0;
  spec.amsgrad = fixed.amsgrad != 0;
  double* const fields[] = {&spec.momentum, &spec.beta_1, &spec.beta_2, &spec.epsilon, &spec.initial_accumulator_value,
                            &spec.learning_rate_power, &spec.l1, &spec.l2, &spec.l2_shrinkage, &spec.beta};
  for (size_t i = 0; i < std::size(fields); ++i) *fields[i] = fixed.constants[i];
  return spec;
}

Fixed fixed_of(const Spec& spec) {
  const OptimizerSpec& rule = spec.optimizer;
  Fixed fixed{};
  fixed.rule = rule.kind;
  fixed.nesterov = rule.nesterov;
  fixed.amsgrad = rule.amsgrad;
  const double fields[] = {rule.momentum, rule.beta_1, rule.beta_2, rule.epsilon, rule.initial_accumulator_value,
                           rule.learning_rate_power, rule.l1, rule.l2, rule.l2_shrinkage, rule.beta};
  for (size_t i = 0; i < std::size(fields); ++i) fixed.constants[i] = fields[i];
  fixed.tables = static_cast<uint32_t>(spec.tables.size());
  fixed.trainable = spec.trainable;
  fixed.additive = spec.additive;
  fixed.json_bytes = spec.json.size();
  return fixed;
}

}  // namespace

std::string Spec::encode() const {
  wire::Writer writer;
  writer.put(fixed_of(*this)).put(optimizer.weight_decay);
  for (const TableShape& table : tables) {
    writer.put(FixedTable{table.seed, table.dim, table.initializer.kind, table.initializer.a, table.initializer.b, table.name.size()});
    writer.text(table.name);
  }
  writer.text(json);
  return std::move(writer.bytes());
}

Spec Spec::decode(const char* data, size_t bytes) {
  wire::Cursor cursor(data, bytes);
  Fixed fixed = cursor.take<Fixed>();
  Spec spec;
  spec.optimizer = optimizer_of(fixed);
  spec.optimizer.weight_decay = cursor.take<double>();
  if (fixed.trainable > kMaxDense || fixed.additive > kMaxDense) throw UserError("a model of more than 2^28 dense weights");
  spec.trainable = fixed.trainable;
  spec.additive = fixed.additive;
  if (fixed.tables > wire::kMaxTables) throw UserError(std::to_string(fixed.tables) + " tables, at most 4096 are possible");
  for (uint32_t t = 0; t < fixed.tables; ++t) {
    FixedTable table = cursor.take<FixedTable>();
    if (table.dim == 0 || table.dim > kMaxDim || table.initializer > InitializerSpec::TRUNCATED_NORMAL) {
      throw UserError("table " + std::to_string(t) + " has dimension " + std::to_string(table.dim) + ", initializer " +
                      std::to_string(table.initializer) + ": neither may be out of range");
    }
    InitializerSpec initializer{static_cast<InitializerSpec::Kind>(table.initializer), table.a, table.b};
    spec.tables.push_back({cursor.text(table.name_bytes), table.dim, initializer, table.seed});
  }
  spec.json = cursor.text(fixed.json_bytes);
  cursor.end();
  return spec;
}

}  // namespace elasticdl
