#include "specdec/philox.h"

namespace specdec {

PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = 0xD2511F53ull * counter[0];
    const std::uint64_t b = 0xCD9E8D57ull * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};  // the additions wrap
  }
  return counter;
}

double Uniforms::operator()(std::uint32_t round, std::uint32_t slot, Purpose purpose) const {
  const auto words = philox4x32({round, slot, static_cast<std::uint32_t>(purpose), 0}, key_);
  return ((words[0] >> 5) * 67108864.0 + (words[1] >> 6)) / 9007199254740992.0;
}

}  // namespace specdec
