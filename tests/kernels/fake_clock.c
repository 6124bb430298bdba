/* fake_clock: a libcuda.so.1, libnccl.so.2, libcublas.so.13 and libnvidia-ml.so.1 that compute
 * nothing and know what it would have taken.
 *
 * Every thread has a device whose clock goes on by a law: a launch of attention takes launch + the
 * busiest of its blocks, a tile t0 + blocks * tb; a product its FLOPs at 500 TFLOP/s; a copy its
 * bytes, read and written, at 2 TB/s; a group of sends and receives 20 us + what is received at
 * 100 GB/s, an all-gather 25 us and 90 GB/s, a reduce-scatter 30 us and 80 GB/s. Every third launch
 * is disturbed, and takes half as long again. FAKE_CLOCK_DEVICES and FAKE_CLOCK_MAJOR say how many
 * there are and what they are, FAKE_CLOCK_FULL which of them has no memory for transfers;
 * FAKE_CLOCK_FALLS=1 makes long tiles fast. */
#include "gpu_attn/params.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NO_DEVICE = 100 };

#define SMS          132
#define MEMORY_BYTES ((size_t)64 << 30)
#define COPIED_MAX   ((size_t)64 << 20) /* more is never looked at */

struct law {
    double launch_us, tile_us, block_us;
};

static const struct law forward = {8, 2.7, 1.7};
static const struct law backward = {15, 15, 4.8};

static _Thread_local double clock_us;
static _Thread_local unsigned launches;
static _Thread_local int opened;      /* the thread's device */
static _Thread_local int joined;      /* ranks of its communicator */
static _Thread_local double received; /* in the group that is open */

static long setting(const char *name, long otherwise) {
    const char *text = getenv(name);
    return text != NULL ? strtol(text, NULL, 10) : otherwise;
}

static void take_us(double us) {
    bool disturbed = launches++ % 3 == 2;
    clock_us += disturbed ? 1.5 * us : us;
}

static double tile_us(const struct law *law, int blocks) {
    double us = law->tile_us + blocks * law->block_us;
    return setting("FAKE_CLOCK_FALLS", 0) != 0 && blocks > 8 ? us / 20 : us;
}

/* As block.h's turn_tile deals them. */
static double busiest_us(const struct law *law, const int32_t *first_blocks, size_t stride,
                         int count, int grid) {
    double busiest = 0;
    for (int block = 0; block < grid; block++) {
        double us = 0;
        for (int turn = 0; turn * grid < count; turn++) {
            int tile = turn * grid + (turn % 2 == 0 ? block : grid - 1 - block);
            if (tile < count) {
                us += tile_us(law, first_blocks[(size_t)tile * stride]);
            }
        }
        busiest = us > busiest ? us : busiest;
    }
    return law->launch_us + busiest;
}

int cuInit(unsigned flags);
int cuGetErrorName(int result, const char **name);
int cuDriverGetVersion(int *version);
int cuDeviceGetCount(int *count);
int cuDeviceGetName(char *name, int bytes, int device);
int cuDeviceGetPCIBusId(char *bus, int bytes, int device);
int cuCtxGetDevice(int *device);
int cuDeviceGetAttribute(int *value, int attribute, int device);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxSetCurrent(void *context);
int cuCtxSynchronize(void);
int cuModuleLoadData(void **module, const void *image);
int cuModuleUnload(void *module);
int cuModuleGetFunction(void **out, void *module, const char *name);
int cuFuncSetAttribute(void *function, int attribute, int value);
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void *stream, void **params, void **extra);
int cuTensorMapEncodeTiled(struct tensor_map *map);
int cuMemAlloc_v2(uint64_t *memory, size_t bytes);
int cuMemFree_v2(uint64_t memory);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *bytes);
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes);
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream);
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream);
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream);
int cuMemcpy2DAsync_v2(const void *copy, void *stream);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamDestroy_v2(void *stream);
int cuStreamQuery(void *stream);
int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
int cuEventCreate(void **event, unsigned flags);
int cuEventDestroy_v2(void *event);
int cuEventRecord(void *event, void *stream);
int cuEventSynchronize(void *event);
int cuEventElapsedTime(float *ms, void *start, void *end);
int cublasCreate_v2(void **handle);
int cublasDestroy_v2(void *handle);
int cublasGemmEx(void *handle, int transpose_a, int transpose_b, int m, int n, int k);
int nvmlInit_v2(void);
int nvmlSystemGetDriverVersion(char *text, unsigned bytes);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle);
int nvmlDeviceGetPowerManagementLimit(void *handle, unsigned *milliwatts);
int nvmlDeviceGetClockInfo(void *handle, int domain, unsigned *mhz);
int ncclGetVersion(int *version);
int ncclGetUniqueId(void *id);
int ncclCommInitRank(void **out, int ranks);
int ncclCommDestroy(void *communicator);
int ncclCommAbort(void *communicator);
int ncclCommGetAsyncError(void *communicator, int *result);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclSend(const void *buffer, size_t count);
int ncclRecv(void *buffer, size_t count);
int ncclAllGather(const void *send, void *receive, size_t count, int type);
int ncclReduceScatter(const void *send, void *receive, size_t count, int type, int operation);
const char *ncclGetErrorString(int result);

/* ---- libcuda */

int cuInit(unsigned flags) {
    return flags == 0 ? SUCCESS : INVALID_VALUE;
}

int cuGetErrorName(int result, const char **name) {
    *name = result == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_INVALID_VALUE";
    return SUCCESS;
}

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    *count = (int)setting("FAKE_CLOCK_DEVICES", 1);
    return SUCCESS;
}

int cuDeviceGetName(char *name, int bytes, int device) {
    strncpy(name, "Fake H100 of the tests", (size_t)bytes);
    return device >= 0 ? SUCCESS : NO_DEVICE;
}

int cuDeviceGetPCIBusId(char *bus, int bytes, int device) {
    (void)snprintf(bus, (size_t)bytes, "0000:%02x:00.0", (unsigned)device);
    return SUCCESS;
}

int cuCtxGetDevice(int *device) {
    *device = 0;
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 16   ? SMS
             : attribute == 75 ? (int)setting("FAKE_CLOCK_MAJOR", 9)
             : attribute == 13 ? 1980000
                               : 0;
    return device >= 0 ? SUCCESS : NO_DEVICE;
}

int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = &clock_us;
    opened = device;
    return device >= 0 ? SUCCESS : NO_DEVICE;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    return device >= 0 ? SUCCESS : NO_DEVICE;
}

int cuCtxSetCurrent(void *context) {
    return context == &clock_us ? SUCCESS : INVALID_VALUE;
}

int cuCtxSynchronize(void) {
    return SUCCESS;
}

int cuModuleLoadData(void **module, const void *image) {
    *module = &launches;
    return image != NULL ? SUCCESS : INVALID_VALUE;
}

int cuModuleUnload(void *module) {
    return module != NULL ? SUCCESS : INVALID_VALUE;
}

/* A function is its name. */
int cuModuleGetFunction(void **out, void *module, const char *name) {
    static const char *const names[] = {"forward",  "rows",   "backward_queries",
                                        "backward", "finish", "ballast_rows"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strstr(name, names[i]) != NULL) {
            *out = (void *)(uintptr_t)names[i];
            return SUCCESS;
        }
    }
    return module != NULL ? INVALID_VALUE : SUCCESS;
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
    return function != NULL && attribute == 8 && value > 0 ? SUCCESS : INVALID_VALUE;
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void *stream, void **params, void **extra) {
    (void)stream;
    (void)shared_bytes;
    if (strcmp(function, "forward") == 0) {
        const struct forward_params *call = params[0];
        take_us(busiest_us(&forward, &call->tiles->blocks, sizeof *call->tiles / 4,
                           call->tile_count, (int)grid_x));
    } else if (strcmp(function, "backward") == 0) {
        const struct backward_params *call = params[0];
        take_us(busiest_us(&backward, &call->key_tiles->blocks, sizeof *call->key_tiles / 4,
                           call->key_tile_count, (int)grid_x));
    }
    return grid_y * grid_z * block_y * block_z == 1 && block_x > 0 && extra == NULL ? SUCCESS
                                                                                    : INVALID_VALUE;
}

int cuTensorMapEncodeTiled(struct tensor_map *map) {
    memset(map, 0, sizeof *map);
    return SUCCESS;
}

/* Address space: most is never touched. The size stands before. */
int cuMemAlloc_v2(uint64_t *memory, size_t bytes) {
    size_t all = bytes + 4096;
    bool full = bytes == (size_t)2 << 30 && opened == setting("FAKE_CLOCK_FULL", -1);
    void *made = bytes > MEMORY_BYTES || full
                     ? MAP_FAILED
                     : mmap(NULL, all, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) {
        return OUT_OF_MEMORY;
    }
    memcpy(made, &all, sizeof all);
    *memory = (uintptr_t)made + 4096;
    return SUCCESS;
}

int cuMemFree_v2(uint64_t memory) {
    void *made = (void *)(uintptr_t)(memory - 4096);
    size_t all;
    memcpy(&all, made, sizeof all);
    return munmap(made, all) == 0 ? SUCCESS : INVALID_VALUE;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *bytes) {
    *free_bytes = MEMORY_BYTES;
    *bytes = MEMORY_BYTES;
    return SUCCESS;
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes) {
    if (bytes > COPIED_MAX) {
        return INVALID_VALUE;
    }
    memcpy((void *)(uintptr_t)to, from, bytes);
    return SUCCESS;
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes) {
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    (void)stream;
    return cuMemcpyHtoD_v2(to, from, bytes);
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    (void)stream;
    memcpy(to, (void *)(uintptr_t)from, bytes);
    return SUCCESS;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    (void)stream;
    clock_us += 2 * (double)bytes / 2e6;
    return to != 0 && from != 0 ? SUCCESS : INVALID_VALUE;
}

int cuMemcpy2DAsync_v2(const void *copy, void *stream) {
    (void)stream;
    return copy != NULL ? SUCCESS : INVALID_VALUE;
}

int cuStreamCreate(void **stream, unsigned flags) {
    *stream = malloc(1);
    return flags == 1 ? SUCCESS : INVALID_VALUE;
}

int cuStreamDestroy_v2(void *stream) {
    free(stream);
    return SUCCESS;
}

int cuStreamQuery(void *stream) {
    (void)stream;
    return SUCCESS;
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
    (void)stream;
    return event != NULL && flags == 0 ? SUCCESS : INVALID_VALUE;
}

int cuEventCreate(void **event, unsigned flags) {
    *event = calloc(1, sizeof(double));
    return *event != NULL && (flags == 0 || flags == 2) ? SUCCESS : INVALID_VALUE;
}

int cuEventDestroy_v2(void *event) {
    free(event);
    return SUCCESS;
}

int cuEventRecord(void *event, void *stream) {
    (void)stream;
    *(double *)event = clock_us;
    return SUCCESS;
}

int cuEventSynchronize(void *event) {
    return event != NULL ? SUCCESS : INVALID_VALUE;
}

int cuEventElapsedTime(float *ms, void *start, void *end) {
    *ms = (float)((*(double *)end - *(double *)start) / 1e3);
    return SUCCESS;
}

/* ---- libcublas; arguments that the law does not need are left where they are */

int cublasCreate_v2(void **handle) {
    *handle = &clock_us;
    return SUCCESS;
}

int cublasDestroy_v2(void *handle) {
    return handle == &clock_us ? SUCCESS : INVALID_VALUE;
}

int cublasGemmEx(void *handle, int transpose_a, int transpose_b, int m, int n, int k) {
    clock_us += 2.0 * m * n * k / 5e8;
    return handle == &clock_us && transpose_a == 1 && transpose_b == 0 ? SUCCESS : INVALID_VALUE;
}

/* ---- libnvidia-ml: the clock falls by 15 MHz a question, from 1980 to 1830, and begins anew */

int nvmlInit_v2(void) {
    return SUCCESS;
}

int nvmlSystemGetDriverVersion(char *text, unsigned bytes) {
    (void)snprintf(text, bytes, "580.95");
    return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **handle) {
    *handle = &clock_us;
    return strncmp(bus, "0000:", 5) == 0 ? SUCCESS : INVALID_VALUE;
}

int nvmlDeviceGetPowerManagementLimit(void *handle, unsigned *milliwatts) {
    *milliwatts = 700000;
    return handle == &clock_us ? SUCCESS : INVALID_VALUE;
}

int nvmlDeviceGetClockInfo(void *handle, int domain, unsigned *mhz) {
    static _Thread_local unsigned asked;
    *mhz = 1980 - 15 * (asked++ % 11);
    return handle == &clock_us && domain == 1 ? SUCCESS : INVALID_VALUE;
}

/* ---- libnccl */

int ncclGetVersion(int *version) {
    *version = 22809;
    return SUCCESS;
}

int ncclGetUniqueId(void *id) {
    memset(id, 1, 128);
    return SUCCESS;
}

int ncclCommInitRank(void **out, int ranks) {
    *out = &clock_us;
    joined = ranks;
    return ranks > 1 ? SUCCESS : INVALID_VALUE;
}

int ncclCommDestroy(void *communicator) {
    return communicator != NULL ? SUCCESS : INVALID_VALUE;
}

int ncclCommAbort(void *communicator) {
    return communicator != NULL ? SUCCESS : INVALID_VALUE;
}

int ncclCommGetAsyncError(void *communicator, int *result) {
    *result = SUCCESS;
    return communicator != NULL ? SUCCESS : INVALID_VALUE;
}

int ncclGroupStart(void) {
    received = 0;
    return SUCCESS;
}

int ncclGroupEnd(void) {
    take_us(20 + received / 1e5);
    return SUCCESS;
}

int ncclSend(const void *buffer, size_t count) {
    return buffer != NULL && count > 0 ? SUCCESS : INVALID_VALUE;
}

int ncclRecv(void *buffer, size_t count) {
    received += (double)count;
    return buffer != NULL && count > 0 ? SUCCESS : INVALID_VALUE;
}

/* Of as many bf16 (type 9) or bytes a rank; what comes from the others counts. */
static double others_bytes(size_t count, int type) {
    return (double)count * (type == 9 ? 2 : 1) * (joined - 1);
}

int ncclAllGather(const void *send, void *receive, size_t count, int type) {
    take_us(25 + others_bytes(count, type) / 9e4);
    return send != NULL && receive != NULL && count > 0 ? SUCCESS : INVALID_VALUE;
}

int ncclReduceScatter(const void *send, void *receive, size_t count, int type, int operation) {
    take_us(30 + others_bytes(count, type) / 8e4);
    return send != NULL && receive != NULL && operation == 0 ? SUCCESS : INVALID_VALUE;
}

const char *ncclGetErrorString(int result) {
    return result == SUCCESS ? "no error" : "an error";
}
