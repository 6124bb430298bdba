/* log: see log.h. */
#include "daemon/log.h"

#include "daemon/journal.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define LOG_LINE_BYTES       1024u
#define LOG_SUPPRESSED_BYTES 24u                  /* of a line, for " suppressed=N" */
#define LOG_ENTRY_BYTES      (3 * LOG_LINE_BYTES) /* the line, and its pairs again */

static int log_threshold = LOG_INFO;
static bool log_journal;

static const char *const level_names[] = {
    [LOG_EMERG] = "emergency", [LOG_ALERT] = "alert",     [LOG_CRIT] = "critical",
    [LOG_ERR] = "error",       [LOG_WARNING] = "warning", [LOG_NOTICE] = "notice",
    [LOG_INFO] = "info",       [LOG_DEBUG] = "debug",
};

/* JOURNAL_STREAM is "device:inode" of the stream that the service manager connected. */
static bool log_is_journal(void) {
    struct stat stream;
    uintmax_t device, inode;
    const char *announced = getenv("JOURNAL_STREAM");
    return announced != NULL && fstat(STDERR_FILENO, &stream) == 0 &&
           sscanf(announced, "%" SCNuMAX ":%" SCNuMAX, &device, &inode) == 2 &&
           device == stream.st_dev && inode == stream.st_ino;
}

void log_open(int level) {
    log_threshold = level;
    log_journal = log_is_journal();
}

void log_level(int level) {
    log_threshold = level;
}

/* Whether the site may still write in this second. */
static bool log_admit(struct log_site *site) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    uint64_t second = (uint64_t)now.tv_sec + 1; /* 0 is a site that never wrote */
    if (site->second != second) {
        site->second = second;
        site->count = 0;
    }
    if (site->count++ < LOG_BURST) {
        return true;
    }
    site->suppressed++;
    return false;
}

/* A format that says nothing is a sentence that a part has made: its own text is the kind then. */
static bool log_to_journal(int level, const char *component, const char *format, const char *text) {
    const char *sentence = strcmp(format, "%s") == 0 ? text : format;
    char entry[LOG_ENTRY_BYTES];
    size_t bytes = journal_entry(level, component, text, entry, sizeof entry);
    bytes = journal_add_id(component, sentence, entry, bytes, sizeof entry);
    return journal_send(JOURNAL_SOCKET, entry, bytes) == 0;
}

void log_write(struct log_site *site, int level, const char *component, const char *format, ...) {
    char text[LOG_LINE_BYTES], prefix[8] = "";
    va_list arguments;
    if (level > log_threshold || !log_admit(site)) {
        return;
    }
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text - LOG_SUPPRESSED_BYTES, format, arguments);
    va_end(arguments);
    for (char *at = text; *at != '\0'; at++) {
        *at = (unsigned char)*at < ' ' ? ' ' : *at;
    }
    if (site->suppressed > 0) {
        (void)snprintf(text + strlen(text), LOG_SUPPRESSED_BYTES, " suppressed=%" PRIu32,
                       site->suppressed);
        site->suppressed = 0;
    }
    if (log_journal && log_to_journal(level, component, format, text)) {
        return;
    }
    if (log_journal) {
        (void)snprintf(prefix, sizeof prefix, "<%d>", level);
    }
    (void)fprintf(stderr, "%s%-7s %s: %s\n", prefix, level_names[level], component, text);
}
