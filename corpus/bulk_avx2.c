/* bulk_avx2: for processors with AVX2; built with -mavx2 and called only there. */
#include "corpus/bulk.h"

#if defined(__AVX2__)
#define BULK_HASH    bulk_hash_avx2
#define BULK_SCATTER bulk_scatter_avx2
#include "corpus/bulk_body.h"
#endif
