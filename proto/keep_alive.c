/* keep_alive: see keep_alive.h. */
#include "proto/keep_alive.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#define KEEP_ALIVE_PROBES 4 /* the first after half of the time */

/* Each only shortens how long a lost peer is kept, so one that is refused is no failure. */
static void keep_alive_set(int fd, int level, int option, int value) {
    (void)setsockopt(fd, level, option, &value, sizeof value);
}

void keep_alive(int fd, uint32_t timeout_ms) {
    int seconds = (int)((timeout_ms + 999) / 1000);
    int idle = seconds / 2 > 0 ? seconds / 2 : 1;
    int interval = seconds / (2 * KEEP_ALIVE_PROBES) > 0 ? seconds / (2 * KEEP_ALIVE_PROBES) : 1;
    keep_alive_set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
    keep_alive_set(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle);
    keep_alive_set(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval);
    keep_alive_set(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEP_ALIVE_PROBES);
    keep_alive_set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)timeout_ms);
    keep_alive_set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
}
