/* journal: log lines as entries of journald, with their key=value pairs as fields.
 *
 *     journalctl -u ballastd COMPONENT=session STEP=120
 *
 * journald's native protocol: one datagram of NAME=value lines to JOURNAL_SOCKET. */
#ifndef BALLAST_DAEMON_JOURNAL_H
#define BALLAST_DAEMON_JOURNAL_H

#include <stddef.h>

#define JOURNAL_SOCKET "/run/systemd/journal/socket"

/* Writes the entry of one line of text, without control characters: MESSAGE, PRIORITY (`level` as
 * syslog), SYSLOG_IDENTIFIER, COMPONENT, and each word key=value of the text as KEY=value. Returns
 * its bytes; fields that do not fit are left out, MESSAGE comes first. */
size_t journal_entry(int level, const char *component, const char *text, char *out, size_t bytes);

/* Sends an entry, without waiting: 0, or a negative errno when nobody takes it. */
int journal_send(const char *path, const char *entry, size_t bytes);

#endif
