/* The public header is plain C. */
#include "specdec/specdec.h"

int main(void) {
  const specdec_options options = specdec_options_default();
  return specdec_abi_version() == SPECDEC_ABI_VERSION && options.lookahead == 4 && options.top_p == 1.0 ? 0
                                                                                                        : 1;
}
