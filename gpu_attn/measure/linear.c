/* linear: a block's products and passes on one tensor-parallel rank.
 *
 * Counted as planner/model.h counts: 2 (2 h hq d + 2 h hkv d + 3 h ffn) FLOPs a token and 22 passes
 * of h values, three times that for forward + backward, all divided by TP. A copy is two passes. */
#include "gpu_attn/error.h"
#include "gpu_attn/measure/measure.h"
#include "gpu_attn/symbols.h"

#include <dlfcn.h>
#include <errno.h>

#define PASSES 22u

enum {
    BLAS_N = 0,       /* CUBLAS_OP_N */
    BLAS_T = 1,       /* CUBLAS_OP_T */
    BLAS_BF16 = 14,   /* CUDA_R_16BF */
    BLAS_FLOAT = 68,  /* CUBLAS_COMPUTE_32F */
    BLAS_DEFAULT = -1 /* CUBLAS_GEMM_DEFAULT */
};

struct blas {
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*product)(void *handle, int transpose_a, int transpose_b, int m, int n, int k,
                   const void *alpha, const void *a, int a_type, int lda, const void *b, int b_type,
                   int ldb, const void *beta, void *c, int c_type, int ldc, int compute,
                   int algorithm);
};

static const struct attn_symbol symbols[] = {
    {"cublasCreate_v2", offsetof(struct blas, create)},
    {"cublasDestroy_v2", offsetof(struct blas, destroy)},
    {"cublasGemmEx", offsetof(struct blas, product)},
};

static const uint64_t token_counts[] = {512, 1024, 2048, 4096, 8192, 16384, 32768};
#define QUICK_FIRST 2u
#define QUICK_STEP  2u
#define TOKENS_MAX  32768u

/* Columns in and out of the four products of a rank. */
struct block {
    uint32_t in[4];
    uint32_t out[4];
    uint64_t pass_bytes; /* a token */
};

struct bench {
    struct measure_device *device;
    void *library;
    struct blas blas;
    void *handle;
    struct block block;
    void *x, *w, *y; /* rows of the widest, the largest weight, as x */
    uint32_t tokens;
    bool backward;
};

static struct block block_of(const struct measure_options *options, const struct profile_key *key,
                             uint32_t tp) {
    uint32_t d = (uint32_t)key->head_dim;
    uint32_t queries = (uint32_t)key->q_heads * d / tp;
    uint32_t keys = (uint32_t)key->kv_heads * d / tp;
    uint32_t ffn = options->ffn / tp;
    struct block block = {
        .in = {options->hidden, queries, options->hidden, ffn},
        .out = {queries + 2 * keys, options->hidden, 2 * ffn, options->hidden},
        .pass_bytes = (uint64_t)options->hidden * 2 * PASSES / 2 / tp,
    };
    return block;
}

static int blas_open(struct bench *bench, struct ballast_attn_error *error) {
    static const char *const names[] = {"libcublas.so.13", "libcublas.so.12"};
    const char *name = names[0];
    for (int i = 0; bench->library == NULL && i < 2; i++) {
        name = names[i];
        bench->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (bench->library == NULL) {
        return attn_error(error, -ENOSYS,
                          "no libcublas.so.13 or .12; install it, or name its folder in "
                          "LD_LIBRARY_PATH");
    }
    int result = attn_symbols_find(bench->library, name, symbols, sizeof symbols / sizeof *symbols,
                                   &bench->blas, error);
    if (result == 0 && bench->blas.create(&bench->handle) != 0) {
        result = attn_error(error, -EIO, "%s: no handle", name);
    }
    return result;
}

/* y [tokens, n] = x [tokens, k] by a weight; row-major matrices are BLAS's transposed. */
static int product(const struct bench *bench, uint32_t m, uint32_t n, uint32_t k) {
    const float one = 1, zero = 0;
    return bench->blas.product(bench->handle, BLAS_T, BLAS_N, (int)m, (int)n, (int)k, &one,
                               bench->w, BLAS_BF16, (int)k, bench->x, BLAS_BF16, (int)k, &zero,
                               bench->y, BLAS_BF16, (int)m, BLAS_FLOAT, BLAS_DEFAULT);
}

/* Backward: gradients of inputs and of weights, products as large, and twice the passes. */
static int layer_run(void *context, struct ballast_attn_error *error) {
    struct bench *bench = context;
    const struct block *block = &bench->block;
    int result = 0;
    for (int i = 0; result == 0 && i < 4; i++) {
        if (!bench->backward) {
            result = product(bench, block->out[i], bench->tokens, block->in[i]);
        } else {
            result = product(bench, block->in[i], bench->tokens, block->out[i]);
            result = result != 0 ? result
                                 : product(bench, block->out[i], block->in[i], bench->tokens);
        }
    }
    if (result != 0) {
        return attn_error(error, -EIO, "cublasGemmEx fails with %d", result);
    }
    size_t bytes = (size_t)(block->pass_bytes * bench->tokens);
    for (int pass = 0; result == 0 && pass < (bench->backward ? 2 : 1); pass++) {
        for (size_t done = 0, part; result == 0 && done < bytes; done += part) {
            part = (size_t)bench->tokens * block->in[0] * 2;
            part = bytes - done < part ? bytes - done : part;
            result = bench->device->calls.copy_within((uint64_t)(uintptr_t)bench->y,
                                                      (uint64_t)(uintptr_t)bench->x, part, NULL);
        }
    }
    return attn_driver_check(&bench->device->driver, result, "a copy", error);
}

static uint32_t widest(const struct block *block) {
    uint32_t columns = 0;
    for (int i = 0; i < 4; i++) {
        columns = block->in[i] > columns ? block->in[i] : columns;
        columns = block->out[i] > columns ? block->out[i] : columns;
    }
    return columns;
}

/* Weights of every size, and where their gradients go. */
static int memory_open(struct bench *bench, uint32_t tokens, struct ballast_attn_error *error) {
    uint32_t columns = widest(&bench->block);
    size_t rows_bytes = (size_t)(tokens > columns ? tokens : columns) * columns * 2;
    void **all[] = {&bench->x, &bench->w, &bench->y};
    int result = 0;
    for (int i = 0; result == 0 && i < 3; i++) {
        result = measure_device_alloc(bench->device, rows_bytes, "the linear part", all[i], error);
        result = result != 0 ? result
                             : measure_device_fill(bench->device, *all[i], rows_bytes, error);
    }
    return result;
}

static void list_add(struct profile_list *list, uint64_t ps, uint64_t tokens) {
    list->values[list->count++] = ps / tokens > 0 ? ps / tokens : 1;
}

static int degree_time(struct bench *bench, const struct measure_options *options, bool backward,
                       struct profile_degree *degree, struct ballast_attn_error *error) {
    struct measure_time time;
    bench->backward = backward;
    int result = measure_device_time(bench->device, layer_run, bench, options->runs, &time, error);
    if (result == 0) {
        list_add(backward ? &degree->bwd_ps_per_token : &degree->fwd_ps_per_token, time.ps,
                 bench->tokens);
        list_add(backward ? &degree->bwd_p10 : &degree->fwd_p10, time.low_ps, bench->tokens);
        list_add(backward ? &degree->bwd_p90 : &degree->fwd_p90, time.high_ps, bench->tokens);
    }
    return result;
}

static int degree_measure(struct bench *bench, const struct measure_options *options,
                          struct profile_degree *degree, struct ballast_attn_error *error) {
    size_t step = options->quick ? QUICK_STEP : 1;
    int result = 0;
    for (size_t i = options->quick ? QUICK_FIRST : 0;
         result == 0 && i < sizeof token_counts / sizeof *token_counts; i += step) {
        degree->tokens.values[degree->tokens.count++] = token_counts[i];
        bench->tokens = (uint32_t)token_counts[i];
        result = degree_time(bench, options, false, degree, error);
        result = result != 0 ? result : degree_time(bench, options, true, degree, error);
    }
    return result;
}

int measure_linear(struct measure_device *device, struct measure_options *options,
                   struct profile *profile, struct ballast_attn_error *error) {
    struct profile_linear *linear = &profile->linear;
    struct bench bench = {.device = device,
                          .block = block_of(options, &profile->key, options->degrees[0])};
    int result = blas_open(&bench, error);
    result = result != 0 ? result : memory_open(&bench, TOKENS_MAX, error);
    *linear = (struct profile_linear){.hidden = options->hidden, .ffn = options->ffn};
    for (uint32_t i = 0; result == 0 && i < options->degree_count; i++) {
        linear->degrees[i].tp = options->degrees[i];
        bench.block = block_of(options, &profile->key, options->degrees[i]);
        result = degree_measure(&bench, options, &linear->degrees[i], error);
        linear->degree_count++;
        measure_say(options, "linear part: tp %u", options->degrees[i]);
    }
    if (result != 0) {
        *linear = (struct profile_linear){0};
    }
    measure_device_free(device, bench.x);
    measure_device_free(device, bench.w);
    measure_device_free(device, bench.y);
    if (bench.handle != NULL) {
        (void)bench.blas.destroy(bench.handle);
    }
    if (bench.library != NULL) {
        (void)dlclose(bench.library);
    }
    return result;
}
