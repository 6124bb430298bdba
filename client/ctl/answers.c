/* answers: see answers.h. */
#include "client/ctl/answers.h"

static enum origin origin_of(const struct ctl *ctl) {
    const char *named[] = {ctl->state, ctl->socket, ctl->config};
    for (unsigned i = 0; i < 3; i++) {
        if ((ctl->flags & (1u << i)) != 0) {
            return (enum origin)i;
        }
    }
    for (unsigned i = 0; i < 3; i++) {
        if (named[i] != NULL) {
            return (enum origin)i;
        }
    }
    return ORIGIN_DAEMON;
}

const struct answers *answers_choose(struct ctl *ctl, bool config_answers) {
    ctl->origin = origin_of(ctl);
    if (ctl->origin == ORIGIN_CONFIG && !config_answers) {
        ctl->origin = ORIGIN_DAEMON;
        ctl->socket = NULL; /* the config's, whatever the environment says */
    }
    return ctl->origin == ORIGIN_DAEMON ? &remote_answers : &local_answers;
}
