/* notify: see notify.h. */
#include "daemon/notify.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define NOTIFY_BYTES   512u
#define NOTIFY_WAIT_MS 50 /* for a service manager that is behind with reading */

/* Not sent rather than late: this is the loop's thread. */
static void notify_put(int fd, const char *text) {
    struct pollfd room = {.fd = fd, .events = POLLOUT};
    ssize_t sent = send(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EAGAIN && poll(&room, 1, NOTIFY_WAIT_MS) == 1) {
        (void)send(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

void notify_send(const char *format, ...) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char text[NOTIFY_BYTES];
    va_list arguments;
    const char *path = getenv("NOTIFY_SOCKET");
    size_t bytes = path == NULL ? 0 : strlen(path);
    if (bytes < 2 || bytes >= sizeof address.sun_path || (path[0] != '/' && path[0] != '@')) {
        return;
    }
    memcpy(address.sun_path, path, bytes);
    if (path[0] == '@') {
        address.sun_path[0] = '\0';
    }
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return;
    }
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + bytes);
    if (connect(fd, (struct sockaddr *)&address, length) == 0) {
        notify_put(fd, text);
    }
    (void)close(fd);
}

uint64_t notify_watchdog_ms(void) {
    const char *usec = getenv("WATCHDOG_USEC");
    const char *pid = getenv("WATCHDOG_PID");
    if (usec == NULL || (pid != NULL && strtol(pid, NULL, 10) != (long)getpid())) {
        return 0;
    }
    uint64_t ms = strtoull(usec, NULL, 10) / (1000 * NOTIFY_WATCHDOG_PINGS);
    return ms == 0 ? 1 : ms;
}

void notify_reloading(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t usec = (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
    notify_send("RELOADING=1\nMONOTONIC_USEC=%" PRIu64, usec);
}
