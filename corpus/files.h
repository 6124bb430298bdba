/* files: token files and large indexes that are opened when they are read, and whether they are
 * still the same.
 *
 * A set keeps at most `open_max` descriptors and closes the one that was used longest ago, so that
 * 1,000 datasets are served with 1,024 descriptors. A file is known by device, inode, size and time
 * of change as they were when it was first opened: whoever opens it again, or asks after reading
 * whether what was read can be trusted, is told -ESTALE when something else stands at its path or
 * it was written to meanwhile. Any thread. */
#ifndef BALLAST_CORPUS_FILES_H
#define BALLAST_CORPUS_FILES_H

#include "planner/error.h"

#include <stdbool.h>
#include <stdint.h>

#define FILE_DIRECT_ALIGN_MAX 4096u /* of every logical block size in use */

struct files;
struct file;

/* A quarter of the descriptors that this process may have, at least 8. */
uint32_t files_open_max(void);

/* open_max > 0. -ENOMEM. The files must be gone before the set. */
int files_create(uint32_t open_max, struct files **out, struct error *error);
void files_destroy(struct files *files); /* takes NULL */
uint32_t files_open(const struct files *files);
/* How many more descriptors the files of the set may come to need. */
uint32_t files_wanted(const struct files *files);

/* Holds a shared lock on the file at `path`, which is made if need be, until the set goes: one for
 * a set, the first. One that may only be read is held, too. Waits for whoever has it alone. 0 also
 * where locks are not to be had, or the file system may only be read and has no such file. */
int files_hold(struct files *files, const char *path);

/* Opens the regular file at `path` (copied) once and notes what it is. With `direct` it is read
 * past the page cache: -EINVAL where the file system cannot. */
int file_create(struct files *files, const char *path, bool direct, struct file **out,
                struct error *error);
void file_destroy(struct file *file); /* takes NULL; not in use any more */

const char *file_path(const struct file *file);
uint64_t file_bytes(const struct file *file); /* as first opened */

/* Whether it is read past the page cache, and what offsets and lengths must be multiples of then:
 * what the kernel says (STATX_DIOALIGN), else 512 or 4096 by trying; 1 otherwise. Memory must be
 * aligned to FILE_DIRECT_ALIGN_MAX. */
bool file_is_direct(const struct file *file);
uint32_t file_align(const struct file *file);

/* 1: all these bytes of a file that is not direct are in the page cache; 0: not all; a negative
 * errno: the kernel has no cachestat (before 6.5) or tells only those who may write the file.
 * Reads nothing. */
int file_cached(struct file *file, uint64_t offset, uint64_t bytes);

/* Whether the byte at `offset` is, as far as a read can tell that does not wait: where it is not,
 * the kernel may begin to fetch its page. */
bool file_holds(struct file *file, uint64_t offset);

/* A descriptor that stays open until file_release, or a negative errno: of open, or -ESTALE when
 * another file stands there now. May block on storage. */
int file_acquire(struct file *file);
void file_release(struct file *file);

/* After a read that failed with ESTALE: the next file_acquire opens anew. */
void file_forget(struct file *file);

/* 0 while the path leads to the file that was first opened, unchanged; else -ESTALE, or the errno
 * of stat. May block on storage. */
int file_check(struct file *file);

#endif
