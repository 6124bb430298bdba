/* state_dir: the folder that the store lives in: whose it is, where it is, what is left of it.
 *
 *   lock             whoever holds its write lock owns the folder; "PID NAME" inside
 *   ballast.db       the store; ballast.db-wal beside it is part of it
 *   ballast.db.new   a store being made; it becomes ballast.db by renaming, so that an empty or
 *                    half-made ballast.db is damage and nothing else
 *   ballast.db.N     what ballast.db was before it was migrated from format N
 *   ballast.mark     that there is a store, which one, and how many of its groups are durable: so
 *                    that one that is gone, or has lost the end of its WAL, is not taken for a
 *                    fresh or an older one. Written after each commit, so never ahead of the store
 *   ballast.reserve  STATE_RESERVE_BYTES to give away when the disk is full
 * No SQLite here but for the head of its file format. */
#ifndef BALLAST_DAEMON_STATE_DIR_H
#define BALLAST_DAEMON_STATE_DIR_H

#include "planner/error.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#define STATE_DB            "ballast.db"
#define STATE_DB_NEW        "ballast.db.new"
#define STATE_MARK          "ballast.mark"
#define STATE_ID_BYTES      16u
#define STATE_RESERVE_BYTES (16u << 20)
#define STATE_ALLOW_LOST    "BALLAST_ALLOW_LOST_COMMITS" /* environment: 1 goes on without them */
#define STATE_RECOVERY_HINT                                                                        \
    "restore the folder from a backup, or move it away to start the job from step 0"

struct state_dir {
    char path[PATH_MAX];
    int fd;
    int lock_fd;
    int mark_fd;
    bool reserve; /* is there */
};
#define STATE_DIR_CLOSED                                                                           \
    (struct state_dir) {                                                                           \
        .fd = -1, .lock_fd = -1, .mark_fd = -1                                                     \
    }

/* Opens the folder, making it (0750) with `create`, and takes the lock. Refuses network file
 * systems, which do not keep SQLite's promises, unless BALLAST_ALLOW_NETWORK_STATE=1: -EINVAL.
 * -EBUSY naming who has the lock; -ENOENT. */
int state_dir_open(const char *path, bool create, struct state_dir *out, struct error *error);
void state_dir_close(struct state_dir *dir); /* releases the lock; closed is fine */

/* What the head of ballast.db says. */
struct state_file {
    bool exists;
    bool wal;     /* there is a WAL with something in it */
    bool shorter; /* the file is shorter than it says; only with a WAL, which may hold the rest */
};

/* -EBADMSG for an empty, truncated or headless file, or a WAL without it; -EINVAL for a SQLite file
 * with another application_id, where no mark says that ours was there. */
int state_dir_inspect(const struct state_dir *dir, uint32_t application_id, struct state_file *out,
                      struct error *error);

/* What the mark says. */
struct state_mark {
    uint8_t store_id[STATE_ID_BYTES];
    uint64_t groups; /* the store has had at least so many */
};

/* 1 there is one, 0 none, -EBADMSG unreadable. */
int state_dir_read_mark(const struct state_dir *dir, struct state_mark *out, struct error *error);

/* Makes the mark, or a new one, durably. */
int state_dir_make_mark(struct state_dir *dir, const struct state_mark *mark, struct error *error);

/* Moves the mark that was made; syncs it. 0 or -errno. */
int state_dir_put_mark(const struct state_dir *dir, const struct state_mark *mark);
int state_dir_sync_mark(const struct state_dir *dir);

/* Makes `name` from `made` by renaming, with what is in it and the folder synced. */
int state_dir_keep(const struct state_dir *dir, const char *made, const char *name,
                   struct error *error);

/* Whether a file of this name is there. */
bool state_dir_has(const struct state_dir *dir, const char *name);

/* Moves ballast.db.new into place, durably; or removes it. */
int state_dir_adopt(const struct state_dir *dir, struct error *error);
void state_dir_discard(const struct state_dir *dir);

/* Makes the reserve when it is missing and the disk has four times as much; its absence is no
 * failure. Gives it back to the disk: true when there was one. */
void state_dir_keep_reserve(struct state_dir *dir);
bool state_dir_give_reserve(struct state_dir *dir);

/* What is free on its disk; 0 when it cannot be told. */
uint64_t state_dir_free_bytes(const struct state_dir *dir);

/* Identity of this boot of the machine, "" when it cannot be told; `out` holds 40 bytes. */
void state_dir_boot_id(char out[40]);

#endif
