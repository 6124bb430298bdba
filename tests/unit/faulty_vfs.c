#include "faulty_vfs.h"
#include "store_world.h"

#include <assert.h>
#include <signal.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECTOR 512

struct faulty faulty;

static sqlite3_vfs vfs;
static sqlite3_vfs *under;

/* A file as the process sees it, and what of it the disk has not been told. */
struct image {
    uint8_t *bytes;
    int64_t size;
    int64_t capacity;
    struct extent {
        int64_t offset;
        int64_t size;
    } * unsynced;
    size_t unsynced_count;
};

struct faulty_file {
    sqlite3_file base;
    struct image *image; /* NULL: operations go straight through */
};

static sqlite3_file *under_file(sqlite3_file *file) {
    return (sqlite3_file *)((struct faulty_file *)file + 1);
}

static struct image *image_of(sqlite3_file *file) {
    return ((struct faulty_file *)file)->image;
}

/* Counts an operation; SQLITE_OK, or the failure that is due. May not return. */
static int operation(enum faulty_operation kind) {
    if ((faulty.operations & kind) == 0) {
        return SQLITE_OK;
    }
    faulty.count++;
    if (faulty.count == faulty.kill_at) {
        (void)kill(getpid(), SIGKILL);
    }
    bool due = faulty.fail_at != 0 &&
               (faulty.count == faulty.fail_at || (faulty.sticky && faulty.count > faulty.fail_at));
    faulty.failed = faulty.failed || due;
    return due ? faulty.code : SQLITE_OK;
}

static void image_reserve(struct image *image, int64_t size) {
    if (size > image->capacity) {
        image->bytes = realloc(image->bytes, (size_t)size * 2);
        assert(image->bytes != NULL);
        memset(image->bytes + image->capacity, 0, (size_t)(size * 2 - image->capacity));
        image->capacity = size * 2;
    }
    if (size > image->size) {
        image->size = size;
    }
}

static int image_flush(sqlite3_file *file) {
    struct image *image = image_of(file);
    sqlite3_file *real = under_file(file);
    for (size_t i = 0; i < image->unsynced_count; i++) {
        struct extent extent = image->unsynced[i];
        if (extent.offset + extent.size > image->size) {
            extent.size = image->size - extent.offset;
        }
        if (extent.size > 0) {
            int code = real->pMethods->xWrite(real, image->bytes + extent.offset, (int)extent.size,
                                              extent.offset);
            assert(code == SQLITE_OK);
        }
    }
    image->unsynced_count = 0;
    return SQLITE_OK;
}

static int faulty_close(sqlite3_file *file) {
    struct image *image = image_of(file);
    if (image != NULL) {
        (void)image_flush(file);
        free(image->bytes);
        free(image->unsynced);
        free(image);
    }
    return under_file(file)->pMethods->xClose(under_file(file));
}

static int faulty_read(sqlite3_file *file, void *out, int count, sqlite3_int64 offset) {
    struct image *image = image_of(file);
    int code = operation(FAULTY_READ);
    if (code != SQLITE_OK) {
        return code;
    }
    if (image == NULL) {
        return under_file(file)->pMethods->xRead(under_file(file), out, count, offset);
    }
    int64_t there = image->size - offset;
    there = there < 0 ? 0 : there > count ? count : there;
    if (there > 0) {
        memcpy(out, image->bytes + offset, (size_t)there);
    }
    memset((char *)out + there, 0, (size_t)(count - there));
    return there == count ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
}

/* How much of a write reaches the disk by itself: none, some sectors of it, all. */
static int sectors_written(int count) {
    switch (store_world_random(&faulty.lossy_seed) % 4) {
    case 0:
        return count;
    case 1:
        return (int)(store_world_random(&faulty.lossy_seed) % ((unsigned)count / SECTOR + 1)) *
               SECTOR;
    default:
        return 0;
    }
}

static int faulty_write(sqlite3_file *file, const void *bytes, int count, sqlite3_int64 offset) {
    struct image *image = image_of(file);
    sqlite3_file *real = under_file(file);
    int code = operation(FAULTY_WRITE);
    if (code != SQLITE_OK) {
        return code;
    }
    if (image != NULL) {
        image_reserve(image, offset + count);
        memcpy(image->bytes + offset, bytes, (size_t)count);
        int written = sectors_written(count);
        if (written < count) {
            image->unsynced = realloc(image->unsynced,
                                      (image->unsynced_count + 1) * sizeof image->unsynced[0]);
            assert(image->unsynced != NULL);
            image->unsynced[image->unsynced_count++] = (struct extent){offset, count};
            count = written;
        }
    }
    if (count == 0) {
        return SQLITE_OK;
    }
    return real->pMethods->xWrite(real, bytes, count, offset);
}

static int faulty_truncate(sqlite3_file *file, sqlite3_int64 size) {
    struct image *image = image_of(file);
    int code = operation(FAULTY_TRUNCATE);
    if (code != SQLITE_OK) {
        return code;
    }
    if (image != NULL) {
        image_reserve(image, size);
        if (size < image->size) {
            memset(image->bytes + size, 0, (size_t)(image->size - size));
        }
        image->size = size;
    }
    return under_file(file)->pMethods->xTruncate(under_file(file), size);
}

/* Real syncs are not what is tested here: the kernel lives on. */
static int faulty_sync(sqlite3_file *file, int flags) {
    (void)flags;
    int code = operation(FAULTY_SYNC);
    return code == SQLITE_OK && image_of(file) != NULL ? image_flush(file) : code;
}

static int faulty_size(sqlite3_file *file, sqlite3_int64 *out) {
    if (image_of(file) == NULL) {
        return under_file(file)->pMethods->xFileSize(under_file(file), out);
    }
    *out = image_of(file)->size;
    return SQLITE_OK;
}

static int faulty_lock(sqlite3_file *file, int level) {
    return under_file(file)->pMethods->xLock(under_file(file), level);
}

static int faulty_unlock(sqlite3_file *file, int level) {
    return under_file(file)->pMethods->xUnlock(under_file(file), level);
}

static int faulty_reserved(sqlite3_file *file, int *out) {
    return under_file(file)->pMethods->xCheckReservedLock(under_file(file), out);
}

static int faulty_control(sqlite3_file *file, int what, void *argument) {
    return under_file(file)->pMethods->xFileControl(under_file(file), what, argument);
}

static int faulty_sector(sqlite3_file *file) {
    return under_file(file)->pMethods->xSectorSize(under_file(file));
}

static int faulty_traits(sqlite3_file *file) {
    return under_file(file)->pMethods->xDeviceCharacteristics(under_file(file));
}

/* Version 1: no shared memory, no mapping. The store needs neither. */
static const sqlite3_io_methods methods = {
    .iVersion = 1,
    .xClose = faulty_close,
    .xRead = faulty_read,
    .xWrite = faulty_write,
    .xTruncate = faulty_truncate,
    .xSync = faulty_sync,
    .xFileSize = faulty_size,
    .xLock = faulty_lock,
    .xUnlock = faulty_unlock,
    .xCheckReservedLock = faulty_reserved,
    .xFileControl = faulty_control,
    .xSectorSize = faulty_sector,
    .xDeviceCharacteristics = faulty_traits,
};

static struct image *image_load(sqlite3_file *real) {
    struct image *image = calloc(1, sizeof *image);
    sqlite3_int64 size = 0;
    assert(image != NULL && real->pMethods->xFileSize(real, &size) == SQLITE_OK);
    if (size > 0) {
        image_reserve(image, size);
        assert(real->pMethods->xRead(real, image->bytes, (int)size, 0) == SQLITE_OK);
    }
    return image;
}

static int faulty_open(sqlite3_vfs *self, const char *name, sqlite3_file *file, int flags,
                       int *out_flags) {
    struct faulty_file *opened = (struct faulty_file *)file;
    (void)self;
    opened->base.pMethods = NULL;
    opened->image = NULL;
    int code = operation(FAULTY_OPEN);
    if (code == SQLITE_OK) {
        code = under->xOpen(under, name, under_file(file), flags, out_flags);
    }
    if (code == SQLITE_OK) {
        opened->base.pMethods = &methods;
        if (faulty.lossy_seed != 0 && (flags & SQLITE_OPEN_READWRITE) != 0) {
            opened->image = image_load(under_file(file));
        }
    }
    return code;
}

static int faulty_delete(sqlite3_vfs *self, const char *name, int sync_folder) {
    (void)self;
    (void)sync_folder;
    int code = operation(FAULTY_DELETE);
    return code == SQLITE_OK ? under->xDelete(under, name, 0) : code;
}

void faulty_vfs_install(void) {
    if (under != NULL) {
        return;
    }
    under = sqlite3_vfs_find(NULL);
    assert(under != NULL);
    vfs = *under;
    vfs.zName = "faulty";
    vfs.pNext = NULL;
    vfs.szOsFile = (int)sizeof(struct faulty_file) + under->szOsFile;
    vfs.xOpen = faulty_open;
    vfs.xDelete = faulty_delete;
    int code = sqlite3_vfs_register(&vfs, 1);
    assert(code == SQLITE_OK);
}
