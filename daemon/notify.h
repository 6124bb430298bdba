/* notify: tells the service manager how we are, as sd_notify(3) does: one datagram to
 * $NOTIFY_SOCKET. Without that variable, nothing happens. When nobody reads there the datagram is
 * dropped, and the loop goes on. Loop thread only. */
#ifndef BALLAST_DAEMON_NOTIFY_H
#define BALLAST_DAEMON_NOTIFY_H

#include <stdint.h>

/* "READY=1", "STOPPING=1", "STATUS=...", "WATCHDOG=1"; several with '\n' between. */
void notify_send(const char *format, ...) __attribute__((format(printf, 1, 2)));

#define NOTIFY_WATCHDOG_PINGS 3u /* within what the service manager waits */

/* How often the service manager wants WATCHDOG=1, in ms: a third of WATCHDOG_USEC; 0: never. */
uint64_t notify_watchdog_ms(void);

/* "RELOADING=1" with the time, which newer managers require. */
void notify_reloading(void);

#endif
