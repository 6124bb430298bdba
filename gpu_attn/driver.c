/* driver: dlopen, dlsym, and the translation of CUDA's codes. */
#include "gpu_attn/driver.h"

#include "gpu_attn/error.h"
#include "gpu_attn/symbols.h"

#include <dlfcn.h>
#include <errno.h>

static const struct attn_symbol functions[] = {
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

int attn_driver_open(struct attn_driver *driver, struct ballast_attn_error *error) {
    *driver = (struct attn_driver){.library = dlopen(DRIVER_LIBRARY, RTLD_NOW | RTLD_LOCAL)};
    if (driver->library == NULL) {
        return attn_error(error, -ENODEV, "no NVIDIA driver: %s", dlerror());
    }
    int result = attn_symbols_find(driver->library, DRIVER_LIBRARY, functions,
                                   sizeof functions / sizeof *functions, driver, error);
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
