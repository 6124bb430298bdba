/* fake_runtime: see the header. Signatures are the driver's. */
#include "fake_runtime.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS, INVALID_VALUE, NOT_READY = 600, LAUNCH_FAILED = 719 };

struct copy_2d {
    size_t from_x, from_y;
    int from_type;
    const void *from_host;
    uint64_t from;
    void *from_array;
    size_t from_pitch;
    size_t to_x, to_y;
    int to_type;
    void *to_host;
    uint64_t to;
    void *to_array;
    size_t to_pitch;
    size_t width_bytes, height;
};

/* Where an event was recorded last: behind `position` tasks of the stream. */
struct event {
    struct stream *stream;
    uint64_t position;
};

struct task {
    fake_stream_task *run;
    void *argument;
    struct stream *after; /* runs first, up to its position */
    uint64_t position;
    struct task *next;
};

struct stream {
    struct task *first;
    struct task **last;
    uint64_t appended;
    uint64_t run;
    int failed;
    bool lazy; /* whatever the schedule */
};

/* As struct ballast_copy. */
struct copy_rows {
    uint64_t to, to_stride, from, from_stride, row_bytes, rows;
};

struct launch {
    struct copy_rows copies[64];
    unsigned count, grid_x, block_x;
    bool add;
};

static atomic_uint fail_at;
static atomic_int objects;
static atomic_bool busy_streams;
static atomic_bool eager_streams;
static atomic_uint copies_max;
static const char *_Atomic last_image;

int cuGetErrorName(int result, const char **name);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamDestroy_v2(void *stream);
int cuStreamQuery(void *stream);
int cuStreamWaitEvent(void *stream, void *event, unsigned flags);
int cuEventCreate(void **event, unsigned flags);
int cuEventDestroy_v2(void *event);
int cuEventRecord(void *event, void *stream);
int cuMemAlloc_v2(uint64_t *memory, size_t bytes);
int cuMemFree_v2(uint64_t memory);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream);
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream);
int cuMemcpy2DAsync_v2(const struct copy_2d *copy, void *stream);
int cuModuleLoadData(void **module, const void *image);
int cuModuleUnload(void *module);
int cuModuleGetFunction(void **function, void *module, const char *name);
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void *stream, void **params, void **extra);

void fake_runtime_fail_at(unsigned calls) {
    atomic_store(&fail_at, calls);
}

void fake_runtime_busy(bool busy) {
    atomic_store(&busy_streams, busy);
}

void fake_runtime_eager(bool eager) {
    atomic_store(&eager_streams, eager);
}

const char *fake_runtime_image(void) {
    return atomic_load(&last_image);
}

int fake_runtime_objects(void) {
    return atomic_load(&objects);
}

static bool fails(void) {
    unsigned left = atomic_load(&fail_at);
    while (left > 0 && !atomic_compare_exchange_weak(&fail_at, &left, left - 1)) {
    }
    return left == 1;
}

/* A new object, or NULL when its turn to fail has come. */
static void *object(size_t bytes) {
    void *made = fails() ? NULL : calloc(1, bytes > 0 ? bytes : 1);
    atomic_fetch_add(&objects, made != NULL);
    return made;
}

static int object_free(void *made) {
    atomic_fetch_sub(&objects, 1);
    free(made);
    return SUCCESS;
}

int cuGetErrorName(int result, const char **name) {
    *name = result == LAUNCH_FAILED ? "CUDA_ERROR_LAUNCH_FAILED" : "CUDA_ERROR_INVALID_VALUE";
    return SUCCESS;
}

int cuStreamCreate(void **stream, unsigned flags) {
    struct stream *made = object(sizeof *made);
    if (made == NULL || flags != 1) {
        return INVALID_VALUE;
    }
    made->last = &made->first;
    *stream = made;
    return SUCCESS;
}

void *fake_stream_create(void) {
    void *stream = NULL;
    if (cuStreamCreate(&stream, 1) != SUCCESS) {
        return NULL;
    }
    ((struct stream *)stream)->lazy = true;
    return stream;
}

static int stream_run(struct stream *stream, uint64_t position) {
    while (stream->run < position && stream->failed == SUCCESS) {
        struct task *task = stream->first;
        stream->first = task->next;
        stream->last = stream->first == NULL ? &stream->first : stream->last;
        stream->run++;
        if (task->after != NULL) {
            stream->failed = stream_run(task->after, task->position);
        } else if (task->run != NULL) {
            stream->failed = task->run(task->argument);
        }
        free(task);
    }
    return stream->failed;
}

int fake_stream_settle(void *stream) {
    return stream_run(stream, ((struct stream *)stream)->appended);
}

/* As far as it comes without running another stream. */
static void stream_run_ahead(struct stream *stream) {
    while (stream->first != NULL && stream->failed == SUCCESS &&
           (stream->first->after == NULL || stream->first->after->run >= stream->first->position)) {
        (void)stream_run(stream, stream->run + 1);
    }
}

static int append(struct stream *stream, struct task wanted) {
    struct task *task = malloc(sizeof *task);
    if (task == NULL) {
        return INVALID_VALUE;
    }
    *task = wanted;
    *stream->last = task;
    stream->last = &task->next;
    stream->appended++;
    if (atomic_load(&eager_streams) && !stream->lazy) {
        stream_run_ahead(stream);
    }
    return SUCCESS;
}

int fake_stream_append(void *stream, fake_stream_task *task, void *argument) {
    return append(stream, (struct task){.run = task, .argument = argument});
}

int cuStreamQuery(void *stream) {
    if (atomic_load(&busy_streams)) {
        return NOT_READY;
    }
    return fails() ? INVALID_VALUE : fake_stream_settle(stream);
}

/* What never came to its turn is dropped, arguments and all. */
int cuStreamDestroy_v2(void *memory) {
    struct stream *stream = memory;
    while (stream->first != NULL) {
        struct task *task = stream->first;
        stream->first = task->next;
        free(task->argument);
        free(task);
    }
    return object_free(stream);
}

void fake_stream_destroy(void *stream) {
    (void)cuStreamDestroy_v2(stream);
}

int cuEventCreate(void **event, unsigned flags) {
    *event = flags == 2 ? object(sizeof(struct event)) : NULL;
    return *event != NULL ? SUCCESS : INVALID_VALUE;
}

int cuEventDestroy_v2(void *event) {
    return object_free(event);
}

int cuEventRecord(void *memory, void *stream) {
    struct event *event = memory;
    if (fails()) {
        return INVALID_VALUE;
    }
    *event = (struct event){stream, ((struct stream *)stream)->appended};
    return SUCCESS;
}

int cuStreamWaitEvent(void *stream, void *memory, unsigned flags) {
    const struct event *event = memory;
    if (fails() || flags != 0) {
        return INVALID_VALUE;
    }
    return append(stream, (struct task){.after = event->stream, .position = event->position});
}

int cuMemAlloc_v2(uint64_t *memory, size_t bytes) {
    void *made = object(bytes);
    *memory = (uintptr_t)made;
    return made != NULL ? SUCCESS : INVALID_VALUE;
}

int cuMemFree_v2(uint64_t memory) {
    return object_free((void *)(uintptr_t)memory);
}

static int run_copy(void *argument) {
    struct copy_2d *copy = argument;
    for (size_t row = 0; row < copy->height; row++) {
        memcpy((char *)(uintptr_t)copy->to + row * copy->to_pitch,
               (const char *)(uintptr_t)copy->from + row * copy->from_pitch, copy->width_bytes);
    }
    free(copy);
    return SUCCESS;
}

int cuMemcpy2DAsync_v2(const struct copy_2d *copy, void *stream) {
    if (fails() || copy->from_type != 2 || copy->to_type != 2 ||
        copy->from_pitch < copy->width_bytes || copy->to_pitch < copy->width_bytes) {
        return INVALID_VALUE;
    }
    struct copy_2d *kept = malloc(sizeof *kept);
    if (kept == NULL) {
        return INVALID_VALUE;
    }
    *kept = *copy;
    return fake_stream_append(stream, run_copy, kept);
}

static int copy_line(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    const struct copy_2d copy = {.from_type = 2,
                                 .from = from,
                                 .from_pitch = bytes,
                                 .to_type = 2,
                                 .to = to,
                                 .to_pitch = bytes,
                                 .width_bytes = bytes,
                                 .height = 1};
    return cuMemcpy2DAsync_v2(&copy, stream);
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    return copy_line(to, (uintptr_t)from, bytes, stream);
}

/* To memory that is not pinned: the host would wait for the stream, for ever where it never ends.
 */
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    if (atomic_load(&busy_streams)) {
        return INVALID_VALUE;
    }
    return copy_line((uintptr_t)to, from, bytes, stream);
}

int cuModuleLoadData(void **module, const void *image) {
    bool right = strncmp(image, ".version", 8) == 0 &&
                 strstr(image, ".entry ballast_rows(") != NULL;
    *module = right ? object(1) : NULL;
    atomic_store(&last_image, image);
    return *module != NULL ? SUCCESS : INVALID_VALUE;
}

int cuModuleUnload(void *module) {
    return object_free(module);
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = module;
    return strcmp(name, "ballast_rows") == 0 && !fails() ? SUCCESS : INVALID_VALUE;
}

unsigned fake_runtime_copies_max(void) {
    return atomic_exchange(&copies_max, 0);
}

/* As the PTX says, thread by thread. */
static void run_rows(const struct launch *launch, const struct copy_rows *copy) {
    uint64_t words = copy->row_bytes / 4, step = (uint64_t)launch->grid_x * launch->block_x;
    for (uint64_t thread = 0; thread < step; thread++) {
        for (uint64_t i = thread; i < words * copy->rows; i += step) {
            uint64_t row = i / words;
            float *to = (float *)(uintptr_t)(copy->to + row * copy->to_stride) + i % words;
            const float *from = (const float *)(uintptr_t)(copy->from + row * copy->from_stride) +
                                i % words;
            if (launch->add) {
                *to += *from;
            } else {
                memcpy(to, from, sizeof *to);
            }
        }
    }
}

static int run_launch(void *argument) {
    struct launch *launch = argument;
    for (unsigned i = 0; i < launch->count; i++) {
        run_rows(launch, &launch->copies[i]);
    }
    free(launch);
    return SUCCESS;
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void *stream, void **params, void **extra) {
    bool right = function != NULL && grid_x > 0 && grid_y > 0 && grid_y <= 64 && grid_z == 1 &&
                 block_x > 0 && block_x <= 1024 && block_y == 1 && block_z == 1 &&
                 shared_bytes == 0 && extra == NULL;
    struct launch *launch = right && !fails() ? malloc(sizeof *launch) : NULL;
    if (launch == NULL) {
        return INVALID_VALUE;
    }
    launch->count = grid_y;
    for (unsigned most = atomic_load(&copies_max);
         most < grid_y && !atomic_compare_exchange_weak(&copies_max, &most, grid_y);) {
    }
    launch->grid_x = grid_x;
    launch->block_x = block_x;
    launch->add = *(const uint32_t *)params[1] != 0;
    memcpy(launch->copies, params[0], sizeof launch->copies);
    return fake_stream_append(stream, run_launch, launch);
}
