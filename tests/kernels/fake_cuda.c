/* fake_cuda: see the header. Signatures are the driver's; what no test needs is not there. */
#include "tests/kernels/fake_cuda.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

enum { SUCCESS, INVALID_VALUE, NOT_INITIALIZED = 3, NOT_FOUND = 500, LAUNCH_FAILED = 719 };

struct fake_cuda fake_cuda;

static const char *failure;

void fake_cuda_reset(void) {
    fake_cuda = (struct fake_cuda){
        .schedule = EMULATOR_LAZY, .seed = 1, .resident = 1, .sms = 3, .major = 9};
}

void *fake_cuda_last_stream(void) {
    return fake_cuda.last_stream;
}

/* Counts a call; the one that is due fails. */
static int call_result(void) {
    if (fake_cuda.fail_at > 0 && --fake_cuda.fail_at == 0) {
        failure = "CUDA_ERROR_FAKE";
        return INVALID_VALUE;
    }
    return SUCCESS;
}

#define KERNELS(X)                                                                                 \
    X(attn_forward_d64)                                                                            \
    X(attn_rows_d64)                                                                               \
    X(attn_backward_d64)                                                                           \
    X(attn_backward_keys_d64)                                                                      \
    X(attn_backward_queries_d64)                                                                   \
    X(attn_finish_d64)                                                                             \
    X(attn_forward_d128)                                                                           \
    X(attn_rows_d128)                                                                              \
    X(attn_backward_d128)                                                                          \
    X(attn_backward_keys_d128)                                                                     \
    X(attn_backward_queries_d128)                                                                  \
    X(attn_finish_d128)                                                                            \
    X(attn_probes)

#define X(name) emulator_kernel name;
KERNELS(X)
#undef X

static struct function {
    const char *name;
    emulator_kernel *kernel;
    uint32_t shared_bytes;
} functions[] = {
#define X(name) {#name, name, 0},
    KERNELS(X)
#undef X
};

int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuCtxSetCurrent(void *context);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(uint64_t *memory, size_t bytes);
int cuMemFree_v2(uint64_t memory);
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes);
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);
int cuEventCreate(void **event, unsigned flags);
int cuEventRecord(void *event, void *stream);
int cuEventSynchronize(void *event);
int cuEventElapsedTime(float *ms, void *start, void *end);
int cuGetErrorName(int result, const char **name);
int cuCtxGetDevice(int *device);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuModuleLoadData(void **module, const void *image);
int cuModuleUnload(void *module);
int cuModuleGetFunction(void **out, void *module, const char *name);
int cuFuncSetAttribute(void *function, int attribute, int value);
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void *stream, void **params, void **extra);
int cuTensorMapEncodeTiled(struct tensor_map *map, int type, uint32_t rank, void *base,
                           const uint64_t *size, const uint64_t *stride_bytes, const uint32_t *box,
                           const uint32_t *element_stride, int interleave, int swizzle,
                           int promotion, int fill);

int cuInit(unsigned flags) {
    return flags != 0 || fake_cuda.missing_call ? NOT_INITIALIZED : call_result();
}

int cuGetErrorName(int result, const char **name) {
    *name = failure;
    return result == SUCCESS ? INVALID_VALUE : SUCCESS;
}

int cuCtxGetDevice(int *device) {
    *device = 0;
    return call_result();
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 16   ? fake_cuda.sms
             : attribute == 75 ? fake_cuda.major
             : attribute == 76 ? fake_cuda.minor
                               : -1;
    return device != 0 || *value < 0 ? INVALID_VALUE : call_result();
}

int cuModuleLoadData(void **module, const void *image) {
    int result = call_result();
    if (result == SUCCESS) {
        *module = (void *)(uintptr_t)image;
        fake_cuda.modules++;
    }
    return result;
}

int cuModuleUnload(void *module) {
    (void)module;
    fake_cuda.modules--;
    return SUCCESS;
}

int cuModuleGetFunction(void **out, void *module, const char *name) {
    for (size_t i = 0; module != NULL && i < sizeof functions / sizeof *functions; i++) {
        if (strcmp(functions[i].name, name) == 0) {
            *out = &functions[i];
            return call_result();
        }
    }
    failure = "CUDA_ERROR_NOT_FOUND";
    return NOT_FOUND;
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
    ((struct function *)function)->shared_bytes = (uint32_t)value;
    return attribute != 8 ? INVALID_VALUE : call_result();
}

int cuLaunchKernel(void *opaque, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void *stream, void **params, void **extra) {
    struct function *function = opaque;
    struct emulator_launch launch = {
        .blocks = (int)grid_x,
        .threads = (int)block_x,
        .resident = fake_cuda.resident,
        .shared_bytes = shared_bytes,
        .schedule = fake_cuda.schedule,
        .seed = fake_cuda.seed,
    };
    fake_cuda.launches++;
    fake_cuda.last_stream = stream;
    fake_cuda.last_blocks = (int)grid_x;
    (void)snprintf(fake_cuda.last_kernel, sizeof fake_cuda.last_kernel, "%s", function->name);
    if (grid_y * grid_z * block_y * block_z != 1 || extra != NULL ||
        shared_bytes > function->shared_bytes) {
        failure = "CUDA_ERROR_INVALID_VALUE";
        return INVALID_VALUE;
    }
    int result = call_result();
    if (result == SUCCESS && emulator_run(&launch, function->kernel, params[0]) != 0) {
        failure = emulator_error();
        result = LAUNCH_FAILED;
    }
    return result;
}

int cuTensorMapEncodeTiled(struct tensor_map *map, int type, uint32_t rank, void *base,
                           const uint64_t *size, const uint64_t *stride_bytes, const uint32_t *box,
                           const uint32_t *element_stride, int interleave, int swizzle,
                           int promotion, int fill) {
    uint32_t element_bytes = type == 7 ? 4 : 2;
    (void)promotion;
    failure = "CUDA_ERROR_INVALID_VALUE";
    if ((type != 7 && type != 9) || rank != 3 || interleave != 0 || swizzle != 3 || fill != 0 ||
        element_stride[0] * element_stride[1] * element_stride[2] != 1 ||
        emulator_encode(map, base, element_bytes, size, stride_bytes, box) != 0) {
        return INVALID_VALUE;
    }
    return call_result();
}

/* What only tests/gpu/attn_device asks for, so that it can be tried without a device. */

int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (fake_cuda.sms == 0) {
        fake_cuda_reset(); /* a program that does not know that this is a fake */
    }
    *context = &fake_cuda;
    return device;
}

int cuCtxSetCurrent(void *context) {
    return context == &fake_cuda ? SUCCESS : INVALID_VALUE;
}

int cuCtxSynchronize(void) {
    return SUCCESS;
}

int cuMemAlloc_v2(uint64_t *memory, size_t bytes) {
    void *made = bytes > 0 ? aligned_alloc(256, (bytes + 255) / 256 * 256) : NULL;
    *memory = (uint64_t)(uintptr_t)made;
    return made == NULL ? INVALID_VALUE : SUCCESS;
}

int cuMemFree_v2(uint64_t memory) {
    free((void *)(uintptr_t)memory);
    return SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    memcpy((void *)(uintptr_t)to, from, bytes);
    return SUCCESS;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return SUCCESS;
}

int cuEventCreate(void **event, unsigned flags) {
    *event = &fake_cuda;
    return (int)flags;
}

int cuEventRecord(void *event, void *stream) {
    (void)stream;
    return event == &fake_cuda ? SUCCESS : INVALID_VALUE;
}

int cuEventSynchronize(void *event) {
    return event == &fake_cuda ? SUCCESS : INVALID_VALUE;
}

int cuEventElapsedTime(float *ms, void *start, void *end) {
    *ms = 1;
    return start == end ? SUCCESS : INVALID_VALUE;
}
