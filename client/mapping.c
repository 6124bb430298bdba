/* mapping: see mapping.h. */
#include "client/mapping.h"

#include <assert.h>
#include <endian.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define MAPPING_SEALS   (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)
#define MAPPING_FDS_MAX 4u

#ifndef MADV_POPULATE_READ /* since glibc 2.35 */
#define MADV_POPULATE_READ 22
#endif

struct mapping {
    const uint8_t *base;
    uint64_t bytes;
    uint32_t references;
    struct mapping_options options;
    pid_t told; /* the process whose options.map had it, 0 none */
};

int mapping_ask(const char *path, const uint8_t token[MAPPING_TOKEN_BYTES], int *fd,
                struct error *error) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t bytes = strlen(path) + 1;
    if (bytes > sizeof address.sun_path) {
        return error_set(error, -ENAMETOOLONG, "data socket path %s is too long", path);
    }
    memcpy(address.sun_path, path, bytes);
    int data_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (data_fd < 0) {
        return error_set(error, -errno, "open a socket: %s", strerror(errno));
    }
    int code = 0;
    if (connect(data_fd, (const struct sockaddr *)&address, sizeof address) < 0 ||
        send(data_fd, token, MAPPING_TOKEN_BYTES, MSG_NOSIGNAL) != (ssize_t)MAPPING_TOKEN_BYTES) {
        code = errno == EAGAIN ? -ECONNREFUSED : -errno;
        (void)error_set(error, code, "data socket %s: %s", path, strerror(errno));
        close(data_fd);
        return code;
    }
    *fd = data_fd;
    return 0;
}

/* The one descriptor of a message, -1 without exactly one; closes the others. */
static int mapping_descriptor(struct msghdr *message) {
    int fds[MAPPING_FDS_MAX];
    size_t count = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(message); part != NULL;
         part = CMSG_NXTHDR(message, part)) {
        if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SCM_RIGHTS) {
            count = (part->cmsg_len - CMSG_LEN(0)) / sizeof fds[0];
            assert(count <= MAPPING_FDS_MAX);
            memcpy(fds, CMSG_DATA(part), count * sizeof fds[0]);
        }
    }
    if (count == 1) {
        return fds[0];
    }
    for (size_t i = 0; i < count; i++) {
        close(fds[i]);
    }
    return -1;
}

/* Tells the caller; what a forked child unmaps was never told there. */
static int mapping_tell(struct mapping *mapping, struct error *error) {
    const struct mapping_options *options = &mapping->options;
    int code = options->map == NULL ? 0
                                    : options->map(options->context, mapping->base, mapping->bytes);
    if (code != 0) {
        return error_set(error, -ECANCELED,
                         "options.map answered %d for the daemon's memory of %llu bytes; if it "
                         "cannot be registered, open without it",
                         code, (unsigned long long)mapping->bytes);
    }
    mapping->told = getpid();
    return 0;
}

static void mapping_unmap(struct mapping *mapping) {
    const struct mapping_options *options = &mapping->options;
    if (options->unmap != NULL && mapping->told == getpid()) {
        options->unmap(options->context, mapping->base, mapping->bytes);
    }
    (void)munmap((void *)mapping->base, mapping->bytes);
    free(mapping);
}

static int mapping_map(int memory_fd, uint64_t bytes, const struct mapping_options *options,
                       struct mapping **out, struct error *error) {
    struct stat status;
    int seals = fcntl(memory_fd, F_GET_SEALS);
    if (seals < 0 || (seals & MAPPING_SEALS) != MAPPING_SEALS) {
        return error_set(error, -EPROTO, "the daemon's memory is not sealed; it is not mapped");
    }
    if (fstat(memory_fd, &status) < 0 || bytes == 0 || (uint64_t)status.st_size < bytes) {
        return error_set(error, -EPROTO,
                         "the daemon's memory is shorter than the slab it promised");
    }
    struct mapping *mapping = malloc(sizeof *mapping);
    if (mapping == NULL) {
        return error_set(error, -ENOMEM, "map the slab: out of memory");
    }
    void *base = mmap(NULL, bytes, PROT_READ, MAP_SHARED, memory_fd, 0);
    if (base == MAP_FAILED) {
        int code = -errno;
        free(mapping);
        return error_set(error, code, "map a slab of %llu bytes: %s", (unsigned long long)bytes,
                         strerror(-code));
    }
    *mapping = (struct mapping){.base = base, .bytes = bytes, .references = 1, .options = *options};
    if (options->prefault) {
        (void)madvise(base, bytes, MADV_POPULATE_READ);
    }
    int code = mapping_tell(mapping, error);
    if (code < 0) {
        mapping_unmap(mapping);
        return code;
    }
    *out = mapping;
    return 0;
}

int mapping_receive(int fd, uint64_t bytes, const struct mapping_options *options,
                    struct mapping **out, struct error *error) {
    char byte;
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(MAPPING_FDS_MAX * sizeof(int))];
    } control;
    struct iovec vector = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {.msg_iov = &vector,
                             .msg_iovlen = 1,
                             .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0) {
        int code = -errno;
        return code == -EAGAIN || code == -EINTR
                   ? 0
                   : error_set(error, code, "data socket: %s", strerror(-code));
    }
    if (got == 0) {
        return error_set(error, -EPIPE, "the daemon closed the data socket");
    }
    int memory_fd = mapping_descriptor(&message);
    if (memory_fd < 0) {
        return error_set(error, -EPROTO, "the data socket answered without one descriptor");
    }
    int code = mapping_map(memory_fd, bytes, options, out, error);
    close(memory_fd);
    return code < 0 ? code : 1;
}

struct mapping *mapping_hold(struct mapping *mapping) {
    mapping->references++;
    return mapping;
}

void mapping_drop(struct mapping *mapping) {
    if (mapping != NULL && --mapping->references == 0) {
        mapping_unmap(mapping);
    }
}

uint64_t mapping_bytes(const struct mapping *mapping) {
    return mapping->bytes;
}

const uint8_t *mapping_at(const struct mapping *mapping, uint64_t offset) {
    assert(offset <= mapping->bytes);
    return mapping->base + offset;
}

/* Pairs with the daemon, which stores a slot's next generation and then a fence before any byte of
 * the next payload, and names it in a message only after the last byte. */
uint64_t mapping_generation_begin(const uint8_t *slot) {
    return le64toh(atomic_load_explicit((const _Atomic uint64_t *)slot, memory_order_acquire));
}

/* The fence keeps the reads of the slot before this load; with the daemon's fence between its store
 * and its writes, a byte of a later payload among those reads shows as a difference here. */
uint64_t mapping_generation_end(const uint8_t *slot) {
    atomic_thread_fence(memory_order_acquire);
    return le64toh(atomic_load_explicit((const _Atomic uint64_t *)slot, memory_order_relaxed));
}
