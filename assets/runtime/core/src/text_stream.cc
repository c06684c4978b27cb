#include "specdec/text_stream.h"

#include "specdec/tokenizer.h"
#include "utf8_lead.h"

namespace specdec {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

}  // namespace

void Utf8Stream::push(std::string_view bytes, std::string& out) {
  for (const char byte : bytes) push(static_cast<unsigned char>(byte), out);
}

void Utf8Stream::push(unsigned char byte, std::string& out) {
  if (held_ > 0 && (byte < low_ || byte > high_)) finish(out);  // cut short; this byte begins anew
  if (held_ == 0) {
    const Utf8Lead lead = utf8_lead(byte);
    if (lead.length == 0) {
      out += kReplacement;
      return;
    }
    wanted_ = lead.length;
    low_ = lead.low;
    high_ = lead.high;
  } else {
    low_ = 0x80;
    high_ = 0xBF;
  }
  pending_[held_++] = static_cast<char>(byte);
  if (held_ < wanted_) return;
  out.append(pending_, held_);
  held_ = 0;
}

void Utf8Stream::finish(std::string& out) {
  if (held_ > 0) out += kReplacement;
  held_ = 0;
}

void TextStream::push(Token id, std::string& out) {
  if (skip_special_ && tokenizer_->is_special(id)) return;
  utf8_.push(tokenizer_->token_bytes(id), out);
}

}  // namespace specdec
