// Reading golden vectors into the core's types.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "specdec/drafter.h"
#include "specdec/json.h"
#include "specdec/lookahead.h"
#include "specdec/sampling.h"

namespace specdec::test {

inline Json golden(const std::string& assets, const std::string& name) {
  Json file = Json::read(assets + "/golden/" + name + ".json");
  check(file.at("kind").string() == name && file.at("schema_version").integer() == 1, name);
  return file;
}

// Parsed as double, then narrowed; null is minus infinity.
inline std::vector<float> floats(const Json& list) {
  std::vector<float> row;
  for (const Json& value : list.array()) {
    row.push_back(value.is_null() ? -std::numeric_limits<float>::infinity()
                                  : static_cast<float>(value.number()));
  }
  return row;
}

// Rows one after another.
inline std::vector<float> rows(const Json& list) {
  std::vector<float> all;
  for (const Json& row : list.array()) {
    const auto values = floats(row);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

inline std::vector<Token> tokens(const Json& list) {
  std::vector<Token> ids;
  for (const Json& id : list.array()) ids.push_back(id.integer());
  return ids;
}

inline Sampling sampling(const Json& spec) {
  return {spec.at("temperature").number(), spec.at("top_k").integer(), spec.at("top_p").number(),
          spec.at("min_p").number()};
}

inline std::uint64_t seed(const Json& value) {
  return value.is_string() ? std::stoull(value.string()) : static_cast<std::uint64_t>(value.number());
}

inline Costs costs(const Json& spec) {
  std::vector<std::pair<std::int32_t, double>> v;
  for (const Json& point : spec.at("v").array()) {
    v.emplace_back(point.array().at(0).integer(), point.array().at(1).number());
  }
  return {spec.at("c").number(), v};
}

inline std::unique_ptr<LookaheadPolicy> policy(const Json& spec) {
  const std::string& type = spec.at("type").string();
  if (type == "fixed") return std::make_unique<FixedLookahead>(spec.at("k").integer());
  if (type == "confidence") {
    return std::make_unique<ConfidenceStop>(spec.at("k").integer(), spec.at("threshold").number());
  }
  check(type == "gate", type);
  const Json& given = spec.at("costs");
  return std::make_unique<BreakEvenGate>(
      policy(spec.at("inner")), given.is_null() ? std::nullopt : std::optional(costs(given)),
      BreakEvenGate::Settings{spec.at("window").integer(), spec.at("probe").integer(),
                              spec.at("rest").integer(), spec.at("longest_rest").integer()});
}

inline Verifier verifier(const Json& spec) {
  return spec.is_string() && spec.string() == "match" ? Verifier::kMatch : Verifier::kRejection;
}

}  // namespace specdec::test
