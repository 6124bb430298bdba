/* launch: the public calls; arguments to tensor maps and parameters to kernels in a stream.
 *
 * The only file with policy about launches: one block a processor, less the margin, never more
 * blocks than tiles. Kernels of both head dimensions are loaded at open, so a call never waits for
 * a module. */
#include "gpu_attn/ballast_attn.h"

#include "gpu_attn/driver.h"
#include "gpu_attn/error.h"
#include "gpu_attn/image.h"
#include "gpu_attn/params.h"
#include "gpu_attn/plan.h"
#include "gpu_attn/shared_bytes.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#define LOG2_E 1.4426950408889634

enum kernel {
    KERNEL_FORWARD,
    KERNEL_ROWS,
    KERNEL_BACKWARD,
    KERNEL_BACKWARD_KEYS,
    KERNEL_BACKWARD_QUERIES,
    KERNEL_FINISH,
    KERNELS,
};

static const struct {
    const char *name;
    unsigned threads;
    unsigned shared_bytes[2]; /* by head dimension */
} kernels[KERNELS] = {
    [KERNEL_FORWARD] = {"forward", ATTN_THREADS, {FORWARD_SHARED_AT(64), FORWARD_SHARED_AT(128)}},
    [KERNEL_ROWS] = {"rows", ATTN_ROW_THREADS, {0, 0}},
    [KERNEL_BACKWARD] = {"backward",
                         ATTN_THREADS,
                         {BACKWARD_SHARED_AT(64), BACKWARD_SHARED_AT(128)}},
    [KERNEL_BACKWARD_KEYS] = {"backward_keys",
                              ATTN_THREADS,
                              {BACKWARD_SHARED_AT(64), BACKWARD_SHARED_AT(128)}},
    [KERNEL_BACKWARD_QUERIES] = {"backward_queries",
                                 ATTN_THREADS,
                                 {QUERY_SHARED_AT(64), QUERY_SHARED_AT(128)}},
    [KERNEL_FINISH] = {"finish", ATTN_ROW_THREADS, {0, 0}},
};

/* Immutable after open. */
struct ballast_attn {
    struct attn_driver driver;
    int sms;
    void *modules[2]; /* by head dimension */
    void *functions[2][KERNELS];
};

static unsigned dim_index(uint32_t head_dim) {
    return head_dim == 128;
}

const char *ballast_attn_build(void) {
    return attn_image_build();
}

static int device_check(struct ballast_attn *attn, struct ballast_attn_error *error) {
    int device = 0;
    int major = 0;
    int minor = 0;
    int result = attn->driver.context_device(&device);
    if (result == 0) {
        result = attn->driver.device_attribute(&major, DRIVER_MAJOR, device);
    }
    if (result == 0) {
        result = attn->driver.device_attribute(&minor, DRIVER_MINOR, device);
    }
    if (result == 0) {
        result = attn->driver.device_attribute(&attn->sms, DRIVER_SMS, device);
    }
    if (result != 0) {
        return attn_driver_check(&attn->driver, result, "asking for the current device", error);
    }
    if (major != 9 || minor != 0) {
        return attn_error(error, -ENOTSUP,
                          "the kernels need compute capability 9.0 (Hopper); this device has %d.%d",
                          major, minor);
    }
    return 0;
}

static int kernel_load(struct ballast_attn *attn, uint32_t head_dim, enum kernel kernel,
                       struct ballast_attn_error *error) {
    char name[64];
    unsigned d = dim_index(head_dim);
    (void)snprintf(name, sizeof name, "attn_%s_d%u", kernels[kernel].name, head_dim);
    int result = attn->driver.module_function(&attn->functions[d][kernel], attn->modules[d], name);
    if (result == 0 && kernels[kernel].shared_bytes[d] > 0) {
        result = attn->driver.function_set(attn->functions[d][kernel], DRIVER_SHARED_BYTES,
                                           (int)kernels[kernel].shared_bytes[d]);
    }
    return attn_driver_check(&attn->driver, result, name, error);
}

static int module_load(struct ballast_attn *attn, uint32_t head_dim,
                       struct ballast_attn_error *error) {
    int result = attn->driver.module_load(&attn->modules[dim_index(head_dim)],
                                          attn_image(head_dim));
    result = attn_driver_check(&attn->driver, result, "loading the kernels", error);
    for (enum kernel kernel = 0; result == 0 && kernel < KERNELS; kernel++) {
        result = kernel_load(attn, head_dim, kernel, error);
    }
    return result;
}

int ballast_attn_open(struct ballast_attn **out, struct ballast_attn_error *error) {
    if (attn_image(64) == NULL) {
        return attn_error(error, -ENOSYS, "built without the kernels: nvcc was not found");
    }
    struct ballast_attn *attn = calloc(1, sizeof *attn);
    if (attn == NULL) {
        return attn_error(error, -ENOMEM, "out of memory");
    }
    int result = attn_driver_open(&attn->driver, error);
    if (result == 0) {
        result = device_check(attn, error);
    }
    if (result == 0) {
        result = module_load(attn, 64, error);
    }
    if (result == 0) {
        result = module_load(attn, 128, error);
    }
    if (result != 0) {
        ballast_attn_close(attn);
        return result;
    }
    *out = attn;
    return 0;
}

void ballast_attn_close(struct ballast_attn *attn) {
    if (attn == NULL) {
        return;
    }
    for (unsigned d = 0; d < 2; d++) {
        if (attn->modules[d] != NULL) {
            (void)attn->driver.module_unload(attn->modules[d]);
        }
    }
    attn_driver_close(&attn->driver);
    free(attn);
}

/* One call in the making: the first failure stays, and later steps do nothing. */
struct request {
    struct ballast_attn *attn;
    const struct ballast_attn_call *call;
    const struct ballast_attn_shape *shape;
    struct attn_lists lists;
    struct ballast_attn_error *error;
    int result;
    uint32_t group;
    uint32_t pack;
    float scale;
};

static void request_fail(struct request *request, int code, const char *text) {
    if (request->result == 0) {
        request->result = attn_error(request->error, code, "%s", text);
    }
}

static struct request request_of(struct ballast_attn *attn, const struct ballast_attn_call *call,
                                 struct ballast_attn_error *error) {
    struct request request = {.attn = attn, .call = call, .error = error};
    request.shape = &call->plan->shape;
    if (call->lists != NULL) {
        request.lists = attn_lists_at(call->plan, call->lists);
    }
    request.group = attn_group(request.shape);
    request.pack = attn_pack(request.shape);
    request.scale = call->scale != 0 ? call->scale : (float)(1 / sqrt(request.shape->head_dim));
    uint32_t known = BALLAST_ATTN_DETERMINISTIC | BALLAST_ATTN_ZERO_TAILS | BALLAST_ATTN_FLOAT_DKDV;
    if ((call->flags & ~known) != 0) {
        request_fail(&request, -EINVAL, "unknown flags");
    }
    if (!(call->scale >= 0 && isfinite(call->scale))) {
        request_fail(&request, -EINVAL, "scale is negative or not finite");
    }
    if (call->sm_margin >= (uint32_t)attn->sms) {
        request_fail(&request, -EINVAL, "sm_margin leaves no processor");
    }
    if (call->plan->lists_bytes > 0 && ((uintptr_t)call->lists % 16 != 0 || call->lists == NULL)) {
        request_fail(&request, -EINVAL, "lists: NULL or not 16-byte aligned");
    }
    if (call->lse == NULL && request.shape->q_rows > 0) {
        request_fail(&request, -EINVAL, "lse is NULL");
    }
    return request;
}

/* Checks one tensor. NULL is fine when it has no rows. */
static void request_tensor(struct request *request, const struct ballast_attn_tensor *tensor,
                           const char *name, uint32_t rows) {
    bool aligned = (uintptr_t)tensor->data % 16 == 0 && tensor->row_stride % 8 == 0 &&
                   tensor->head_stride % 8 == 0;
    bool positive = tensor->row_stride > 0 && tensor->head_stride >= request->shape->head_dim &&
                    tensor->row_stride < INT64_C(1) << 38 && tensor->head_stride < INT64_C(1) << 38;
    if (request->result == 0 && rows > 0 && (tensor->data == NULL || !aligned || !positive)) {
        request->result = attn_error(request->error, -EINVAL,
                                     "%s: data must be 16-byte aligned, strides positive multiples "
                                     "of 8 elements, heads apart by head_dim or more",
                                     name);
    }
}

/* A map of [rows, heads, head_dim] in boxes of `columns`, `box_heads`, `box_rows`. */
static void request_map(struct request *request, struct tensor_map *map, int type,
                        const struct ballast_attn_tensor *tensor, uint32_t rows, uint32_t heads,
                        uint32_t box_heads, uint32_t box_rows) {
    uint64_t bytes = type == DRIVER_FLOAT32 ? 4 : 2;
    uint64_t size[3] = {request->shape->head_dim, heads, rows};
    uint64_t stride_bytes[2] = {(uint64_t)tensor->head_stride * bytes,
                                (uint64_t)tensor->row_stride * bytes};
    uint32_t box[3] = {(uint32_t)(128 / bytes), box_heads, box_rows};
    uint32_t one[3] = {1, 1, 1};
    if (request->result == 0 && rows > 0) {
        int result = request->attn->driver.encode(map, type, 3, tensor->data, size, stride_bytes,
                                                  box, one, 0, DRIVER_SWIZZLE_128B,
                                                  DRIVER_PROMOTE_256B, 0);
        request->result = attn_driver_check(&request->attn->driver, result,
                                            "cuTensorMapEncodeTiled", request->error);
    }
}

static void request_query_map(struct request *request, struct tensor_map *map,
                              const struct ballast_attn_tensor *tensor, uint32_t pack,
                              uint32_t packed_rows) {
    request_map(request, map, DRIVER_BFLOAT16, tensor, request->shape->q_rows,
                request->shape->q_heads, pack, packed_rows / pack);
}

static void request_key_map(struct request *request, struct tensor_map *map,
                            const struct ballast_attn_tensor *tensor, uint32_t box_rows) {
    request_map(request, map, DRIVER_BFLOAT16, tensor, request->shape->kv_rows,
                request->shape->kv_heads, 1, box_rows);
}

/* `tiles` is what there is to do: a block takes at least one. */
static void request_launch(struct request *request, enum kernel kernel, uint32_t tiles,
                           void *params) {
    unsigned d = dim_index(request->shape->head_dim);
    uint32_t blocks = (uint32_t)request->attn->sms - request->call->sm_margin;
    if (kernels[kernel].threads == ATTN_ROW_THREADS) {
        blocks *= 8;
    }
    blocks = tiles < blocks ? tiles : blocks;
    if (request->result != 0 || blocks == 0) {
        return;
    }
    void *arguments[1] = {params};
    int result = request->attn->driver.launch(
        request->attn->functions[d][kernel], blocks, 1, 1, kernels[kernel].threads, 1, 1,
        kernels[kernel].shared_bytes[d], request->call->stream, arguments, NULL);
    request->result = attn_driver_check(&request->attn->driver, result, kernels[kernel].name,
                                        request->error);
}

static struct attn_view view_of(const struct ballast_attn_tensor *tensor) {
    return (struct attn_view){tensor->data, tensor->row_stride, tensor->head_stride};
}

int ballast_attn_forward(struct ballast_attn *attn, const struct ballast_attn_call *call,
                         struct ballast_attn_error *error) {
    struct request request = request_of(attn, call, error);
    request_tensor(&request, &call->q, "q", request.shape->q_rows);
    request_tensor(&request, &call->k, "k", request.shape->kv_rows);
    request_tensor(&request, &call->v, "v", request.shape->kv_rows);
    request_tensor(&request, &call->o, "o", request.shape->q_rows);
    struct forward_params params = {
        .tiles = request.lists.tiles,
        .tile_count = (int32_t)call->plan->tiles,
        .group = (int32_t)request.group,
        .group_inverse = attn_inverse(request.group),
        .zero_tails = (call->flags & BALLAST_ATTN_ZERO_TAILS) != 0,
        .scale_log2 = (float)(request.scale * LOG2_E),
        .q_heads = (int32_t)request.shape->q_heads,
        .lse = call->lse,
        .o = view_of(&call->o),
    };
    request_query_map(&request, &params.q, &call->q, request.group, ATTN_TILE_ROWS);
    request_key_map(&request, &params.k, &call->k, ATTN_KEYS);
    request_key_map(&request, &params.v, &call->v, ATTN_KEYS);
    request_launch(&request, KERNEL_FORWARD, call->plan->tiles, &params);
    return request.result;
}

/* The workspace: statistics of steps, then delta (deterministic) or the sums of dQ. */
struct workspace {
    float *stats;
    float *rest;
    size_t bytes;
};

static struct workspace workspace_of(const struct ballast_attn_plan *plan, uint32_t flags,
                                     void *memory) {
    size_t rows = (size_t)plan->shape.q_rows * plan->shape.q_heads;
    size_t stats = (size_t)plan->steps * 2 * ATTN_STEP_ROWS;
    size_t rest = (flags & BALLAST_ATTN_DETERMINISTIC) != 0 ? rows : rows * plan->shape.head_dim;
    struct workspace workspace = {.stats = memory, .bytes = (stats + rest) * sizeof(float)};
    workspace.rest = memory != NULL ? workspace.stats + stats : NULL;
    return workspace;
}

size_t ballast_attn_workspace_bytes(const struct ballast_attn_plan *plan, uint32_t flags) {
    return workspace_of(plan, flags, NULL).bytes;
}

static void backward_check(struct request *request, size_t workspace_bytes) {
    const struct ballast_attn_call *call = request->call;
    uint32_t q_rows = request->shape->q_rows;
    uint32_t kv_rows = request->shape->kv_rows;
    request_tensor(request, &call->q, "q", q_rows);
    request_tensor(request, &call->o, "o", q_rows);
    request_tensor(request, &call->d_o, "d_o", q_rows);
    request_tensor(request, &call->dq, "dq", q_rows);
    request_tensor(request, &call->k, "k", kv_rows);
    request_tensor(request, &call->v, "v", kv_rows);
    request_tensor(request, &call->dk, "dk", kv_rows);
    request_tensor(request, &call->dv, "dv", kv_rows);
    if (request->result == 0 && call->workspace_bytes < workspace_bytes) {
        request->result = attn_error(request->error, -ENOSPC,
                                     "workspace of %zu bytes, %zu are needed",
                                     call->workspace_bytes, workspace_bytes);
    }
    if (workspace_bytes > 0 && ((uintptr_t)call->workspace % 16 != 0 || call->workspace == NULL)) {
        request_fail(request, -EINVAL, "workspace: NULL or not 16-byte aligned");
    }
}

static void backward_rows(struct request *request, const struct workspace *workspace,
                          bool deterministic) {
    const struct ballast_attn_call *call = request->call;
    struct rows_params params = {
        .steps = request->lists.steps,
        .step_count = (int32_t)call->plan->steps,
        .pack = (int32_t)request->pack,
        .pack_inverse = attn_inverse(request->pack),
        .q_heads = (int32_t)request->shape->q_heads,
        .o = view_of(&call->o),
        .d_o = view_of(&call->d_o),
        .lse = call->lse,
        .stats = workspace->stats,
        .delta = deterministic ? workspace->rest : NULL,
        .dq_sum = deterministic ? NULL : workspace->rest,
    };
    request_launch(request, KERNEL_ROWS, call->plan->steps, &params);
}

static void backward_keys(struct request *request, const struct workspace *workspace,
                          bool deterministic) {
    const struct ballast_attn_call *call = request->call;
    struct ballast_attn_tensor sums = {
        .data = workspace->rest,
        .row_stride = (int64_t)request->shape->q_heads * request->shape->head_dim,
        .head_stride = request->shape->head_dim,
    };
    struct backward_params params = {
        .key_tiles = request->lists.key_tiles,
        .ranges = request->lists.ranges,
        .steps = request->lists.steps,
        .stats = workspace->stats,
        .key_tile_count = (int32_t)call->plan->key_tiles,
        .pack = (int32_t)request->pack,
        .pack_inverse = attn_inverse(request->pack),
        .zero_tails = (call->flags & BALLAST_ATTN_ZERO_TAILS) != 0,
        .scale = request->scale,
        .scale_log2 = (float)(request->scale * LOG2_E),
        .float_dkdv = (call->flags & BALLAST_ATTN_FLOAT_DKDV) != 0,
        .dk = view_of(&call->dk),
        .dv = view_of(&call->dv),
    };
    request_query_map(request, &params.q, &call->q, request->pack, ATTN_STEP_ROWS);
    request_query_map(request, &params.d_o, &call->d_o, request->pack, ATTN_STEP_ROWS);
    request_key_map(request, &params.k, &call->k, ATTN_KEYS);
    request_key_map(request, &params.v, &call->v, ATTN_KEYS);
    if (!deterministic) {
        request_map(request, &params.dq_sum, DRIVER_FLOAT32, &sums, request->shape->q_rows,
                    request->shape->q_heads, request->pack, ATTN_STEP_ROWS / request->pack);
    }
    request_launch(request, deterministic ? KERNEL_BACKWARD_KEYS : KERNEL_BACKWARD,
                   call->plan->key_tiles, &params);
}

static void backward_queries(struct request *request, const struct workspace *workspace) {
    const struct ballast_attn_call *call = request->call;
    struct query_params params = {
        .tiles = request->lists.tiles,
        .tile_count = (int32_t)call->plan->tiles,
        .group = (int32_t)request->group,
        .group_inverse = attn_inverse(request->group),
        .zero_tails = (call->flags & BALLAST_ATTN_ZERO_TAILS) != 0,
        .scale = request->scale,
        .scale_log2 = (float)(request->scale * LOG2_E),
        .q_heads = (int32_t)request->shape->q_heads,
        .lse = call->lse,
        .delta = workspace->rest,
        .dq = view_of(&call->dq),
    };
    request_query_map(request, &params.q, &call->q, request->group, ATTN_TILE_ROWS);
    request_query_map(request, &params.d_o, &call->d_o, request->group, ATTN_TILE_ROWS);
    request_key_map(request, &params.k, &call->k, QUERY_KEYS);
    request_key_map(request, &params.v, &call->v, QUERY_KEYS);
    request_launch(request, KERNEL_BACKWARD_QUERIES, call->plan->tiles, &params);
}

static void backward_finish(struct request *request, const struct workspace *workspace) {
    const struct ballast_attn_call *call = request->call;
    struct finish_params params = {
        .steps = request->lists.steps,
        .step_count = (int32_t)call->plan->steps,
        .pack = (int32_t)request->pack,
        .pack_inverse = attn_inverse(request->pack),
        .q_heads = (int32_t)request->shape->q_heads,
        .scale = request->scale,
        .dq_sum = workspace->rest,
        .dq = view_of(&call->dq),
    };
    request_launch(request, KERNEL_FINISH, call->plan->steps, &params);
}

int ballast_attn_backward(struct ballast_attn *attn, const struct ballast_attn_call *call,
                          struct ballast_attn_error *error) {
    struct request request = request_of(attn, call, error);
    struct workspace workspace = workspace_of(call->plan, call->flags, call->workspace);
    bool deterministic = (call->flags & BALLAST_ATTN_DETERMINISTIC) != 0;
    backward_check(&request, workspace.bytes);
    if (request.result != 0) {
        return request.result;
    }
    backward_rows(&request, &workspace, deterministic);
    backward_keys(&request, &workspace, deterministic);
    if (deterministic) {
        backward_queries(&request, &workspace);
    } else {
        backward_finish(&request, &workspace);
    }
    return request.result;
}
