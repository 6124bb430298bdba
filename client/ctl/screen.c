/* screen: see screen.h. */
#include "client/ctl/screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#define ENTER "\033[?1049h\033[?25l"        /* the other page, no cursor */
#define LEAVE "\033[?25h\033[0m\033[?1049l" /* back */
#define HOME  "\033[H"
#define REST  "\033[J" /* clears what is below */
#define LINE  "\033[0m\033[K\r\n"

/* What signal handlers touch. */
static struct {
    volatile sig_atomic_t open;
    volatile sig_atomic_t keys; /* stdin is a terminal whose settings were changed */
    volatile sig_atomic_t resized;
    struct termios before, during;
} screen;

static const int killers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};

bool screen_possible(void) {
    const char *term = getenv("TERM");
    return isatty(STDOUT_FILENO) == 1 && term != NULL && strcmp(term, "dumb") != 0;
}

bool screen_colours(void) {
    const char *no_color = getenv("NO_COLOR");
    return screen_possible() && (no_color == NULL || no_color[0] == '\0');
}

static void screen_write(const char *text, size_t bytes) {
    while (bytes > 0) {
        ssize_t wrote = write(STDOUT_FILENO, text, bytes);
        if (wrote < 0 && errno != EINTR) {
            return;
        }
        text += wrote > 0 ? wrote : 0;
        bytes -= wrote > 0 ? (size_t)wrote : 0;
    }
}

/* These two are called by signal handlers too. */
static void screen_enter(void) {
    if (screen.keys) {
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &screen.during);
    }
    screen_write(ENTER, sizeof ENTER - 1);
}

static void screen_leave(void) {
    screen_write(LEAVE, sizeof LEAVE - 1);
    if (screen.keys) {
        (void)tcsetattr(STDIN_FILENO, TCSANOW, &screen.before);
    }
}

/* Dies of the signal, as a program does that never noticed it. */
static void screen_killed(int number) {
    screen_close();
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static void screen_stopped(int number) {
    (void)number;
    screen_leave();
    (void)raise(SIGSTOP);
    screen_enter();
    screen.resized = 1;
}

static void screen_resized(int number) {
    (void)number;
    screen.resized = 1;
}

static void screen_handle(int number, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler};
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(number, &action, NULL);
}

void screen_open(void) {
    screen.keys = isatty(STDIN_FILENO) == 1 && tcgetattr(STDIN_FILENO, &screen.before) == 0;
    screen.during = screen.before;
    screen.during.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    screen.open = 1;
    (void)atexit(screen_close);
    for (size_t i = 0; i < sizeof killers / sizeof killers[0]; i++) {
        screen_handle(killers[i], screen_killed);
    }
    screen_handle(SIGTSTP, screen_stopped);
    screen_handle(SIGWINCH, screen_resized);
    screen_enter();
}

void screen_close(void) {
    if (screen.open) {
        screen.open = 0;
        screen_leave();
    }
}

size_t screen_cut(const char *line, size_t bytes, size_t columns) {
    size_t at = 0;
    while (at < bytes) {
        size_t escape = 0;
        if (line[at] == '\033') {
            escape = strcspn(line + at, "m\n") + 1;
        } else if (columns == 0) {
            break;
        } else {
            columns -= ((unsigned char)line[at] & 0xc0) != 0x80; /* UTF-8: only its first byte */
        }
        at += escape > 0 ? escape : 1;
    }
    while (at < bytes && ((unsigned char)line[at] & 0xc0) == 0x80) {
        at++;
    }
    return at < bytes ? at : bytes;
}

void screen_show(const char *text) {
    struct winsize size = {.ws_row = 24, .ws_col = 80};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || size.ws_row == 0 || size.ws_col == 0) {
        size.ws_row = 24;
        size.ws_col = 80;
    }
    screen.resized = 0;
    screen_write(HOME, sizeof HOME - 1);
    for (unsigned row = 1; row < size.ws_row && *text != '\0'; row++) {
        size_t bytes = strcspn(text, "\n");
        screen_write(text, screen_cut(text, bytes, size.ws_col));
        screen_write(LINE, sizeof LINE - 1);
        text += bytes + (text[bytes] == '\n');
    }
    screen_write(REST, sizeof REST - 1);
}

int screen_key(int ms) {
    struct pollfd keys = {.fd = screen.keys ? STDIN_FILENO : -1, .events = POLLIN};
    unsigned char key;
    if (screen.resized || poll(&keys, 1, ms) <= 0) {
        return -1;
    }
    ssize_t got = read(STDIN_FILENO, &key, 1);
    if (got == 0) {
        screen.keys = 0; /* nobody types any more */
    }
    return got == 1 ? key : -1;
}
