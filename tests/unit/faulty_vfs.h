/* faulty_vfs: SQLite's files with faults: the Nth operation fails, the process dies at the Nth, or
 * writes that were not synced are lost when it dies (each by a coin, so that any subset of them may
 * have reached the disk in any order, and some of them torn between two sectors). Installed as SQLite's default for the whole process. */
#ifndef BALLAST_TESTS_FAULTY_VFS_H
#define BALLAST_TESTS_FAULTY_VFS_H

#include <stdbool.h>
#include <stdint.h>

enum faulty_operation {
    FAULTY_READ = 1,
    FAULTY_WRITE = 2,
    FAULTY_SYNC = 4,
    FAULTY_TRUNCATE = 8,
    FAULTY_OPEN = 16,
    FAULTY_DELETE = 32,
    FAULTY_CHANGES = FAULTY_WRITE | FAULTY_SYNC | FAULTY_TRUNCATE | FAULTY_DELETE,
};

struct faulty {
    unsigned operations; /* kinds that are counted, and so may fail */
    uint64_t count;      /* of them so far */
    uint64_t fail_at;    /* the operation that fails, from 1; 0 for none */
    bool sticky;         /* and all after it */
    int code;            /* SQLite's code for the failure */
    bool failed;         /* it has */
    uint64_t kill_at;    /* the operation before which the process kills itself; 0 for none */
    uint64_t lossy_seed; /* not 0: writes wait for a sync */
};

extern struct faulty faulty;

void faulty_vfs_install(void);

#endif
