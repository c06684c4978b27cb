// Counter-based uniforms: one seed gives the same numbers in Python, C++, Swift and Kotlin.
//
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). There is no state to
// carry or to roll back: each draw is named by what it is for. Golden vectors: assets/golden/philox.json.
#pragma once

#include <array>
#include <cstdint>

namespace specdec {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

// Ten rounds: 128 random bits from a 128-bit counter under a 64-bit key.
PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key);

// What a uniform is drawn for: the third counter word, so that no two uses ever share a number.
enum class Purpose : std::uint32_t {
  kTarget = 0,  // a token from the target's distribution or the residual
  kDraft = 1,   // a token from the draft's distribution
  kAccept = 2,  // whether a drafted token is accepted
};

// Uniform numbers in [0, 1) of one generation, each named by (round, slot, purpose). A round is one target
// pass, slot i its i-th candidate.
class Uniforms {
 public:
  explicit Uniforms(std::uint64_t seed)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)} {}

  // The uniform of that name, with 53 random bits.
  double operator()(std::uint32_t round, std::uint32_t slot, Purpose purpose) const;

 private:
  PhiloxKey key_;
};

}  // namespace specdec
