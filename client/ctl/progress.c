/* progress: see progress.h. */
#include "client/ctl/progress.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define TERMINAL_NS 200000000ull
#define LOG_NS      5000000000ull

uint64_t progress_clock_ns(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static uint64_t progress_interval_ns(const struct progress *progress) {
    return progress->terminal ? TERMINAL_NS : LOG_NS;
}

void progress_start(struct progress *progress, const char *what) {
    progress->what = what;
    progress->terminal = isatty(STDERR_FILENO) == 1;
    progress->shown = false;
    progress->next_ns = progress_clock_ns() + progress_interval_ns(progress);
}

void progress_say(struct progress *progress, const char *format, ...) {
    va_list arguments;
    uint64_t now_ns = progress_clock_ns();
    if (now_ns < progress->next_ns) {
        return;
    }
    progress->next_ns = now_ns + progress_interval_ns(progress);
    fprintf(stderr, "%s%s: ", progress->terminal ? "\r\033[K" : "", progress->what);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    if (progress->terminal) {
        fflush(stderr);
        progress->shown = true;
    } else {
        fputc('\n', stderr);
    }
}

void progress_count(struct progress *progress, const char *unit, uint64_t done, uint64_t total) {
    static const char bar[] = "########################";
    const int width = (int)sizeof bar - 1;
    int filled = (int)((unsigned __int128)done * (unsigned)width / total);
    if (progress->terminal) {
        progress_say(progress, "[%.*s%*s] %s %" PRIu64 " of %" PRIu64, filled, bar, width - filled,
                     "", unit, done, total);
    } else {
        progress_say(progress, "%s %" PRIu64 " of %" PRIu64, unit, done, total);
    }
}

void progress_end(struct progress *progress) {
    if (progress->shown) {
        fputs("\r\033[K", stderr);
        progress->shown = false;
    }
}
