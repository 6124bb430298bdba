/* state_dir: see state_dir.h. */
#include "daemon/state_dir.h"

#include "daemon/failpoint.h"

#include <endian.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <xxhash.h>

#define RESERVE      "ballast.reserve"
#define HEADER_BYTES 100 /* of a SQLite file */

/* statfs f_type of what is not a local disk. */
static const struct {
    uint64_t magic;
    const char *name;
} network_types[] = {
    {0x6969, "NFS"},      {0x01021997, "9p"},     {0x65735546, "FUSE or virtiofs"},
    {0x517b, "SMB"},      {0xff534d42, "CIFS"},   {0xfe534d42, "SMB2"},
    {0x00c36400, "Ceph"}, {0x5346414f, "AFS"},    {0x0bd00bd0, "Lustre"},
    {0x47504653, "GPFS"}, {0x19830326, "BeeGFS"},
};

static int refuse_network(const struct state_dir *dir, struct error *error) {
    struct statfs info;
    const char *allowed = getenv("BALLAST_ALLOW_NETWORK_STATE");
    if (fstatfs(dir->fd, &info) < 0) {
        return error_set(error, -errno, "%s: statfs: %s", dir->path, strerror(errno));
    }
    if (allowed != NULL && strcmp(allowed, "1") == 0) {
        return 0;
    }
    for (size_t i = 0; i < sizeof network_types / sizeof network_types[0]; i++) {
        if ((uint64_t)info.f_type == network_types[i].magic) {
            return error_set(error, -EINVAL,
                             "%s is on %s, where locks and syncs are not to be relied on; put "
                             "[daemon] state_dir on a local disk, or set "
                             "BALLAST_ALLOW_NETWORK_STATE=1",
                             dir->path, network_types[i].name);
        }
    }
    return 0;
}

/* "-EBUSY: another ballastd (pid N) uses PATH", from the text that the owner left in the lock. */
static int refuse_busy(const struct state_dir *dir, struct error *error) {
    char text[64] = "";
    char name[33] = "ballastd";
    int pid = 0;
    ssize_t count = pread(dir->lock_fd, text, sizeof text - 1, 0);
    if (count <= 0 || sscanf(text, "%d %32s", &pid, name) < 1) {
        return error_set(error, -EBUSY,
                         "another process uses %s; stop it or give this one another "
                         "[daemon] state_dir",
                         dir->path);
    }
    return error_set(error, -EBUSY,
                     "another %s (pid %d) uses %s; stop it or give this one another "
                     "[daemon] state_dir",
                     name, pid, dir->path);
}

static int lock_take(struct state_dir *dir, struct error *error) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    struct stat owner;
    int failed = FAILPOINT_ERROR(lock, error);
    if (failed < 0) {
        return failed;
    }
    dir->lock_fd = openat(dir->fd, "lock", O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    if (dir->lock_fd < 0) {
        return error_set(error, -errno, "%s/lock: %s; run as the folder's owner", dir->path,
                         strerror(errno));
    }
    if (fcntl(dir->lock_fd, F_OFD_SETLK, &lock) < 0) {
        return errno == EAGAIN || errno == EACCES
                   ? refuse_busy(dir, error)
                   : error_set(error, -errno, "lock %s/lock: %s", dir->path, strerror(errno));
    }
    /* Root may look at a daemon's folder; what it leaves behind stays the daemon's. */
    if (geteuid() == 0 && fstat(dir->fd, &owner) == 0 && owner.st_uid != 0 &&
        fchown(dir->lock_fd, owner.st_uid, owner.st_gid) < 0) {
        return error_set(error, -errno, "chown %s/lock: %s", dir->path, strerror(errno));
    }
    /* On a full disk the lock holds without its text. */
    if (ftruncate(dir->lock_fd, 0) == 0) {
        (void)dprintf(dir->lock_fd, "%d %s\n", getpid(), program_invocation_short_name);
    }
    return 0;
}

static int dir_open(const char *path, bool create, struct state_dir *dir, struct error *error) {
    if (strlen(path) + 32 > sizeof dir->path) {
        return error_set(error, -ENAMETOOLONG, "%.100s...: the path is too long", path);
    }
    (void)snprintf(dir->path, sizeof dir->path, "%s", path);
    if (create && mkdir(path, 0750) < 0 && errno != EEXIST) {
        return error_set(error, -errno,
                         "make [daemon] state_dir %s: %s; its folder must exist and be writable",
                         path, strerror(errno));
    }
    dir->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir->fd < 0) {
        return error_set(error, -errno,
                         "open [daemon] state_dir %s: %s; check the path and the permissions", path,
                         strerror(errno));
    }
    return 0;
}

int state_dir_open(const char *path, bool create, struct state_dir *out, struct error *error) {
    struct state_dir dir = STATE_DIR_CLOSED;
    int code = dir_open(path, create, &dir, error);
    if (code == 0 && !create && faccessat(dir.fd, STATE_DB, F_OK, 0) < 0) {
        code = error_set(error, -errno, "%s/%s: %s", path, STATE_DB, strerror(errno));
    }
    if (code == 0) {
        code = refuse_network(&dir, error);
    }
    if (code == 0) {
        code = lock_take(&dir, error);
    }
    if (code < 0) {
        state_dir_close(&dir);
        return code;
    }
    dir.reserve = state_dir_has(&dir, RESERVE);
    dir.mark_fd = openat(dir.fd, STATE_MARK, O_RDWR | O_CLOEXEC);
    *out = dir;
    return 0;
}

void state_dir_close(struct state_dir *dir) {
    if (dir->mark_fd >= 0) {
        (void)close(dir->mark_fd);
    }
    if (dir->lock_fd >= 0) {
        (void)close(dir->lock_fd);
    }
    if (dir->fd >= 0) {
        (void)close(dir->fd);
    }
    *dir = STATE_DIR_CLOSED;
}

static uint32_t be32(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static int read_header(const struct state_dir *dir, uint8_t header[HEADER_BYTES],
                       uint64_t *file_bytes, struct error *error) {
    struct stat info;
    ssize_t count = -1;
    int fd = openat(dir->fd, STATE_DB, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &info) == 0) {
        count = pread(fd, header, HEADER_BYTES, 0);
    }
    int failure = errno;
    if (fd >= 0) {
        (void)close(fd);
    }
    if (count < 0) {
        return error_set(error, -failure, "%s/%s: %s", dir->path, STATE_DB, strerror(failure));
    }
    if (count < HEADER_BYTES) {
        return error_set(error, -EBADMSG,
                         "%s/%s is damaged: it has %zd bytes; " STATE_RECOVERY_HINT, dir->path,
                         STATE_DB, count);
    }
    *file_bytes = (uint64_t)info.st_size;
    return 0;
}

static uint64_t file_bytes_at(const struct state_dir *dir, const char *name) {
    struct stat info;
    return fstatat(dir->fd, name, &info, 0) == 0 ? (uint64_t)info.st_size : 0;
}

int state_dir_inspect(const struct state_dir *dir, uint32_t application_id, struct state_file *out,
                      struct error *error) {
    uint8_t header[HEADER_BYTES] = {0};
    uint64_t file_bytes = 0;
    struct state_file file = {0};
    file.exists = state_dir_has(dir, STATE_DB);
    file.wal = file_bytes_at(dir, STATE_DB "-wal") > 0;
    if (!file.exists) {
        *out = file;
        return file.wal
                   ? error_set(error, -EBADMSG, "%s has a %s-wal but no %s; " STATE_RECOVERY_HINT,
                               dir->path, STATE_DB, STATE_DB)
                   : 0;
    }
    int code = read_header(dir, header, &file_bytes, error);
    if (code < 0) {
        return code;
    }
    if (memcmp(header, "SQLite format 3", 16) != 0) {
        return error_set(error, -EBADMSG,
                         "%s/%s is damaged: no SQLite header; " STATE_RECOVERY_HINT, dir->path,
                         STATE_DB);
    }
    if (be32(header + 68) != application_id && dir->mark_fd >= 0) {
        return error_set(error, -EBADMSG,
                         "%s/%s is damaged: application_id %" PRIu32 "; " STATE_RECOVERY_HINT,
                         dir->path, STATE_DB, be32(header + 68));
    }
    if (be32(header + 68) != application_id) {
        return error_set(error, -EINVAL,
                         "%s/%s is not a Ballast store (application_id %" PRIu32
                         "); give this job another [daemon] state_dir",
                         dir->path, STATE_DB, be32(header + 68));
    }
    uint32_t page_bytes = (uint32_t)header[16] << 8 | header[17];
    uint64_t stated_bytes = (uint64_t)be32(header + 28) * (page_bytes == 1 ? 65536 : page_bytes);
    file.shorter = file_bytes < stated_bytes;
    if (file.shorter && !file.wal) {
        return error_set(error, -EBADMSG,
                         "%s/%s is damaged: %" PRIu64 " bytes of %" PRIu64 "; " STATE_RECOVERY_HINT,
                         dir->path, STATE_DB, file_bytes, stated_bytes);
    }
    *out = file;
    return 0;
}

bool state_dir_has(const struct state_dir *dir, const char *name) {
    return faccessat(dir->fd, name, F_OK, 0) == 0;
}

/* The mark as it stands in its file, little endian. */
struct mark_bytes {
    char magic[8];
    uint8_t store_id[STATE_ID_BYTES];
    uint64_t groups;
    uint64_t hash; /* XXH3-64 of the rest */
};

static const char mark_magic[8] = {'B', 'L', 'S', 'T', 'M', 'A', 'R', 'K'};

static struct mark_bytes mark_encode(const struct state_mark *mark) {
    struct mark_bytes bytes = {.groups = htole64(mark->groups)};
    memcpy(bytes.magic, mark_magic, sizeof bytes.magic);
    memcpy(bytes.store_id, mark->store_id, sizeof bytes.store_id);
    bytes.hash = htole64(XXH3_64bits(&bytes, offsetof(struct mark_bytes, hash)));
    return bytes;
}

int state_dir_read_mark(const struct state_dir *dir, struct state_mark *out, struct error *error) {
    struct mark_bytes bytes;
    if (dir->mark_fd < 0) {
        return 0;
    }
    ssize_t count = pread(dir->mark_fd, &bytes, sizeof bytes, 0);
    if (count < 0) {
        return error_set(error, -errno, "%s/%s: %s", dir->path, STATE_MARK, strerror(errno));
    }
    if (count != sizeof bytes || memcmp(bytes.magic, mark_magic, sizeof mark_magic) != 0 ||
        le64toh(bytes.hash) != XXH3_64bits(&bytes, offsetof(struct mark_bytes, hash))) {
        return error_set(error, -EBADMSG,
                         "%s/%s is damaged; restore the folder from a backup, or remove this file "
                         "and start once with " STATE_ALLOW_LOST "=1 to go on from what the store "
                         "still has",
                         dir->path, STATE_MARK);
    }
    memcpy(out->store_id, bytes.store_id, sizeof out->store_id);
    out->groups = le64toh(bytes.groups);
    return 1;
}

int state_dir_put_mark(const struct state_dir *dir, const struct state_mark *mark) {
    struct mark_bytes bytes = mark_encode(mark);
    ssize_t count = pwrite(dir->mark_fd, &bytes, sizeof bytes, 0);
    return count == sizeof bytes ? 0 : count < 0 ? -errno : -EIO;
}

int state_dir_sync_mark(const struct state_dir *dir) {
    return fdatasync(dir->mark_fd) < 0 ? -errno : 0;
}

int state_dir_make_mark(struct state_dir *dir, const struct state_mark *mark, struct error *error) {
    static const char made[] = STATE_MARK ".new";
    if (dir->mark_fd >= 0) {
        (void)close(dir->mark_fd);
    }
    dir->mark_fd = openat(dir->fd, made, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0640);
    int code = dir->mark_fd < 0 ? -errno : state_dir_put_mark(dir, mark);
    if (code < 0) {
        return error_set(error, code, "%s/%s: %s", dir->path, made, strerror(-code));
    }
    return state_dir_keep(dir, made, STATE_MARK, error);
}

int state_dir_keep(const struct state_dir *dir, const char *made, const char *name,
                   struct error *error) {
    int fd = openat(dir->fd, made, O_RDONLY | O_CLOEXEC);
    int code = fd < 0 || fsync(fd) < 0 ? -errno : 0;
    if (code == 0 && (renameat(dir->fd, made, dir->fd, name) < 0 || fsync(dir->fd) < 0)) {
        code = -errno;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return code == 0 ? 0 : error_set(error, code, "%s/%s: %s", dir->path, name, strerror(-code));
}

int state_dir_adopt(const struct state_dir *dir, struct error *error) {
    if (renameat(dir->fd, STATE_DB_NEW, dir->fd, STATE_DB) < 0 || fsync(dir->fd) < 0) {
        return error_set(error, -errno, "%s/%s: %s", dir->path, STATE_DB, strerror(errno));
    }
    return 0;
}

void state_dir_discard(const struct state_dir *dir) {
    (void)unlinkat(dir->fd, STATE_DB_NEW, 0);
    (void)unlinkat(dir->fd, STATE_DB_NEW "-wal", 0);
    (void)unlinkat(dir->fd, STATE_DB_NEW "-journal", 0);
}

uint64_t state_dir_free_bytes(const struct state_dir *dir) {
    struct statvfs info;
    return fstatvfs(dir->fd, &info) < 0 ? 0 : (uint64_t)info.f_bavail * info.f_frsize;
}

void state_dir_keep_reserve(struct state_dir *dir) {
    if (dir->reserve || state_dir_free_bytes(dir) < 4ull * STATE_RESERVE_BYTES) {
        return;
    }
    int fd = openat(dir->fd, RESERVE, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        return;
    }
    dir->reserve = posix_fallocate(fd, 0, STATE_RESERVE_BYTES) == 0;
    (void)close(fd);
    if (!dir->reserve) {
        (void)unlinkat(dir->fd, RESERVE, 0);
    }
}

bool state_dir_give_reserve(struct state_dir *dir) {
    dir->reserve = false;
    return unlinkat(dir->fd, RESERVE, 0) == 0;
}

void state_dir_boot_id(char out[40]) {
    out[0] = '\0';
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    ssize_t count = read(fd, out, 39);
    (void)close(fd);
    out[count > 0 ? count : 0] = '\0';
    out[strcspn(out, "\n")] = '\0';
}
