/* bulk_avx2: for processors with AVX2; built with -mavx2 and called only there. */
#if defined(__AVX2__)
#define BULK_WAYS bulk_avx2
#include "corpus/bulk_body.h"
#endif
