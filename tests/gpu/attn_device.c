/* attn_device: what a device is asked, in the order in which a failure is cheapest.
 *
 *   attn_device probes [FILE]    single instructions against the emulator's answers; the device's
 *                                own, raw floats, into FILE
 *   attn_device check [DIM [N]]  every problem of the kernels' tests against the reference, and
 *                                what is to be the same bits twice; of one head dimension, the
 *                                first N
 *   attn_device time             useful TFLOP/s, median of 10, of whole documents and fragments
 *
 * The tests' own world runs unchanged, on the host's side of buffers that have copies on the
 * device. Prints a closing line with what passed. A launch that the device does not survive ends
 * the program: nothing after it would be told apart. */
#include "gpu_attn/driver.h"
#include "gpu_attn/reference.h"
#include "tests/gpu/probes.h"
#include "tests/kernels/attn_problems.h"
#include "tests/property/splitmix.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

#define RUNS        10
#define MIRRORS_MAX 32u

/* The world names its schedule in complaints; a device has only its own. */
struct fake_cuda fake_cuda;

/* What the launcher does not need of the driver. */
static struct {
    int (*context_retain)(void **context, int device);
    int (*context_set)(void *context);
    int (*context_wait)(void);
    int (*allocate)(uint64_t *memory, size_t bytes);
    int (*memory_free)(uint64_t memory);
    int (*copy_in)(uint64_t to, const void *from, size_t bytes);
    int (*copy_out)(void *to, uint64_t from, size_t bytes);
    int (*event_create)(void **event, unsigned flags);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);
    int (*event_elapsed_ms)(float *ms, void *start, void *end);
} cuda;

static struct attn_driver driver;
static int passed;
static int failed;

static void require(int result, const char *doing) {
    struct ballast_attn_error error = {0};
    if (attn_driver_check(&driver, result, doing, &error) != 0) {
        printf("%s\n%d passed, %d failed before that\n", error.text, passed, failed);
        exit(2);
    }
}

static void find(void *function, const char *name) {
    void *found = dlsym(driver.library, name);
    if (found == NULL) {
        printf("the driver has no %s\n", name);
        exit(2);
    }
    memcpy(function, &found, sizeof found);
}

/* Buffers of the host and their copies on the device. */
static struct mirror {
    void *host;
    uint64_t device;
    size_t bytes;
} mirrors[MIRRORS_MAX];

static uint64_t memory_open(size_t bytes) {
    uint64_t memory = 0;
    require(cuda.allocate(&memory, bytes), "memory");
    return memory;
}

static void *mirror_allocate(size_t bytes) {
    struct mirror *mirror = mirrors;
    while (mirror < mirrors + MIRRORS_MAX && mirror->host != NULL) {
        mirror++;
    }
    assert(mirror < mirrors + MIRRORS_MAX);
    bytes = (bytes + 63) / 64 * 64;
    *mirror = (struct mirror){aligned_alloc(64, bytes), memory_open(bytes), bytes};
    assert(mirror->host != NULL);
    memset(mirror->host, 0, bytes);
    return mirror->host;
}

static struct mirror *mirror_of(const void *host) {
    struct mirror *mirror = mirrors;
    while (mirror < mirrors + MIRRORS_MAX && mirror->host != host) {
        mirror++;
    }
    assert(host != NULL && mirror < mirrors + MIRRORS_MAX);
    return mirror;
}

static void mirror_release(void *host, size_t bytes) {
    struct mirror *mirror = mirror_of(host);
    (void)bytes;
    (void)cuda.memory_free(mirror->device);
    free(host);
    *mirror = (struct mirror){0};
}

static void *mirror_on_device(void *host) {
    return (void *)(uintptr_t)mirror_of(host)->device;
}

static void mirror_begin(void) {
    for (size_t i = 0; i < MIRRORS_MAX; i++) {
        if (mirrors[i].host != NULL) {
            require(cuda.copy_in(mirrors[i].device, mirrors[i].host, mirrors[i].bytes),
                    "copying to the device");
        }
    }
}

/* After an error of the device every call gives it again. */
static const char *mirror_finish(void) {
    require(cuda.context_wait(), "the kernel; it ends the run");
    for (size_t i = 0; i < MIRRORS_MAX; i++) {
        if (mirrors[i].host != NULL) {
            require(cuda.copy_out(mirrors[i].host, mirrors[i].device, mirrors[i].bytes),
                    "copying from the device");
        }
    }
    return NULL;
}

static void device_open(void) {
    struct ballast_attn_error error = {0};
    void *context = NULL;
    if (attn_driver_open(&driver, &error) != 0) {
        printf("%s\n", error.text);
        exit(2);
    }
    find(&cuda.context_retain, "cuDevicePrimaryCtxRetain");
    find(&cuda.context_set, "cuCtxSetCurrent");
    find(&cuda.context_wait, "cuCtxSynchronize");
    find(&cuda.allocate, "cuMemAlloc_v2");
    find(&cuda.memory_free, "cuMemFree_v2");
    find(&cuda.copy_in, "cuMemcpyHtoD_v2");
    find(&cuda.copy_out, "cuMemcpyDtoH_v2");
    find(&cuda.event_create, "cuEventCreate");
    find(&cuda.event_record, "cuEventRecord");
    find(&cuda.event_wait, "cuEventSynchronize");
    find(&cuda.event_elapsed_ms, "cuEventElapsedTime");
    require(cuda.context_retain(&context, 0), "the device's context");
    require(cuda.context_set(context), "the device's context");
    attn_memory = (struct attn_memory){mirror_allocate, mirror_release, mirror_on_device,
                                       mirror_begin, mirror_finish};
}

static void report(const char *what, const char *wrong) {
    passed += wrong == NULL;
    failed += wrong != NULL;
    printf("%-40s %s\n", what, wrong == NULL ? "ok" : wrong);
    (void)fflush(stdout);
}

/* Probes. */

struct probe_memory {
    uint16_t *a;
    uint16_t *b;
    float *sums;
    float *out;
};

#define PROBE_OUT ((size_t)PROBE_FORMS * 128 * PROBE_VALUES)

static struct probe_memory probe_memory_fill(void) {
    struct probe_memory memory = {
        .a = mirror_allocate(64 * 64 * sizeof(uint16_t)),
        .b = mirror_allocate(PROBE_ROWS * 128 * sizeof(uint16_t)),
        .sums = mirror_allocate(64 * 32 * sizeof(float)),
        .out = mirror_allocate(PROBE_OUT * sizeof(float)),
    };
    for (int i = 0; i < PROBE_ROWS * 128; i++) {
        memory.b[i] = (uint16_t)bf16_of((float)((i / 128 * 5 + i % 128 * 3) % 9 - 4));
        if (i < 64 * 64) {
            memory.a[i] = (uint16_t)bf16_of((float)((i / 64 * 3 + i % 64 * 7) % 9 - 4));
        }
    }
    return memory;
}

/* The maps of attn_probes, by the driver's encoder or the emulator's. */
static int probe_encode(struct tensor_map *map, int type, void *base, uint32_t columns,
                        uint32_t rows, uint32_t box_rows, bool emulated) {
    uint32_t bytes = type == DRIVER_FLOAT32 ? 4 : 2;
    uint64_t size[3] = {columns, 1, rows};
    uint64_t stride_bytes[2] = {columns * bytes, columns * bytes};
    uint32_t box[3] = {128 / bytes, 1, box_rows};
    uint32_t one[3] = {1, 1, 1};
    return emulated ? emulator_encode(map, base, bytes, size, stride_bytes, box)
                    : driver.encode(map, type, 3, base, size, stride_bytes, box, one, 0,
                                    DRIVER_SWIZZLE_128B, DRIVER_PROMOTE_256B, 0);
}

static struct probe_params probe_params_of(const struct probe_memory *host, bool emulated) {
    struct probe_memory at = *host;
    if (!emulated) {
        at = (struct probe_memory){mirror_on_device(host->a), mirror_on_device(host->b),
                                   mirror_on_device(host->sums), mirror_on_device(host->out)};
    }
    const struct probe_memory *memory = &at;
    struct probe_params params = {.out = memory->out};
    require(probe_encode(&params.a, DRIVER_BFLOAT16, memory->a, 64, 64, 64, emulated), "map of A");
    require(
        probe_encode(&params.b, DRIVER_BFLOAT16, memory->b, 128, PROBE_ROWS, PROBE_ROWS, emulated),
        "map of B");
    require(probe_encode(&params.sums, DRIVER_FLOAT32, memory->sums, 32, 60, 64, emulated),
            "map of sums");
    return params;
}

static void probes_launch(struct probe_params *params) {
    void *module = NULL;
    void *function = NULL;
    void *arguments[1] = {params};
    static unsigned char image[1 << 20];
    const char *path = getenv("BALLAST_PROBES") != NULL ? getenv("BALLAST_PROBES") : PROBES_FATBIN;
    FILE *file = fopen(path, "rb");
    if (file == NULL || fread(image, 1, sizeof image, file) == 0) {
        printf("cannot read %s\n", path);
        exit(2);
    }
    (void)fclose(file);
    require(driver.module_load(&module, image), "loading the probes");
    require(driver.module_function(&function, module, "attn_probes"), "attn_probes");
    require(driver.function_set(function, DRIVER_SHARED_BYTES, PROBE_SHARED), "shared memory");
    mirror_begin();
    require(driver.launch(function, 1, 1, 1, 128, 1, 1, PROBE_SHARED, NULL, arguments, NULL),
            "launching the probes");
    (void)mirror_finish();
}

static const char *probe_compare(const float *got, const float *want, size_t count) {
    static char text[160];
    size_t wrong = 0;
    for (size_t i = 0; i < count; i++) {
        bool same = memcmp(&got[i], &want[i], sizeof got[i]) == 0;
        if (!same && wrong++ == 0) {
            (void)snprintf(text, sizeof text, "thread %zu, value %zu: %g, the emulator has %g",
                           i / PROBE_VALUES, i % PROBE_VALUES, (double)got[i], (double)want[i]);
        }
    }
    if (wrong > 0) {
        size_t used = strlen(text);
        (void)snprintf(text + used, sizeof text - used, "; %zu of %zu differ", wrong, count);
    }
    return wrong > 0 ? text : NULL;
}

/* So that a reading of the layouts that turns out wrong can be set right without the device. */
static void probes_keep(const char *path, const float *out) {
    FILE *file = fopen(path, "wb");
    bool whole = file != NULL && fwrite(out, sizeof *out, PROBE_OUT, file) == PROBE_OUT;
    whole = file != NULL && fclose(file) == 0 && whole;
    printf("%s %s\n", whole ? "the device's answers are in" : "cannot write", path);
}

static void run_probes(const char *path) {
    static const char *const names[PROBE_FORMS] = {
        "wgmma, both shared, K-major, 128 columns", "wgmma, both shared, K-major, 64 columns",
        "wgmma, both shared, M- and N-major",       "wgmma, A in registers, 128 columns",
        "wgmma, A in registers, 64 columns",        "TMA box, 128-byte swizzle"};
    struct probe_memory device = probe_memory_fill();
    struct probe_memory host = probe_memory_fill();
    struct probe_params device_params = probe_params_of(&device, false);
    struct probe_params host_params = probe_params_of(&host, true);
    struct emulator_launch launch = {.blocks = 1,
                                     .threads = 128,
                                     .resident = 1,
                                     .shared_bytes = PROBE_SHARED,
                                     .schedule = EMULATOR_EAGER,
                                     .seed = 1};
    probes_launch(&device_params);
    if (emulator_run(&launch, attn_probes, &host_params) != 0) {
        report("the emulator", emulator_error());
    }
    for (size_t form = 0; form < PROBE_FORMS; form++) {
        size_t at = form * 128 * PROBE_VALUES;
        report(names[form],
               probe_compare(device.out + at, host.out + at, (size_t)128 * PROBE_VALUES));
    }
    report("bulk addition, clipped", probe_compare(device.sums, host.sums, (size_t)64 * 32));
    if (path != NULL) {
        probes_keep(path, device.out);
    }
}

/* Correctness: the emulated suite's problems, both passes. */

static const char *both_passes(struct attn_world *world, struct attn_errors *errors) {
    const char *wrong = attn_world_forward(world, errors);
    return wrong != NULL ? wrong : attn_world_backward(world, errors);
}

/* Bits of the outputs that a second run must give again: all, or all but dQ. */
static uint64_t outputs_hash(const struct attn_world *world, bool deterministic) {
    const struct attn_operand *outputs[] = {&world->o, &world->dk, &world->dv, &world->dq};
    uint64_t hash = 0;
    for (int i = 0; i < (deterministic ? 4 : 3); i++) {
        bool floats = outputs[i]->floats != NULL;
        const void *data = floats ? (void *)outputs[i]->floats : (void *)outputs[i]->bf16;
        size_t bytes = outputs[i]->elements * (floats ? sizeof(float) : sizeof(uint16_t));
        hash = XXH3_64bits_withSeed(data, bytes, hash);
    }
    return XXH3_64bits_withSeed(world->lse, (size_t)world->o.rows * world->o.heads * sizeof(float),
                                hash);
}

static const char *twice_the_same(struct attn_world *world) {
    bool deterministic = (world->problem->flags & BALLAST_ATTN_DETERMINISTIC) != 0;
    struct attn_errors errors;
    uint64_t first = outputs_hash(world, deterministic);
    for (int run = 0; run < 3; run++) {
        const char *wrong = both_passes(world, &errors);
        if (wrong != NULL || outputs_hash(world, deterministic) != first) {
            return wrong != NULL ? wrong : "other bits in another run";
        }
    }
    return NULL;
}

static void check_problem(uint32_t index, uint32_t head_dim, uint32_t flags) {
    char name[80];
    struct attn_problem problem;
    struct attn_world world;
    struct attn_errors errors = {0};
    attn_problem_draw(&problem, index, head_dim);
    problem.flags = flags;
    attn_world_open(&world, &problem);
    const char *wrong = both_passes(&world, &errors);
    wrong = wrong != NULL ? wrong : twice_the_same(&world);
    attn_world_close(&world);
    (void)snprintf(name, sizeof name, "%s, d%u, flags %u", problem.name, head_dim, flags);
    report(name, wrong);
    printf("    o %.1e lse %.1e dq %.1e dk %.1e dv %.1e\n", errors.o, errors.lse, errors.dq,
           errors.dk, errors.dv);
}

/* Of one head dimension, or both (0). */
static void run_check(uint32_t only, uint32_t count) {
    const uint32_t second = BALLAST_ATTN_ZERO_TAILS | BALLAST_ATTN_DETERMINISTIC |
                            BALLAST_ATTN_FLOAT_DKDV;
    for (uint32_t head_dim = 128; head_dim >= 64; head_dim -= 64) {
        for (uint32_t i = 0; i < count && (only == 0 || only == head_dim); i++) {
            check_problem(i, head_dim, 0);
            check_problem(i, head_dim, second);
        }
    }
}

/* Timing. */

struct timed {
    struct ballast_attn_plan plan;
    struct ballast_attn_call call;
    struct ballast_attn *attn;
    double pairs; /* of one query head */
};

#define DRAWN ((size_t)1 << 20) /* elements; then they repeat: drawing takes longer than timing */

/* Nearly normal, as zeros would be too fast; twice over, so that DRAWN of them follow any. */
static const uint16_t *drawn_values(void) {
    static uint16_t drawn[2 * DRAWN];
    uint64_t random = 11;
    for (size_t i = 0; i < DRAWN && drawn[2 * DRAWN - 1] == 0; i++) {
        double sum = 0;
        for (int j = 0; j < 4; j++) {
            sum += (double)splitmix_between(&random, 0, 65535) / 65536 - 0.5;
        }
        drawn[i] = drawn[DRAWN + i] = (uint16_t)bf16_of((float)(1.7 * sum));
    }
    return drawn;
}

static struct ballast_attn_tensor timed_tensor(uint32_t rows, uint32_t heads, uint32_t head_dim,
                                               uint64_t *random) {
    size_t elements = (size_t)rows * heads * head_dim;
    uint64_t memory = memory_open(elements * sizeof(uint16_t));
    const uint16_t *drawn = drawn_values() + splitmix_between(random, 0, DRAWN - 1);
    for (size_t done = 0, part; done < elements; done += part) {
        part = elements - done < DRAWN ? elements - done : DRAWN;
        require(cuda.copy_in(memory + done * sizeof *drawn, drawn, part * sizeof *drawn),
                "copying to the device");
    }
    return (struct ballast_attn_tensor){(void *)(uintptr_t)memory, (int64_t)heads * head_dim,
                                        head_dim};
}

static void timed_open(struct timed *timed, const struct attn_problem *problem) {
    const struct ballast_attn_shape *shape = &problem->shape;
    uint64_t random = 11;
    struct ballast_attn_error error = {0};
    *timed = (struct timed){0};
    size_t bytes = ballast_attn_plan_bytes(shape, problem->fragments, problem->count);
    void *memory = malloc(bytes);
    if (ballast_attn_plan_init(&timed->plan, shape, problem->fragments, problem->count, memory,
                               bytes, &error) != 0 ||
        ballast_attn_open(&timed->attn, &error) != 0) {
        printf("%s\n", error.text);
        exit(2);
    }
    uint64_t lists = memory_open(timed->plan.lists_bytes);
    require(cuda.copy_in(lists, timed->plan.lists, timed->plan.lists_bytes),
            "copying to the device");
    free(memory);
    struct ballast_attn_call *call = &timed->call;
    call->plan = &timed->plan;
    call->lists = (const void *)(uintptr_t)lists;
    call->workspace_bytes = ballast_attn_workspace_bytes(&timed->plan, 0);
    call->workspace = (void *)(uintptr_t)memory_open(call->workspace_bytes);
    call->lse = (float *)(uintptr_t)memory_open((size_t)shape->q_rows * shape->q_heads *
                                                sizeof(float));
    struct ballast_attn_tensor *queries[4] = {&call->q, &call->o, &call->d_o, &call->dq};
    struct ballast_attn_tensor *keys[4] = {&call->k, &call->v, &call->dk, &call->dv};
    for (int i = 0; i < 4; i++) {
        *queries[i] = timed_tensor(shape->q_rows, shape->q_heads, shape->head_dim, &random);
        *keys[i] = timed_tensor(shape->kv_rows, shape->kv_heads, shape->head_dim, &random);
    }
    for (uint32_t f = 0; f < problem->count; f++) {
        for (uint32_t i = 0; i < (uint32_t)problem->fragments[f].q_length; i++) {
            timed->pairs += attn_reference_keys(&problem->fragments[f], i);
        }
    }
}

static void timed_close(struct timed *timed) {
    const struct ballast_attn_call *call = &timed->call;
    void *memory[] = {call->q.data,
                      call->o.data,
                      call->d_o.data,
                      call->dq.data,
                      call->k.data,
                      call->v.data,
                      call->dk.data,
                      call->dv.data,
                      call->lse,
                      call->workspace,
                      (void *)(uintptr_t)call->lists};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) {
        (void)cuda.memory_free((uint64_t)(uintptr_t)memory[i]);
    }
    ballast_attn_close(timed->attn);
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a;
    float y = *(const float *)b;
    return (x > y) - (x < y);
}

typedef int attn_pass(struct ballast_attn *attn, const struct ballast_attn_call *call,
                      struct ballast_attn_error *error);

/* Median in ms; three runs to warm up. */
static double timed_run(struct timed *timed, attn_pass *pass) {
    float times[RUNS];
    void *start = NULL;
    void *end = NULL;
    struct ballast_attn_error error = {0};
    require(cuda.event_create(&start, 0), "event");
    require(cuda.event_create(&end, 0), "event");
    for (int run = -3; run < RUNS; run++) {
        float ms = 0;
        require(cuda.event_record(start, NULL), "event");
        if (pass(timed->attn, &timed->call, &error) != 0) {
            printf("%s\n", error.text);
            exit(2);
        }
        require(cuda.event_record(end, NULL), "event");
        require(cuda.event_wait(end), "the kernel");
        require(cuda.event_elapsed_ms(&ms, start, end), "event");
        times[run < 0 ? 0 : run] = ms;
    }
    qsort(times, RUNS, sizeof *times, ascending);
    return (double)times[RUNS / 2];
}

/* Useful TFLOP/s. */
struct speed {
    double forward;
    double backward;
};

static struct speed time_problem(const struct attn_problem *problem) {
    struct timed timed;
    timed_open(&timed, problem);
    double flops = 4 * timed.pairs * problem->shape.head_dim * problem->shape.q_heads;
    double forward_ms = timed_run(&timed, ballast_attn_forward);
    double backward_ms = timed_run(&timed, ballast_attn_backward);
    struct speed speed = {flops / forward_ms / 1e9, 2.5 * flops / backward_ms / 1e9};
    printf("%-34s d%-3u forward %8.3f ms %5.0f TFLOP/s   backward %8.3f ms %5.0f TFLOP/s\n",
           problem->name, problem->shape.head_dim, forward_ms, speed.forward, backward_ms,
           speed.backward);
    (void)fflush(stdout);
    timed_close(&timed);
    return speed;
}

/* 16k tokens as equal causal documents. */
static struct speed time_documents(int32_t length, uint32_t head_dim) {
    char name[64];
    struct attn_problem problem = {.name = name, .shape = {head_dim, 32, 4, 0, 0}};
    (void)snprintf(name, sizeof name, "%d documents of %d", 16384 / length, length);
    for (int32_t row = 0; row < 16384; row += length) {
        attn_problem_add(&problem, row, length, row, length, 0);
    }
    return time_problem(&problem);
}

/* A context-parallel rank's queries: pieces of `length` rows against a prefix of 16k keys. */
static struct speed time_fragments(int32_t length) {
    char name[64];
    struct attn_problem problem = {.name = name, .shape = {128, 32, 4, 0, 0}};
    int32_t pieces = 2048 / length < 64 ? 2048 / length : 64;
    (void)snprintf(name, sizeof name, "%d fragments of %d of 16384", pieces, length);
    for (int32_t i = 0; i < pieces; i++) {
        attn_problem_add(&problem, i * length, length, 0, 16384, 16384 - length);
    }
    return time_problem(&problem);
}

/* Documents of very different lengths, none longer than a quarter. */
static void time_packed(void) {
    struct attn_problem problem = {.name = "packed documents", .shape = {128, 32, 4, 0, 0}};
    uint64_t random = 3;
    int32_t row = 0;
    while (row < 16384 && problem.count < WORLD_FRAGMENTS_MAX) {
        int32_t length = (int32_t)splitmix_between(&random, 1,
                                                   1u << splitmix_between(&random, 5, 12));
        length = length < 16384 - row ? length : 16384 - row;
        attn_problem_add(&problem, row, length, row, length, 0);
        row += length;
    }
    (void)time_problem(&problem);
}

static void aim(const char *what, double found, double least) {
    printf("%-34s %6.2f of %.2f: %s\n", what, found, least, found >= least ? "met" : "MISSED");
}

static void run_time(void) {
    static const int32_t lengths[] = {16, 64, 128, 256, 1024};
    struct speed whole = {0, 0};
    struct speed pieces[sizeof lengths / sizeof *lengths];
    printf("32 query heads, 4 K/V heads, bf16, causal; useful work, median of %d\n", RUNS);
    for (int32_t length = 1024; length <= 16384; length *= 4) {
        whole = time_documents(length, 128);
        (void)time_documents(length, 64);
    }
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        pieces[i] = time_fragments(lengths[i]);
    }
    time_packed();
    aim("forward, causal 16384, d128", whole.forward, 550);
    aim("backward, causal 16384, d128", whole.backward, 400);
    aim("64 rows of 16384, to whole, forward", pieces[1].forward / whole.forward, 0.85);
    aim("64 rows of 16384, to whole, backward", pieces[1].backward / whole.backward, 0.85);
}

static uint32_t number(const char *text) {
    return (uint32_t)strtoul(text, NULL, 10);
}

int main(int count, char **arguments) {
    const char *what = count >= 2 ? arguments[1] : "";
    const char *detail = count >= 3 ? arguments[2] : NULL;
    device_open();
    if (strcmp(what, "probes") == 0) {
        run_probes(detail);
    } else if (strcmp(what, "check") == 0) {
        run_check(detail != NULL ? number(detail) : 0,
                  count >= 4 ? number(arguments[3]) : attn_problem_count());
    } else if (strcmp(what, "time") == 0) {
        run_time();
        return 0;
    } else {
        printf("usage: attn_device probes [FILE] | check [64 | 128 [N]] | time\n");
        return 2;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0 || passed == 0;
}
