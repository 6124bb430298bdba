/* slab_memory: see slab_memory.h. */
#include "daemon/slab_memory.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/mempolicy.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define SLAB_SEALS  (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define SLAB_CGROUP "/proc/self/cgroup"
#define SLAB_BOUND  "/sys/fs/cgroup%s/memory.max"
#define PATH_BYTES  512
#define SLAB_REMEDY "lower slab.slots, daemon.ahead_steps or plan.tokens_max"
#define SLAB_NODES  "/sys/devices/system/node/online"
#define NODE_WORD   (8 * sizeof(unsigned long))
#define NODES_BYTES 64

const char *slab_pages_name(enum slab_pages pages) {
    static const char *const names[] = {"small", "transparent", "huge"};
    return names[pages];
}

/* The bound of this process's control group; UINT64_MAX without one. */
static uint64_t slab_memory_bound(void) {
    char line[PATH_BYTES - sizeof SLAB_BOUND] = "", path[PATH_BYTES];
    uint64_t bound = UINT64_MAX;
    FILE *file = fopen(SLAB_CGROUP, "re");
    while (file != NULL && strncmp(line, "0::", 3) != 0 && fgets(line, sizeof line, file) != NULL) {
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    if (strncmp(line, "0::", 3) != 0) {
        return bound;
    }
    line[strcspn(line, "\n")] = '\0';
    (void)snprintf(path, sizeof path, SLAB_BOUND, line + 3);
    file = fopen(path, "re");
    if (file != NULL) {
        if (fscanf(file, "%" SCNu64, &bound) != 1) {
            bound = UINT64_MAX;
        }
        (void)fclose(file);
    }
    return bound;
}

static uint64_t slab_memory_most(void) {
    struct sysinfo info;
    uint64_t bound = slab_memory_bound();
    uint64_t all = sysinfo(&info) < 0 ? UINT64_MAX : (uint64_t)info.totalram * info.mem_unit;
    return bound < all ? bound : all;
}

/* Pages come when they are written: too many would end this process then, not here. */
static int slab_memory_check(uint64_t bytes, struct error *error) {
    uint64_t most = slab_memory_most();
    if (bytes <= most) {
        return 0;
    }
    return error_set(error, -ENOMEM,
                     "slab: its %" PRIu64 " MiB do not fit into memory of %" PRIu64
                     " MiB; " SLAB_REMEDY,
                     bytes >> 20, most >> 20);
}

/* Creates and maps; 0 or a negative errno. A file of huge pages takes them from the pool here. */
static int slab_memory_map(struct slab_memory *memory, uint64_t bytes, bool huge) {
    struct stat status;
    unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (huge ? MFD_HUGETLB : 0u);
    memory->fd = memfd_create("ballast-slab", flags);
    if (memory->fd < 0 || fstat(memory->fd, &status) < 0) {
        return -errno;
    }
    uint64_t page = (uint64_t)status.st_blksize;
    memory->bytes = (bytes + page - 1) / page * page;
    if (ftruncate(memory->fd, (off_t)memory->bytes) < 0) {
        return -errno;
    }
    void *base = mmap(NULL, memory->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd, 0);
    if (base == MAP_FAILED) {
        return -errno;
    }
    memory->base = base;
    memory->pages = huge ? SLAB_PAGES_HUGE : SLAB_PAGES_SMALL;
    return 0;
}

static int slab_memory_obtain(struct slab_memory *memory, uint64_t bytes, enum slab_huge huge,
                              struct error *error) {
    int code = huge == SLAB_HUGE_OFF ? -ENOMEM : slab_memory_map(memory, bytes, true);
    if (code < 0 && huge == SLAB_HUGE_ON) {
        return error_set(error, code,
                         "slab: huge pages for %" PRIu64
                         " MiB: %s; raise vm.nr_hugepages, or set slab.huge_pages = try",
                         bytes >> 20, strerror(-code));
    }
    if (code < 0) {
        slab_memory_close(memory);
        code = slab_memory_map(memory, bytes, false);
    }
    if (code < 0) {
        return error_set(error, code, "slab: %" PRIu64 " MiB: %s; " SLAB_REMEDY, bytes >> 20,
                         strerror(-code));
    }
    if (huge == SLAB_HUGE_TRY && memory->pages == SLAB_PAGES_SMALL &&
        madvise(memory->base, memory->bytes, MADV_HUGEPAGE) == 0) {
        memory->pages = SLAB_PAGES_TRANSPARENT;
    }
    return 0;
}

/* The nodes that are there, as in "0-1". */
static void slab_memory_nodes(char out[NODES_BYTES]) {
    FILE *file = fopen(SLAB_NODES, "re");
    (void)snprintf(out, NODES_BYTES, "0");
    if (file != NULL) {
        if (fgets(out, NODES_BYTES, file) != NULL) {
            out[strcspn(out, "\n")] = '\0';
        }
        (void)fclose(file);
    }
}

/* The policy is the file's: it holds for whoever writes a page first. */
static int slab_memory_bind(const struct slab_memory *memory, uint32_t node, struct error *error) {
    unsigned long nodes[SLAB_NODES_MAX / NODE_WORD] = {0};
    char known[NODES_BYTES];
    if (node == SLAB_NODE_ANY) {
        return 0;
    }
    nodes[node / NODE_WORD] = 1ul << node % NODE_WORD;
    if (syscall(SYS_mbind, memory->base, memory->bytes, MPOL_BIND, nodes, SLAB_NODES_MAX + 1, 0) ==
        0) {
        return 0;
    }
    int code = -errno;
    slab_memory_nodes(known);
    return error_set(error, code,
                     "slab: memory of NUMA node %u: %s; nodes here are %s: correct slab.numa_node, "
                     "or set it to any",
                     node, strerror(-code), known);
}

int slab_memory_open(struct slab_memory *memory, uint64_t bytes, enum slab_huge huge, uint32_t node,
                     struct error *error) {
    *memory = (struct slab_memory){.fd = -1};
    int code = slab_memory_check(bytes, error);
    if (code == 0) {
        code = slab_memory_obtain(memory, bytes, huge, error);
    }
    if (code == 0) {
        code = slab_memory_bind(memory, node, error);
    }
    if (code == 0 && fcntl(memory->fd, F_ADD_SEALS, SLAB_SEALS) < 0) {
        code = error_set(error, -errno, "slab: sealing: %s; Linux 5.1 or newer is needed",
                         strerror(errno));
    }
    if (code < 0) {
        slab_memory_close(memory);
    }
    return code;
}

void slab_memory_close(struct slab_memory *memory) {
    if (memory->base != NULL) {
        (void)munmap(memory->base, memory->bytes);
    }
    if (memory->fd >= 0) {
        (void)close(memory->fd);
    }
    *memory = (struct slab_memory){.fd = -1};
}
