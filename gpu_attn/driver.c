/* driver: dlopen, dlsym, and the translation of CUDA's codes. */
#include "gpu_attn/driver.h"

#include "gpu_attn/error.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    {"cuInit", offsetof(struct attn_driver, init)},
    {"cuGetErrorName", offsetof(struct attn_driver, error_name)},
    {"cuCtxGetDevice", offsetof(struct attn_driver, context_device)},
    {"cuDeviceGetAttribute", offsetof(struct attn_driver, device_attribute)},
    {"cuModuleLoadData", offsetof(struct attn_driver, module_load)},
    {"cuModuleUnload", offsetof(struct attn_driver, module_unload)},
    {"cuModuleGetFunction", offsetof(struct attn_driver, module_function)},
    {"cuFuncSetAttribute", offsetof(struct attn_driver, function_set)},
    {"cuLaunchKernel", offsetof(struct attn_driver, launch)},
    {"cuTensorMapEncodeTiled", offsetof(struct attn_driver, encode)},
};

static int functions_find(struct attn_driver *driver, struct ballast_attn_error *error) {
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(driver->library, functions[i].name);
        if (found == NULL) {
            return attn_error(error, -ENODEV, "%s has no %s: the driver is too old", DRIVER_LIBRARY,
                              functions[i].name);
        }
        memcpy((char *)driver + functions[i].offset, &found, sizeof found);
    }
    return 0;
}

int attn_driver_open(struct attn_driver *driver, struct ballast_attn_error *error) {
    *driver = (struct attn_driver){.library = dlopen(DRIVER_LIBRARY, RTLD_NOW | RTLD_LOCAL)};
    if (driver->library == NULL) {
        return attn_error(error, -ENODEV, "no NVIDIA driver: %s", dlerror());
    }
    int result = functions_find(driver, error);
    if (result == 0 && driver->init(0) != 0) {
        result = attn_error(error, -ENODEV, "the NVIDIA driver finds no device");
    }
    if (result != 0) {
        attn_driver_close(driver);
    }
    return result;
}

void attn_driver_close(struct attn_driver *driver) {
    if (driver->library != NULL) {
        (void)dlclose(driver->library);
    }
    *driver = (struct attn_driver){0};
}

int attn_driver_check(const struct attn_driver *driver, int result, const char *doing,
                      struct ballast_attn_error *error) {
    const char *name = NULL;
    if (result == 0) {
        return 0;
    }
    if (driver->error_name(result, &name) != 0 || name == NULL) {
        name = "an unknown error";
    }
    return attn_error(error, -EIO, "%s: %s", doing, name);
}
