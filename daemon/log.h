/* log: one line per fact: level, component, sentence, key=value.
 *
 *     info  session: rank connected dp=0 pp=0 cp=1 tp=0 pid=4711 uid=1000
 *
 * To stderr. When stderr is the journal, as an entry with fields (journal.h) instead; with "<N>" in
 * front, which journald turns into priorities, should that not be possible. At most LOG_BURST lines
 * a second from one call site; what was left out is said with the next line. Loop thread, and
 * warm.c's. */
#ifndef BALLAST_DAEMON_LOG_H
#define BALLAST_DAEMON_LOG_H

#include <stdint.h>
#include <syslog.h>

#define LOG_BURST 32u

/* One per call site, static. */
struct log_site {
    uint64_t second;     /* of the count */
    uint32_t count;      /* lines in this second */
    uint32_t suppressed; /* not yet told */
};

/* Looks where stderr goes. */
void log_open(int level);
void log_level(int level); /* LOG_ERR .. LOG_DEBUG */

void log_write(struct log_site *site, int level, const char *component, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#define log_line(level, component, ...)                                                            \
    do {                                                                                           \
        static struct log_site log_site_here;                                                      \
        log_write(&log_site_here, level, component, __VA_ARGS__);                                  \
    } while (0)

#endif
