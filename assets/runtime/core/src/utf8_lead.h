// The well-formed byte sequences of UTF-8 (Unicode standard, table 3-7).
#pragma once

#include <cstddef>

namespace specdec {

struct Utf8Lead {
  std::size_t length;       // bytes of the character; 0: no character begins with this byte
  unsigned char low, high;  // range of its second byte; the others are 0x80 to 0xBF
};

constexpr Utf8Lead utf8_lead(unsigned char byte) {
  if (byte < 0x80) return {1, 0x80, 0xBF};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace specdec
