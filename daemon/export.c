/* export: see export.h. */
#include "daemon/export.h"

#include "ballast.pb-c.h"
#include "daemon/daemon.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void export_answer(struct daemon *daemon, const struct export_call *call,
                          const struct replay_row *row) {
    Ballast__V1__ExportResponse response = BALLAST__V1__EXPORT_RESPONSE__INIT;
    struct blob blob = daemon->identity;
    struct error error;
    blob.step = call->step;
    blob.generation = daemon->generation.number;
    blob.state = row->state;
    blob.state_bytes = row->state_bytes;
    blob.digest_known = row->digest_known;
    memcpy(blob.digest, row->digest, sizeof blob.digest);
    arena_reset(&daemon->arena);
    if (memo_put_export(daemon->memo, call->step) < 0) {
        session_refuse(call->session, call->stream, STATUS_RESOURCE_EXHAUSTED,
                       "%u exported steps are not noted yet; try again", MEMO_EXPORTS_MAX);
        return;
    }
    response.state.data = blob_encode(&blob, &response.state.len, &error);
    if (response.state.data == NULL) {
        session_refuse(call->session, call->stream, STATUS_RESOURCE_EXHAUSTED, "%s", error.text);
        return;
    }
    session_answer(call->session, call->stream, &response.base);
    free(response.state.data);
}

void export_serve(struct exporter *exporter, struct session *session, uint32_t stream,
                  uint64_t step) {
    struct daemon *daemon = exporter->daemon;
    const struct export_call call = {.session = session, .stream = stream, .step = step};
    if (step > daemon->planned_end) {
        session_refuse(session, stream, STATUS_OUT_OF_RANGE,
                       "step %" PRIu64 " is not planned yet; the next to be planned is %" PRIu64,
                       step, daemon->planned_end);
    } else if (step == daemon->planned_end) {
        const struct replay_row row = {
            .step = step, .state = daemon->state, .state_bytes = daemon->state_bytes};
        export_answer(daemon, &call, &row);
    } else if (exporter->call_count == EXPORT_CALLS_MAX ||
               memo_fetch(daemon->memo, MEMO_EXPORT, step) < 0) {
        session_refuse(session, stream, STATUS_RESOURCE_EXHAUSTED,
                       "%u exports wait already; try again", exporter->call_count);
    } else {
        exporter->calls[exporter->call_count++] = call;
    }
}

void export_fetched(struct exporter *exporter, const struct memo_fetched *fetched) {
    bool exact = fetched->found && fetched->row.step == fetched->step;
    for (uint32_t i = exporter->call_count; i-- > 0;) {
        struct export_call call = exporter->calls[i];
        if (call.step != fetched->step) {
            continue;
        }
        exporter->calls[i] = exporter->calls[--exporter->call_count];
        if (exact) {
            export_answer(exporter->daemon, &call, &fetched->row);
        } else {
            session_refuse(call.session, call.stream, STATUS_NOT_FOUND,
                           "the state of step %" PRIu64 " is not stored: that of the last "
                           "limits.steps_retained steps is, and of those exported before; seek "
                           "the step first",
                           call.step);
        }
    }
}

void export_forget(struct exporter *exporter, const struct session *session) {
    for (uint32_t i = exporter->call_count; i-- > 0;) {
        if (exporter->calls[i].session == session) {
            exporter->calls[i] = exporter->calls[--exporter->call_count];
        }
    }
}
