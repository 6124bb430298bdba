/* stream: the plans of a config and a corpus, one step after the other, without a daemon.
 *
 * The pure planner with its state carried forward; it never goes back. Time is measured around
 * each step and nowhere else. */
#ifndef BALLAST_CTL_STREAM_H
#define BALLAST_CTL_STREAM_H

#include "corpus/catalog.h"
#include "corpus/source.h"
#include "daemon/config.h"
#include "planner/schedule.h"

struct stream {
    struct corpus_source source; /* of stream_open */
    struct plan_section only;    /* of stream_open_over */
    struct schedule *schedule;
    struct plan_state *state; /* the step to be planned next is state->step */
    struct plan_state *next;  /* room for the state after it */
};

/* At step 0, with all sections of the config. Both are borrowed until stream_close, which takes a
 * zeroed or half-open stream. Not to be moved while open. */
int stream_open(struct stream *stream, const struct config *config, const struct catalog *catalog,
                struct error *error);
/* The same over any source, into a zeroed stream; the source is borrowed, the options are copied.
 */
int stream_open_over(struct stream *stream, const struct plan_options *options,
                     const struct document_source *source, struct error *error);

void stream_close(struct stream *stream);

/* Of the step to be planned next. */
const struct plan_options *stream_options(const struct stream *stream);

/* Of step 0. */
const struct work_model *stream_model(const struct stream *stream);

/* Plans the next step and moves on. The caller owns *plan. -ENOENT at the end of the data. */
int stream_step(struct stream *stream, struct step_plan **plan, struct error *error);

/* Moves forward to `step` (not before the present one), saying how far it is on stderr. */
int stream_seek(struct stream *stream, uint64_t step, struct error *error);

#endif
