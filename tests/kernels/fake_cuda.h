/* fake_cuda: a libcuda.so.1 whose device is the emulator.
 *
 * A test links it, so that the library's dlopen of that name finds it. Launches run at once and
 * fail with the emulator's sentence as the error's name. */
#ifndef BALLAST_TESTS_FAKE_CUDA_H
#define BALLAST_TESTS_FAKE_CUDA_H

#include "tests/kernels/emulator.h"

struct fake_cuda {
    enum emulator_schedule schedule;
    uint64_t seed;
    int resident;
    int sms;
    int major;
    int minor;
    int fail_at;      /* which call from now on fails; 0: none */
    int missing_call; /* cuInit fails */
    int launches;
    int modules; /* loaded, not unloaded */
    int last_blocks;
    char last_kernel[64];
    void *last_stream;
};

extern struct fake_cuda fake_cuda;

/* A Hopper device of 3 processors, lazy, nothing counted. */
void fake_cuda_reset(void);

/* fake_cuda.last_stream, for who does not know the struct. */
void *fake_cuda_last_stream(void);

#endif
