/* stream: see stream.h. */
#include "client/ctl/stream.h"

#include "client/ctl/progress.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

static int stream_open_sections(struct stream *stream, const struct plan_section *sections,
                                uint32_t count, const struct document_source *source,
                                struct error *error) {
    stream->schedule = schedule_create(sections, count, source, error);
    if (stream->schedule == NULL) {
        return error->code;
    }
    stream->state = schedule_state_create(stream->schedule);
    stream->next = schedule_state_create(stream->schedule);
    if (stream->state == NULL || stream->next == NULL) {
        stream_close(stream);
        return error_set(error, -ENOMEM, "no memory for the planner's state; lower waiting_max");
    }
    return 0;
}

int stream_open_over(struct stream *stream, const struct plan_options *options,
                     const struct document_source *source, struct error *error) {
    stream->only = (struct plan_section){.options = *options};
    return stream_open_sections(stream, &stream->only, 1, source, error);
}

int stream_open(struct stream *stream, const struct config *config, const struct catalog *catalog,
                struct error *error) {
    memset(stream, 0, sizeof *stream);
    int rc = corpus_source_init(&stream->source, catalog, &config->source, error);
    return rc < 0 ? rc
                  : stream_open_sections(stream, config->sections, config->section_count,
                                         &stream->source.source, error);
}

const struct plan_options *stream_options(const struct stream *stream) {
    return schedule_options(stream->schedule, stream->state->step);
}

const struct work_model *stream_model(const struct stream *stream) {
    return schedule_model(stream->schedule);
}

void stream_close(struct stream *stream) {
    plan_state_destroy(stream->next);
    plan_state_destroy(stream->state);
    schedule_destroy(stream->schedule);
    memset(stream, 0, sizeof *stream);
}

int stream_step(struct stream *stream, struct step_plan **plan, struct error *error) {
    struct plan_state *behind = stream->state;
    struct step_plan *made = NULL;
    uint64_t start_ns = progress_clock_ns();
    int rc = schedule_step(stream->schedule, behind, stream->next, &made, error);
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
        progress_count(&progress, "step", stream->state->step, step);
    }
    progress_end(&progress);
    return rc;
}
