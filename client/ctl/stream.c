/* stream: see stream.h. */
#include "client/ctl/stream.h"

#include "client/ctl/progress.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

int stream_open_over(struct stream *stream, const struct plan_options *options,
                     const struct document_source *source, struct error *error) {
    stream->planner = planner_create(options, source, error);
    if (stream->planner == NULL) {
        return error->code;
    }
    stream->state = planner_state_create(stream->planner);
    stream->next = planner_state_create(stream->planner);
    if (stream->state == NULL || stream->next == NULL) {
        stream_close(stream);
        return error_set(error, -ENOMEM, "no memory for the planner's state; lower waiting_max");
    }
    return 0;
}

int stream_open(struct stream *stream, const struct config *config, const struct catalog *catalog,
                struct error *error) {
    memset(stream, 0, sizeof *stream);
    int rc = corpus_source_init(&stream->source, catalog, &config->source, error);
    return rc < 0 ? rc : stream_open_over(stream, &config->plan, &stream->source.source, error);
}

void stream_close(struct stream *stream) {
    plan_state_destroy(stream->next);
    plan_state_destroy(stream->state);
    planner_destroy(stream->planner);
    memset(stream, 0, sizeof *stream);
}

int stream_step(struct stream *stream, struct step_plan **plan, struct error *error) {
    struct plan_state *behind = stream->state;
    struct step_plan *made = NULL;
    uint64_t start_ns = progress_clock_ns();
    int rc = plan_step(stream->planner, behind, stream->next, &made, error);
    if (rc < 0) {
        return rc;
    }
    if (rc == 0) {
        return error_set(error, -ENOENT,
                         "there is no step %" PRIu64 ": the data end before it; ask for an "
                         "earlier step or raise epochs",
                         behind->step);
    }
    made->plan_ns = progress_clock_ns() - start_ns;
    stream->state = stream->next;
    stream->next = behind;
    *plan = made;
    return 0;
}

int stream_seek(struct stream *stream, uint64_t step, struct error *error) {
    struct progress progress;
    uint64_t first = stream->state->step;
    int rc = 0;
    assert(step >= first);
    progress_start(&progress, "planning");
    while (rc == 0 && stream->state->step < step) {
        struct step_plan *plan = NULL;
        rc = stream_step(stream, &plan, error);
        step_plan_destroy(plan);
        progress_say(&progress, "step %" PRIu64 " of %" PRIu64, stream->state->step, step);
    }
    progress_end(&progress);
    return rc;
}
