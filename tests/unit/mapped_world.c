/* mapped_world: see mapped_world.h. */
#include "tests/unit/mapped_world.h"
#include "corpus/mapped.h"

#include <assert.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <unistd.h>

static void guard_find(struct sigaction *guard) {
    struct mapping mapping;
    int fd = open("/proc/self/exe", O_RDONLY);
    bool mapped = mapping_open(fd, &mapping);
    assert(mapped);
    mapping_close(&mapping);
    close(fd);
    int code = sigaction(SIGBUS, NULL, guard);
    assert(code == 0 && guard->sa_sigaction != NULL);
}

void mapped_world_guard(void) {
    static struct sigaction guard;
    if (guard.sa_sigaction == NULL) {
        guard_find(&guard);
    }
    int code = sigaction(SIGBUS, &guard, NULL);
    assert(code == 0);
}
