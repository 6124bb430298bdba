/* device: see the header. */
#include "gpu_attn/measure/device.h"

#include "gpu_attn/error.h"
#include "gpu_attn/symbols.h"

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM_UP        2u
#define MANAGEMENT     "libnvidia-ml.so.1"
#define DRAWN          ((size_t)1 << 20) /* bytes that are drawn; then they repeat */
#define CLOCK_RATE_KHZ 13                /* CU_DEVICE_ATTRIBUTE_CLOCK_RATE */
#define CLOCK_SM       1                 /* NVML_CLOCK_SM */

static const struct attn_symbol symbols[] = {
    {"cuDriverGetVersion", offsetof(struct measure_driver, driver_version)},
    {"cuDeviceGetCount", offsetof(struct measure_driver, device_count)},
    {"cuDeviceGetName", offsetof(struct measure_driver, device_name)},
    {"cuDeviceGetPCIBusId", offsetof(struct measure_driver, device_bus)},
    {"cuDevicePrimaryCtxRetain", offsetof(struct measure_driver, context_retain)},
    {"cuCtxSetCurrent", offsetof(struct measure_driver, context_set)},
    {"cuDevicePrimaryCtxRelease_v2", offsetof(struct measure_driver, context_release)},
    {"cuMemAlloc_v2", offsetof(struct measure_driver, memory_alloc)},
    {"cuMemFree_v2", offsetof(struct measure_driver, memory_free)},
    {"cuMemGetInfo_v2", offsetof(struct measure_driver, memory_info)},
    {"cuMemcpyHtoD_v2", offsetof(struct measure_driver, copy_in)},
    {"cuMemcpyDtoDAsync_v2", offsetof(struct measure_driver, copy_within)},
    {"cuEventCreate", offsetof(struct measure_driver, event_create)},
    {"cuEventDestroy_v2", offsetof(struct measure_driver, event_destroy)},
    {"cuEventRecord", offsetof(struct measure_driver, event_record)},
    {"cuEventSynchronize", offsetof(struct measure_driver, event_wait)},
    {"cuEventElapsedTime", offsetof(struct measure_driver, event_elapsed_ms)},
};

static int check(struct measure_device *device, int result, const char *doing,
                 struct ballast_attn_error *error) {
    return attn_driver_check(&device->driver, result, doing, error);
}

static int device_is_there(struct measure_device *device, struct ballast_attn_error *error) {
    int result = check(device, device->calls.device_count(&device->count), "counting devices",
                       error);
    if (result == 0 && device->count == 0) {
        result = attn_error(error, -ENODEV,
                            "the NVIDIA driver finds no device; run this on a machine with a "
                            "Hopper GPU, and see what CUDA_VISIBLE_DEVICES hides");
    }
    if (result == 0 && device->ordinal >= device->count) {
        result = attn_error(error, -ENODEV,
                            "there is no device %d, only %d; choose another by --device",
                            device->ordinal, device->count);
    }
    return result;
}

static int device_describe(struct measure_device *device, struct ballast_attn_error *error) {
    int version = 0, major = 0, minor = 0, sms = 0, khz = 0;
    int (*attribute)(int *value, int number, int ordinal) = device->driver.device_attribute;
    int result = device->calls.driver_version(&version);
    result |= device->calls.device_name(device->name, sizeof device->name, device->ordinal);
    result |= attribute(&major, DRIVER_MAJOR, device->ordinal);
    result |= attribute(&minor, DRIVER_MINOR, device->ordinal);
    result |= attribute(&sms, DRIVER_SMS, device->ordinal);
    if (attribute(&khz, CLOCK_RATE_KHZ, device->ordinal) != 0) {
        khz = 0;
    }
    if (result != 0) {
        return check(device, result, "asking what the device is", error);
    }
    if (major != 9 || minor != 0) {
        return attn_error(error, -ENOTSUP,
                          "%s has compute capability %d.%d and the kernels need 9.0 (Hopper); "
                          "choose another device by --device",
                          device->name, major, minor);
    }
    (void)snprintf(device->cuda, sizeof device->cuda, "%d.%d", version / 1000, version % 1000 / 10);
    device->sms = (uint32_t)sms;
    device->clock_cap_mhz = (uint32_t)khz / 1000;
    return 0;
}

/* What only the management library knows; without it the profile says less. It counts devices that
 * CUDA_VISIBLE_DEVICES hides too, so the bus names ours. */
static void device_manage(struct measure_device *device) {
    void *library = dlopen(MANAGEMENT, RTLD_NOW | RTLD_LOCAL);
    struct {
        int (*init)(void);
        int (*driver)(char *text, unsigned bytes);
        int (*handle)(const char *bus, void **handle);
        int (*power)(void *handle, unsigned *milliwatts);
        int (*clock)(void *handle, int domain, unsigned *mhz);
    } management;
    static const struct attn_symbol wanted[] = {
        {"nvmlInit_v2", offsetof(__typeof__(management), init)},
        {"nvmlSystemGetDriverVersion", offsetof(__typeof__(management), driver)},
        {"nvmlDeviceGetHandleByPciBusId_v2", offsetof(__typeof__(management), handle)},
        {"nvmlDeviceGetPowerManagementLimit", offsetof(__typeof__(management), power)},
        {"nvmlDeviceGetClockInfo", offsetof(__typeof__(management), clock)},
    };
    char bus[32] = "";
    unsigned milliwatts = 0;
    if (library == NULL ||
        attn_symbols_find(library, MANAGEMENT, wanted, sizeof wanted / sizeof *wanted, &management,
                          NULL) != 0 ||
        management.init() != 0) {
        return;
    }
    if (management.driver(device->driver_text, sizeof device->driver_text) != 0) {
        device->driver_text[0] = '\0';
    }
    if (device->calls.device_bus(bus, sizeof bus, device->ordinal) != 0 ||
        management.handle(bus, &device->managed) != 0) {
        device->managed = NULL;
        return;
    }
    device->clock = management.clock;
    if (management.power(device->managed, &milliwatts) == 0) {
        device->power_cap_w = milliwatts / 1000;
    }
}

static int device_context(struct measure_device *device, struct ballast_attn_error *error) {
    void *context = NULL;
    int result = device->calls.context_retain(&context, device->ordinal);
    result = result != 0 ? result : device->calls.context_set(context);
    result = result != 0 ? result : device->calls.event_create(&device->start, 0);
    result = result != 0 ? result : device->calls.event_create(&device->end, 0);
    return check(device, result, "opening the device", error);
}

int measure_device_open(struct measure_device *device, int ordinal,
                        struct ballast_attn_error *error) {
    *device = (struct measure_device){.ordinal = ordinal};
    int result = attn_driver_open(&device->driver, error);
    if (result != 0) {
        return result;
    }
    result = attn_symbols_find(device->driver.library, DRIVER_LIBRARY, symbols,
                               sizeof symbols / sizeof *symbols, &device->calls, error);
    result = result != 0 ? result : device_is_there(device, error);
    result = result != 0 ? result : device_describe(device, error);
    result = result != 0 ? result : device_context(device, error);
    if (result != 0) {
        measure_device_close(device);
        return result;
    }
    device_manage(device);
    return 0;
}

void measure_device_close(struct measure_device *device) {
    if (device->start != NULL) {
        (void)device->calls.event_destroy(device->start);
    }
    if (device->end != NULL) {
        (void)device->calls.event_destroy(device->end);
        (void)device->calls.context_release(device->ordinal);
    }
    attn_driver_close(&device->driver);
    *device = (struct measure_device){0};
}

int measure_device_alloc(struct measure_device *device, size_t bytes, const char *what, void **out,
                         struct ballast_attn_error *error) {
    uint64_t memory = 0;
    size_t free_bytes = 0, all_bytes = 0;
    if (bytes > 0 && device->calls.memory_alloc(&memory, bytes) != 0) {
        (void)device->calls.memory_info(&free_bytes, &all_bytes);
        return attn_error(error, -ENOMEM,
                          "%zu MiB for %s do not fit: %zu of %zu MiB of the device are free; end "
                          "what else runs there, or ask for fewer heads",
                          bytes >> 20, what, free_bytes >> 20, all_bytes >> 20);
    }
    *out = (void *)(uintptr_t)memory;
    return 0;
}

void measure_device_free(struct measure_device *device, void *memory) {
    if (memory != NULL) {
        (void)device->calls.memory_free((uint64_t)(uintptr_t)memory);
    }
}

int measure_device_copy(struct measure_device *device, void *to, const void *from, size_t bytes,
                        struct ballast_attn_error *error) {
    int result = device->calls.copy_in((uint64_t)(uintptr_t)to, from, bytes);
    return check(device, result, "copying to the device", error);
}

static uint16_t drawn_value(uint64_t *random) {
    float sum = 0; /* of four, each in [-0.5, 0.5): deviation 0.577 */
    for (int i = 0; i < 4; i++) {
        *random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        sum += (float)(*random >> 40) / (1 << 24) - 0.5f;
    }
    float value = 1.73f * sum;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)(bits >> 16);
}

int measure_device_fill(struct measure_device *device, void *memory, size_t bytes,
                        struct ballast_attn_error *error) {
    size_t filled = bytes < DRAWN ? bytes : DRAWN;
    uint16_t *drawn = malloc(filled + 1);
    uint64_t random = 11;
    if (drawn == NULL) {
        return attn_error(error, -ENOMEM, "out of memory");
    }
    for (size_t i = 0; i < filled / 2; i++) {
        drawn[i] = drawn_value(&random);
    }
    int result = measure_device_copy(device, memory, drawn, filled / 2 * 2, error);
    free(drawn);
    while (result == 0 && filled < bytes) {
        size_t more = bytes - filled < filled ? bytes - filled : filled;
        uint64_t from = (uint64_t)(uintptr_t)memory;
        result = check(device, device->calls.copy_within(from + filled, from, more, NULL),
                       "filling memory", error);
        filled += more;
    }
    return result;
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a;
    float y = *(const float *)b;
    return (x > y) - (x < y);
}

static uint64_t ps_of(float ms) {
    double ps = (double)ms * 1e9;
    return ps < 1 ? 1 : (uint64_t)llround(ps);
}

static void clock_see(struct measure_device *device) {
    unsigned mhz = 0;
    if (device->managed == NULL || device->clock(device->managed, CLOCK_SM, &mhz) != 0 ||
        mhz == 0) {
        return;
    }
    if (device->clock_min_mhz == 0 || mhz < device->clock_min_mhz) {
        device->clock_min_mhz = mhz;
    }
    device->clock_max_mhz = mhz > device->clock_max_mhz ? mhz : device->clock_max_mhz;
}

/* The clock is asked for behind the last event, while the device works. */
static int time_once(struct measure_device *device, measure_work *work, void *context, bool clock,
                     float *ms, struct ballast_attn_error *error) {
    int result = check(device, device->calls.event_record(device->start, NULL), "event", error);
    result = result != 0 ? result : work(context, error);
    if (result == 0) {
        result = check(device, device->calls.event_record(device->end, NULL), "event", error);
    }
    if (result == 0 && clock) {
        clock_see(device);
    }
    if (result == 0) {
        result = check(device, device->calls.event_wait(device->end), "what is measured", error);
    }
    if (result == 0) {
        result = check(device, device->calls.event_elapsed_ms(ms, device->start, device->end),
                       "event", error);
    }
    return result;
}

int measure_device_time(struct measure_device *device, measure_work *work, void *context,
                        uint32_t runs, struct measure_time *out, struct ballast_attn_error *error) {
    float ms[MEASURE_RUNS_MAX];
    int result = 0;
    for (uint32_t run = 0; result == 0 && run < WARM_UP + runs; run++) {
        result = time_once(device, work, context, run + 1 == WARM_UP + runs,
                           &ms[run < WARM_UP ? 0 : run - WARM_UP], error);
    }
    if (result == 0) {
        qsort(ms, runs, sizeof *ms, ascending);
        *out = (struct measure_time){ps_of(ms[(runs - 1) / 2]), ps_of(ms[runs / 10]),
                                     ps_of(ms[runs - 1 - runs / 10])};
    }
    return result;
}
