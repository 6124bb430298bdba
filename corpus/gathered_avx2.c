/* gathered_avx2: for processors with AVX2; built with -mavx2 and called only there. */
#include "corpus/gathered.h"

#if defined(__AVX2__)
#define GATHERED_HASH gathered_hash_avx2
#include "corpus/gathered_body.h"
#endif
