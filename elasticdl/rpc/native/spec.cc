#include "elasticdl/rpc/native/spec.h"

#include <array>
#include <iterator>

namespace elasticdl {
namespace {

constexpr uint64_t kMaxDenseBytes = uint64_t{1} << 30;  // the largest frame

struct Fixed {
  uint32_t rule;
  uint32_t nesterov;
  uint32_t amsgrad;
  uint32_t tables;
  double constants[10];
  uint64_t trainable;
  uint64_t additive;
  uint64_t json_bytes;
  uint32_t scalar;
  uint32_t padding;
};

struct FixedTable {
  uint64_t seed;
  uint32_t dim;
  uint32_t initializer;
  float a;
  float b;
  uint64_t name_bytes;
  uint32_t whole;
  uint32_t padding;
};

// Pointers to the constants of a rule, in the order of Fixed::constants.
template <class Rule>
auto constants_of(Rule& rule) {
  return std::array{&rule.momentum, &rule.beta_1, &rule.beta_2, &rule.epsilon, &rule.initial_accumulator_value,
                    &rule.learning_rate_power, &rule.l1, &rule.l2, &rule.l2_shrinkage, &rule.beta};
}

OptimizerSpec optimizer_of(const Fixed& fixed) {
  if (fixed.rule >= std::size(OptimizerSpec::kNames)) throw UserError("update rule " + std::to_string(fixed.rule) + " is unknown");
  OptimizerSpec spec;
  spec.kind = static_cast<OptimizerSpec::Kind>(fixed.rule);
  spec.nesterov = fixed.nesterov != 0;
  spec.amsgrad = fixed.amsgrad != 0;
  const auto fields = constants_of(spec);
  static_assert(std::size(fields) == std::size(Fixed{}.constants));
  for (size_t i = 0; i < fields.size(); ++i) *fields[i] = fixed.constants[i];
  return spec;
}

Fixed fixed_of(const Spec& spec) {
  const OptimizerSpec& rule = spec.optimizer;
  Fixed fixed{};
  fixed.rule = rule.kind;
  fixed.nesterov = rule.nesterov;
  fixed.amsgrad = rule.amsgrad;
  const auto fields = constants_of(rule);
  for (size_t i = 0; i < fields.size(); ++i) fixed.constants[i] = *fields[i];
  fixed.tables = static_cast<uint32_t>(spec.tables.size());
  fixed.trainable = spec.trainable;
  fixed.additive = spec.additive;
  fixed.json_bytes = spec.json.size();
  fixed.scalar = static_cast<uint32_t>(spec.scalar);
  return fixed;
}

}  // namespace

void Spec::check() const {
  const uint64_t most = kMaxDenseBytes / bytes_of(scalar);
  if (trainable > most || additive > most) throw UserError("a model of more than " + std::to_string(most) + " dense weights");
  if (tables.size() > wire::kMaxTables) throw UserError(std::to_string(tables.size()) + " tables, at most 4096 are possible");
  for (size_t t = 0; t < tables.size(); ++t) {
    if (tables[t].dim == 0 || tables[t].dim > Table::kMaxDim) {
      throw UserError("table " + std::to_string(t) + " has dimension " + std::to_string(tables[t].dim) + ": expected 1 to 65536");
    }
    if (!wire::is_utf8(tables[t].name)) throw UserError("the name of table " + std::to_string(t) + " is not UTF-8");
  }
  if (!wire::is_utf8(json)) throw UserError("a spec's JSON is not UTF-8");
}

std::string Spec::encode() const {
  wire::Writer writer;
  writer.put(fixed_of(*this)).put(optimizer.weight_decay);
  for (const TableShape& table : tables) {
    writer.put(FixedTable{table.seed, table.dim, table.initializer.kind, table.initializer.a, table.initializer.b, table.name.size(), table.whole, 0});
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
  if (fixed.scalar >= std::size(kScalarNames)) throw UserError("type of weights " + std::to_string(fixed.scalar) + " is unknown");
  spec.scalar = static_cast<Scalar>(fixed.scalar);
  spec.trainable = fixed.trainable;
  spec.additive = fixed.additive;
  if (fixed.tables > wire::kMaxTables) throw UserError(std::to_string(fixed.tables) + " tables, at most 4096 are possible");
  for (uint32_t t = 0; t < fixed.tables; ++t) {
    FixedTable table = cursor.take<FixedTable>();
    if (table.initializer >= std::size(InitializerSpec::kNames)) {
      throw UserError("table " + std::to_string(t) + " has initializer " + std::to_string(table.initializer) + ", which is unknown");
    }
    InitializerSpec initializer{static_cast<InitializerSpec::Kind>(table.initializer), table.a, table.b};
    spec.tables.push_back({cursor.text(table.name_bytes), table.dim, initializer, table.seed, table.whole != 0});
  }
  spec.json = cursor.text(fixed.json_bytes);
  cursor.end();
  spec.check();
  return spec;
}

}  // namespace elasticdl
