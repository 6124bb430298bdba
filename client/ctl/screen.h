/* screen: a terminal that shows one page, drawn anew again and again.
 *
 * The terminal is as it was before, whatever ends the program: screen_close, exit(), a signal that
 * kills (SIGINT, SIGTERM, SIGHUP, SIGQUIT), and while it is stopped by SIGTSTP. One at a time. */
#ifndef BALLAST_CTL_SCREEN_H
#define BALLAST_CTL_SCREEN_H

#include <stdbool.h>
#include <stddef.h>

/* Whether stdout is a terminal that can do it. */
bool screen_possible(void);

/* Whether to use colours: on a terminal, without NO_COLOR. */
bool screen_colours(void);

void screen_open(void);
void screen_close(void); /* idempotent */

/* Shows as much of the text as fits: its first lines, cut to the width; escape sequences for
 * colours ("\033[...m") take no room. */
void screen_show(const char *text);

/* Waits for a key; -1 after `ms`, or when the terminal's size changed. */
int screen_key(int ms);

/* Cuts one line in place of `bytes` to `columns`, passing over colours; the bytes that are left. */
size_t screen_cut(const char *line, size_t bytes, size_t columns);

#endif
