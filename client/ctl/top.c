/* top: how a daemon is, again and again: the command. top_print.c has the page, screen.c the
 * terminal. */
#include "client/ctl/answers.h"
#include "client/ctl/print.h"
#include "client/ctl/screen.h"
#include "client/ctl/top.h"

#include <stdlib.h>
#include <string.h>

#define TOP_INTERVAL_MS 2000

struct top {
    struct ctl *ctl;
    int interval_ms;
    bool once;
};

enum { KEY_INTERVAL = 'i', KEY_ONCE = 1000 };

static error_t top_parse(int key, char *arg, struct argp_state *state) {
    struct top *top = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = top->ctl;
        return 0;
    case KEY_INTERVAL:
        if (ctl_time_parse(arg, &top->interval_ms) < 0) {
            argp_error(state, "--interval takes a time as 500ms, 2s or 1m, not '%s'", arg);
        }
        return 0;
    case KEY_ONCE:
        top->once = true;
        return 0;
    case ARGP_KEY_ARG:
        argp_error(state, "'%s': top takes no arguments", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option top_options[] = {
    {"interval", KEY_INTERVAL, "TIME", 0, "Look again after TIME (default 2s)", 0},
    {"once", KEY_ONCE, NULL, 0, "Print one page and end, as off a terminal", 0},
    {0},
};

static const struct argp top_argp = {
    .options = top_options,
    .parser = top_parse,
    .doc =
        "Shows ranks, waits, queues, balance, reads and the store of a running daemon, live on a "
        "terminal (q quits, space looks again now), else once with rates since its start. WAITED "
        "is the share of time that a rank waited for a batch, LEASE what is left of a rank that "
        "is gone, AGE how long it has waited for its next batch. --json prints the answer of "
        "Status.",
    .children = ctl_argp_children,
};

static int top_ask(struct ctl *ctl, Ballast__V1__StatusResponse **status,
                   Ballast__V1__QueuesResponse **queues) {
    int rc = remote_answers.status(ctl, status);
    *queues = NULL;
    if (rc == 0 && strcmp((*status)->state, "warming") != 0) {
        rc = remote_answers.queues(ctl, false, queues);
    }
    return rc;
}

static int top_once(struct ctl *ctl) {
    Ballast__V1__StatusResponse *status;
    Ballast__V1__QueuesResponse *queues;
    const struct top_look none = {0};
    struct top_look now;
    int rc = ctl->json ? remote_answers.status(ctl, &status) : top_ask(ctl, &status, &queues);
    if (rc < 0) {
        return rc;
    }
    if (ctl->json) {
        print_message(&status->base);
        return 0;
    }
    top_print(stdout, false, status, queues, &none, &now);
    top_look_deinit(&now);
    return 0;
}

/* A page, or why there is none: the daemon may come back. */
static void top_page(struct ctl *ctl, bool colours, struct top_look *before) {
    Ballast__V1__StatusResponse *status;
    Ballast__V1__QueuesResponse *queues;
    struct top_look now = {0};
    char *text = NULL;
    size_t bytes = 0;
    FILE *page = open_memstream(&text, &bytes);
    if (page == NULL) {
        return;
    }
    arena_reset(&ctl->arena);
    if (top_ask(ctl, &status, &queues) == 0) {
        top_print(page, colours, status, queues, before, &now);
    } else {
        fprintf(page, "%s\n", ctl->error.text);
        remote_close(ctl);
    }
    if (fclose(page) == 0) {
        screen_show(text);
    }
    free(text);
    top_look_deinit(before);
    *before = now;
}

static int top_live(struct ctl *ctl, int interval_ms) {
    struct top_look before = {0};
    bool colours = screen_colours();
    int key = -1;
    screen_open();
    while (key != 'q' && key != 'Q') {
        top_page(ctl, colours, &before);
        key = screen_key(interval_ms);
    }
    screen_close();
    top_look_deinit(&before);
    return 0;
}

int ctl_top(struct ctl *ctl, int argc, char **argv) {
    struct top top = {.ctl = ctl, .interval_ms = TOP_INTERVAL_MS};
    ctl_parse(&top_argp, 0, argc, argv, &top);
    (void)answers_choose(ctl, false);
    if (ctl->origin == ORIGIN_STORE) {
        return error_set(&ctl->error, -EINVAL,
                         "only a running daemon can be watched; name its --socket, not --state");
    }
    if (top.once || ctl->json || !screen_possible()) {
        return top_once(ctl);
    }
    return top_live(ctl, top.interval_ms);
}
