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
 * syslog), SYSLOG_IDENTIFIER, COMPONENT, and each key=value or key="a value" of the text as
 * KEY=value. Returns its bytes; fields that do not fit are left out, MESSAGE comes first. */
size_t journal_entry(int level, const char *component, const char *text, char *out, size_t bytes);

/* Adds the MESSAGE_ID of an event kind to an entry of `used` bytes, if it fits; the bytes then. The
 * kind is `sentence` up to its first key=value pair, so the same from run to run:
 *
 *     journalctl MESSAGE_ID=$(ballastd --message-id 'session:rank connected') */
size_t journal_add_id(const char *component, const char *sentence, char *out, size_t used,
                      size_t bytes);

/* The id itself, 32 lowercase hex digits. */
void journal_message_id(const char *component, const char *sentence, char out[33]);

/* Sends an entry, without waiting: 0, or a negative errno when nobody takes it. */
int journal_send(const char *path, const char *entry, size_t bytes);

#endif
