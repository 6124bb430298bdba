#include "tests/kernels/attn_world.h"

#include "gpu_attn/reference.h"
#include "tests/property/splitmix.h"

#include <assert.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define O_ERROR_MAX    3e-3
#define LSE_ERROR_MAX  1e-4
#define GRAD_ERROR_MAX 4e-3
#define SQUARE_FLOOR   1e-6 /* of an element: answers that are exactly 0 are met to a thousandth */
#define SENTINEL       0x7fc1 /* a NaN that no kernel makes */

static char complaint[1200];

static void *allocate(size_t count, size_t size) {
    size_t bytes = (count * size + 64) / 64 * 64;
    void *memory = aligned_alloc(64, bytes);
    assert(memory != NULL);
    memset(memory, 0, bytes);
    return memory;
}

/* Operands with rows far apart: only their rows are ever looked at. */
#define SPARSE_ELEMENTS ((size_t)1 << 24)

static void *host_allocate(size_t bytes) {
    if (bytes < SPARSE_ELEMENTS) {
        return allocate(bytes, 1);
    }
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert(memory != MAP_FAILED);
    return memory;
}

static void host_release(void *memory, size_t bytes) {
    if (bytes < SPARSE_ELEMENTS) {
        free(memory);
    } else {
        (void)munmap(memory, bytes);
    }
}

static void *host_itself(void *memory) {
    return memory;
}

static void host_begin(void) {
}

static const char *host_finish(void) {
    return NULL;
}

struct attn_memory attn_memory = {host_allocate, host_release, host_itself, host_begin,
                                  host_finish};

/* Elements that are looked at when nothing should be written: all, or none when sparse. */
static size_t operand_scanned(const struct attn_operand *operand) {
    return operand->elements < SPARSE_ELEMENTS ? operand->elements : 0;
}

static size_t packed_elements(const struct attn_operand *operand, uint32_t head_dim) {
    return (size_t)operand->rows * operand->heads * head_dim;
}

static void operand_open(struct attn_operand *operand, const struct attn_problem *problem,
                         uint32_t rows, uint32_t heads, bool floats) {
    uint32_t head_dim = problem->shape.head_dim;
    operand->rows = rows;
    operand->heads = heads;
    operand->head_stride = head_dim + 8 * problem->head_extra;
    operand->row_stride = operand->head_stride * heads + 8 * problem->row_extra;
    operand->elements = (size_t)operand->row_stride * rows + 1;
    operand->exact = allocate(packed_elements(operand, head_dim) + 1, sizeof(double));
    if (floats) {
        operand->floats = attn_memory.allocate(operand->elements * sizeof(float));
    } else {
        operand->bf16 = attn_memory.allocate(operand->elements * sizeof(uint16_t));
    }
}

static void operand_close(struct attn_operand *operand) {
    if (operand->floats != NULL) {
        attn_memory.release(operand->floats, operand->elements * sizeof(float));
    } else {
        attn_memory.release(operand->bf16, operand->elements * sizeof(uint16_t));
    }
    free(operand->exact);
}

static size_t operand_at(const struct attn_operand *operand, uint32_t row, uint32_t head) {
    return (size_t)((int64_t)row * operand->row_stride + (int64_t)head * operand->head_stride);
}

/* Normal deviates (Box and Muller). */
static double normal_draw(uint64_t *random) {
    double u = ((double)(splitmix_next(random) >> 11) + 0.5) / 9007199254740992.0;
    double v = (double)(splitmix_next(random) >> 11) / 9007199254740992.0;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Random in live rows, NaN in the gaps of strides and where `live` says so. */
static void operand_draw(struct attn_operand *operand, uint32_t head_dim, const bool *live,
                         bool poison, uint64_t *random) {
    for (size_t i = 0; i < operand_scanned(operand); i++) {
        operand->bf16[i] = SENTINEL;
    }
    for (uint32_t row = 0; row < operand->rows; row++) {
        for (uint32_t head = 0; head < operand->heads; head++) {
            size_t place = (size_t)row * operand->heads + head;
            for (uint32_t i = 0; i < head_dim && (live[place] || !poison); i++) {
                uint16_t *to = &operand->bf16[operand_at(operand, row, head) + i];
                *to = (uint16_t)bf16_of((float)normal_draw(random));
                operand->exact[place * head_dim + i] = bf16_low(*to);
            }
        }
    }
}

static void operand_poison(struct attn_operand *operand) {
    for (size_t i = 0; i < operand_scanned(operand); i++) {
        if (operand->floats != NULL) {
            operand->floats[i] = -12345;
        } else {
            operand->bf16[i] = SENTINEL;
        }
    }
}

static void mark_covered(struct attn_world *world) {
    const struct attn_problem *problem = world->problem;
    uint32_t group = problem->shape.q_heads / problem->shape.kv_heads;
    for (uint32_t f = 0; f < problem->count; f++) {
        const struct ballast_attn_fragment *fragment = &problem->fragments[f];
        for (uint32_t h = 0; h < fragment->head_count; h++) {
            uint32_t head = fragment->head_begin + h;
            for (int32_t i = 0; i < fragment->q_length; i++) {
                world->covered[(size_t)(fragment->q_row + i) * problem->shape.q_heads + head] =
                    true;
            }
            for (int32_t i = 0; i < fragment->kv_length; i++) {
                world->key_covered[(size_t)(fragment->kv_row + i) * problem->shape.kv_heads +
                                   head / group] = true;
            }
        }
    }
}

static double problem_scale(const struct attn_problem *problem) {
    return problem->scale != 0 ? (double)problem->scale : 1 / sqrt(problem->shape.head_dim);
}

static void reference_run(struct attn_world *world) {
    const struct attn_problem *problem = world->problem;
    double *scores = allocate(problem->shape.kv_rows + 1, sizeof *scores);
    struct attn_reference reference = {
        .shape = &problem->shape,
        .fragments = problem->fragments,
        .count = problem->count,
        .scale = problem_scale(problem),
        .q = world->q.exact,
        .k = world->k.exact,
        .v = world->v.exact,
        .o = world->o.exact,
        .lse = world->lse_exact,
        .d_o = world->d_o.exact,
        .dq = world->dq.exact,
        .dk = world->dk.exact,
        .dv = world->dv.exact,
    };
    attn_reference_forward(&reference, scores);
    attn_reference_backward(&reference, scores);
    free(scores);
}

static void world_plan(struct attn_world *world) {
    const struct attn_problem *problem = world->problem;
    struct ballast_attn_error error = {0};
    size_t bytes = ballast_attn_plan_bytes(&problem->shape, problem->fragments, problem->count);
    world->plan_memory = allocate(bytes, 1);
    int result = ballast_attn_plan_init(&world->plan, &problem->shape, problem->fragments,
                                        problem->count, world->plan_memory, bytes, &error);
    if (result != 0) {
        printf("%s: %s\n", problem->name, error.text);
    }
    assert(result == 0);
    void *lists = attn_memory.allocate(world->plan.lists_bytes + 1);
    memcpy(lists, world->plan.lists, world->plan.lists_bytes);
    free(world->plan_memory);
    world->plan_memory = lists;
    world->plan.lists = lists;
    world->workspace_bytes = ballast_attn_workspace_bytes(&world->plan, problem->flags);
    world->workspace = attn_memory.allocate(world->workspace_bytes + 1);
}

void attn_world_open(struct attn_world *world, const struct attn_problem *problem) {
    const struct ballast_attn_shape *shape = &problem->shape;
    bool floats = (problem->flags & BALLAST_ATTN_FLOAT_DKDV) != 0;
    bool poison = (problem->flags & BALLAST_ATTN_ZERO_TAILS) != 0;
    uint64_t random = 7;
    *world = (struct attn_world){.problem = problem};
    operand_open(&world->q, problem, shape->q_rows, shape->q_heads, false);
    operand_open(&world->o, problem, shape->q_rows, shape->q_heads, false);
    operand_open(&world->d_o, problem, shape->q_rows, shape->q_heads, false);
    operand_open(&world->dq, problem, shape->q_rows, shape->q_heads, false);
    operand_open(&world->k, problem, shape->kv_rows, shape->kv_heads, false);
    operand_open(&world->v, problem, shape->kv_rows, shape->kv_heads, false);
    operand_open(&world->dk, problem, shape->kv_rows, shape->kv_heads, floats);
    operand_open(&world->dv, problem, shape->kv_rows, shape->kv_heads, floats);
    size_t q_places = (size_t)shape->q_rows * shape->q_heads + 1;
    world->lse = attn_memory.allocate(q_places * sizeof *world->lse);
    world->lse_exact = allocate(q_places, sizeof *world->lse_exact);
    world->covered = allocate(q_places, sizeof *world->covered);
    world->key_covered = allocate((size_t)shape->kv_rows * shape->kv_heads + 1, 1);
    mark_covered(world);
    operand_draw(&world->q, shape->head_dim, world->covered, poison, &random);
    operand_draw(&world->d_o, shape->head_dim, world->covered, poison, &random);
    operand_draw(&world->k, shape->head_dim, world->key_covered, poison, &random);
    operand_draw(&world->v, shape->head_dim, world->key_covered, poison, &random);
    reference_run(world);
    world_plan(world);
    struct ballast_attn_error error = {0};
    int result = ballast_attn_open(&world->attn, &error);
    if (result != 0) {
        printf("%s\n", error.text);
    }
    assert(result == 0);
}

void attn_world_close(struct attn_world *world) {
    ballast_attn_close(world->attn);
    operand_close(&world->q);
    operand_close(&world->k);
    operand_close(&world->v);
    operand_close(&world->o);
    operand_close(&world->d_o);
    operand_close(&world->dq);
    operand_close(&world->dk);
    operand_close(&world->dv);
    attn_memory.release(world->lse, ((size_t)world->o.rows * world->o.heads + 1) * sizeof(float));
    free(world->lse_exact);
    free(world->covered);
    free(world->key_covered);
    attn_memory.release(world->plan_memory, world->plan.lists_bytes + 1);
    attn_memory.release(world->workspace, world->workspace_bytes + 1);
}

static struct ballast_attn_tensor tensor_of(const struct attn_operand *operand) {
    return (struct ballast_attn_tensor){
        .data = attn_memory.on_device(operand->floats != NULL ? (void *)operand->floats
                                                              : (void *)operand->bf16),
        .row_stride = operand->row_stride,
        .head_stride = operand->head_stride,
    };
}

static struct ballast_attn_call call_of(struct attn_world *world) {
    return (struct ballast_attn_call){
        .plan = &world->plan,
        .lists = attn_memory.on_device(world->plan_memory),
        .q = tensor_of(&world->q),
        .k = tensor_of(&world->k),
        .v = tensor_of(&world->v),
        .o = tensor_of(&world->o),
        .d_o = tensor_of(&world->d_o),
        .dq = tensor_of(&world->dq),
        .dk = tensor_of(&world->dk),
        .dv = tensor_of(&world->dv),
        .lse = attn_memory.on_device(world->lse),
        .scale = world->problem->scale,
        .flags = world->problem->flags,
        .workspace = attn_memory.on_device(world->workspace),
        .workspace_bytes = world->workspace_bytes,
    };
}

static const char *complain(const struct attn_world *world, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static const char *complain(const struct attn_world *world, const char *format, ...) {
    int used = snprintf(
        complaint, sizeof complaint, "%s, d%u, schedule %d, seed %llu: ", world->problem->name,
        world->problem->shape.head_dim, fake_cuda.schedule, (unsigned long long)fake_cuda.seed);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(complaint + used, sizeof complaint - (size_t)used, format, arguments);
    va_end(arguments);
    return complaint;
}

static double operand_value(const struct attn_operand *operand, size_t at) {
    return operand->floats != NULL ? (double)operand->floats[at]
                                   : (double)bf16_low(operand->bf16[at]);
}

static bool operand_untouched(const struct attn_operand *operand, size_t at) {
    return operand->floats != NULL ? operand->floats[at] == -12345 : operand->bf16[at] == SENTINEL;
}

/* Compares covered rows, checks that nothing else was written. */
static const char *operand_compare(const struct attn_world *world, const char *name,
                                   const struct attn_operand *operand, const bool *covered,
                                   double error_max, double *error) {
    uint32_t head_dim = world->problem->shape.head_dim;
    double difference = 0;
    double norm = 0;
    size_t touched = 0;
    for (size_t i = 0; i < operand_scanned(operand); i++) {
        touched += !operand_untouched(operand, i);
    }
    for (uint32_t row = 0; row < operand->rows; row++) {
        for (uint32_t head = 0; head < operand->heads; head++) {
            size_t place = (size_t)row * operand->heads + head;
            size_t at = operand_at(operand, row, head);
            for (uint32_t i = 0; covered[place] && i < head_dim; i++) {
                double want = operand->exact[place * head_dim + i];
                double got = operand_value(operand, at + i);
                touched -= !operand_untouched(operand, at + i);
                if (!isfinite(got)) {
                    return complain(world, "%s: row %u head %u column %u is %f", name, row, head, i,
                                    got);
                }
                difference += (got - want) * (got - want);
                norm += want * want + SQUARE_FLOOR;
            }
        }
    }
    *error = norm > 0 ? sqrt(difference / norm) : 0;
    if (touched > 0 && operand_scanned(operand) > 0) {
        return complain(world, "%s: %zu elements written that nobody owns", name, touched);
    }
    if (!(*error <= error_max)) {
        return complain(world, "%s: relative error %.2e", name, *error);
    }
    return NULL;
}

static const char *lse_compare(const struct attn_world *world, double *error) {
    size_t places = (size_t)world->problem->shape.q_rows * world->problem->shape.q_heads;
    *error = 0;
    for (size_t i = 0; i < places; i++) {
        double got = (double)world->lse[i];
        double want = world->lse_exact[i];
        if (!world->covered[i] && !isnan(got)) {
            return complain(world, "lse: place %zu written that nobody owns", i);
        }
        bool same = isinf(want) ? isinf(got) && got < 0 : fabs(got - want) < LSE_ERROR_MAX;
        if (world->covered[i] && !same) {
            return complain(world, "lse: place %zu is %f, not %f", i, got, want);
        }
        if (world->covered[i] && !isinf(want)) {
            *error = fmax(*error, fabs(got - want));
        }
    }
    return NULL;
}

const char *attn_world_forward(struct attn_world *world, struct attn_errors *errors) {
    struct ballast_attn_error error = {0};
    struct ballast_attn_call call = call_of(world);
    size_t places = (size_t)world->problem->shape.q_rows * world->problem->shape.q_heads;
    for (size_t i = 0; i < places; i++) {
        world->lse[i] = NAN;
    }
    operand_poison(&world->o);
    attn_memory.begin();
    if (ballast_attn_forward(world->attn, &call, &error) != 0) {
        return complain(world, "%s", error.text);
    }
    const char *late = attn_memory.finish();
    if (late != NULL) {
        return complain(world, "forward: %s", late);
    }
    const char *wrong = lse_compare(world, &errors->lse);
    return wrong != NULL
               ? wrong
               : operand_compare(world, "o", &world->o, world->covered, O_ERROR_MAX, &errors->o);
}

const char *attn_world_backward(struct attn_world *world, struct attn_errors *errors) {
    struct ballast_attn_error error = {0};
    struct ballast_attn_call call = call_of(world);
    memset(world->workspace, 0xff, world->workspace_bytes);
    operand_poison(&world->dq);
    operand_poison(&world->dk);
    operand_poison(&world->dv);
    attn_memory.begin();
    if (ballast_attn_backward(world->attn, &call, &error) != 0) {
        return complain(world, "%s", error.text);
    }
    const char *late = attn_memory.finish();
    if (late != NULL) {
        return complain(world, "backward: %s", late);
    }
    const char *wrong = operand_compare(world, "dq", &world->dq, world->covered, GRAD_ERROR_MAX,
                                        &errors->dq);
    if (wrong == NULL) {
        wrong = operand_compare(world, "dk", &world->dk, world->key_covered, GRAD_ERROR_MAX,
                                &errors->dk);
    }
    return wrong != NULL ? wrong
                         : operand_compare(world, "dv", &world->dv, world->key_covered,
                                           GRAD_ERROR_MAX, &errors->dv);
}
