/* reload: SIGHUP. Log level, allowed users and those limits that nothing was sized by are taken
 * from the config as it is read again; all or nothing. */
#ifndef BALLAST_DAEMON_RELOAD_H
#define BALLAST_DAEMON_RELOAD_H

#include "daemon/daemon.h"

/* Reads the config again. One that is broken, or changes what needs a restart, leaves the running
 * one as it is: logged, and daemon->not_reloaded says so in Status until a reload succeeds. Tells
 * the service manager. Loop thread. */
void reload(struct daemon *daemon);

#endif
