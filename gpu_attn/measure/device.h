/* device: the GPU as the measuring program sees it: who it is, memory, and how long work takes.
 *
 * All of it by the machine's driver, found at run time as everything of CUDA here; so the program
 * starts anywhere, and tests put a driver with a clock of their own in its place. One thread. */
#ifndef BALLAST_GPU_ATTN_MEASURE_DEVICE_H
#define BALLAST_GPU_ATTN_MEASURE_DEVICE_H

#include "gpu_attn/driver.h"

#include <stddef.h>
#include <stdint.h>

#define MEASURE_RUNS_MAX 64u

struct measure_driver {
    int (*driver_version)(int *version);
    int (*device_count)(int *count);
    int (*device_name)(char *name, int bytes, int device);
    int (*device_bus)(char *bus, int bytes, int device);
    int (*context_retain)(void **context, int device);
    int (*context_set)(void *context);
    int (*context_release)(int device);
    int (*memory_alloc)(uint64_t *memory, size_t bytes);
    int (*memory_free)(uint64_t memory);
    int (*memory_info)(size_t *free_bytes, size_t *bytes);
    int (*copy_in)(uint64_t to, const void *from, size_t bytes);
    int (*copy_within)(uint64_t to, uint64_t from, size_t bytes, void *stream);
    int (*event_create)(void **event, unsigned flags);
    int (*event_destroy)(void *event);
    int (*event_record)(void *event, void *stream);
    int (*event_wait)(void *event);
    int (*event_elapsed_ms)(float *ms, void *start, void *end);
};

struct measure_device {
    struct attn_driver driver;
    struct measure_driver calls;
    int ordinal;
    int count; /* of devices */
    char name[128];
    char cuda[32];        /* "13.0" */
    char driver_text[32]; /* as the management library says; "" without it */
    uint32_t sms;
    uint32_t clock_cap_mhz;
    uint32_t power_cap_w; /* 0: not known */
    void *managed;        /* the management library's device; NULL: not known */
    int (*clock)(void *managed, int domain, unsigned *mhz);
    uint32_t clock_min_mhz; /* of the SMs, seen while work that was timed ran; 0: not known */
    uint32_t clock_max_mhz;
    void *start;
    void *end;
};

/* Makes the device's context the calling thread's. -ENODEV without a driver or such a device,
 * -ENOTSUP for one that is no Hopper; each with the remedy. */
int measure_device_open(struct measure_device *device, int ordinal,
                        struct ballast_attn_error *error);

/* Zeroed and half-open ones are fine. */
void measure_device_close(struct measure_device *device);

/* Device memory; NULL with 0 bytes. -ENOMEM names what for. */
int measure_device_alloc(struct measure_device *device, size_t bytes, const char *what, void **out,
                         struct ballast_attn_error *error);
void measure_device_free(struct measure_device *device, void *memory);

/* Waits until the bytes are there. */
int measure_device_copy(struct measure_device *device, void *to, const void *from, size_t bytes,
                        struct ballast_attn_error *error);

/* Nearly normal bf16 values of mean 0, deviation 1: zeros would be too fast. */
int measure_device_fill(struct measure_device *device, void *memory, size_t bytes,
                        struct ballast_attn_error *error);

/* Enqueues what is measured on the default stream. */
typedef int measure_work(void *context, struct ballast_attn_error *error);

/* Times of `runs` runs, after two that do not count: what half of them, and all but a tenth at
 * either end, took. Never 0. */
struct measure_time {
    uint64_t ps; /* lower median */
    uint64_t low_ps;
    uint64_t high_ps;
};
int measure_device_time(struct measure_device *device, measure_work *work, void *context,
                        uint32_t runs, struct measure_time *out, struct ballast_attn_error *error);

#endif
