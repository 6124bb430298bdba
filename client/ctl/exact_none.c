/* exact_none: the exact solver of a build without GLPK: it refuses. */
#include "client/ctl/exact.h"

int exact_check(struct error *error) {
    return error_set(error, -ENOSYS,
                     "--exact: this ballastctl was built without GLPK; install libglpk-dev, "
                     "configure and build again");
}

int exact_search(struct exact_instance *instance, uint32_t limit_ms, uint64_t *bound_work,
                 struct error *error) {
    (void)instance;
    (void)limit_ms;
    (void)bound_work;
    return exact_check(error);
}
