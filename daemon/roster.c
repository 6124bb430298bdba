/* roster: see roster.h. */
#include "daemon/roster.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

static uint32_t roster_count_replicas(struct roster *roster, const uint8_t *local) {
    uint32_t replicas = 0;
    for (uint32_t dp = 0; dp < roster->mesh.dp; dp++) {
        roster->replica_of_dp[dp] = local[dp] ? replicas++ : UINT32_MAX;
    }
    return replicas;
}

static void roster_place_members(struct roster *roster, uint64_t now_ns) {
    uint32_t dp = 0;
    for (uint32_t i = 0; i < roster->count; i++) {
        struct member *member = &roster->members[i];
        uint32_t within = i % roster->replica_members;
        member->replica = i / roster->replica_members;
        while (roster->replica_of_dp[dp] != member->replica) {
            dp++;
        }
        member->place = (struct rank_place){
            .dp = dp,
            .pp = within / (roster->mesh.cp * roster->mesh.tp),
            .cp = within / roster->mesh.tp % roster->mesh.cp,
            .tp = within % roster->mesh.tp,
        };
        member->lease_end_ns = now_ns + roster->lease_ns;
        member->committed_step = roster->committed_step;
        member->delivered_step = roster->committed_step;
    }
}

int roster_init(struct roster *roster, const struct rank_place *mesh, const uint8_t *local,
                uint32_t micro_batches, uint64_t lease_ns, uint64_t committed_step,
                uint64_t now_ns) {
    *roster = (struct roster){.mesh = *mesh,
                              .uniform = {.micro_batches = micro_batches},
                              .lease_ns = lease_ns,
                              .lead_steps = UINT64_MAX,
                              .committed_step = committed_step};
    uint64_t ranks = (uint64_t)mesh->pp * mesh->cp * mesh->tp;
    assert(micro_batches > 0 && ranks > 0);
    if (ranks * mesh->dp > ROSTER_RANKS_MAX) {
        return -ERANGE;
    }
    roster->replica_members = (uint32_t)ranks;
    roster->replica_of_dp = calloc(mesh->dp, sizeof *roster->replica_of_dp);
    if (roster->replica_of_dp == NULL) {
        return -ENOMEM;
    }
    roster->replicas = roster_count_replicas(roster, local);
    assert(roster->replicas > 0);
    roster->count = roster->replicas * roster->replica_members;
    roster->members = calloc(roster->count, sizeof *roster->members);
    if (roster->members == NULL) {
        roster_deinit(roster);
        return -ENOMEM;
    }
    roster_place_members(roster, now_ns);
    return 0;
}

void roster_set_spans(struct roster *roster, const struct roster_span *spans, uint32_t count) {
    assert(count > 0);
    roster->spans = spans;
    roster->span_count = count;
}

static const struct roster_span *roster_span(const struct roster *roster, uint64_t step) {
    uint32_t i = roster->span_count;
    while (i > 1 && roster->spans[i - 1].step > step) {
        i--;
    }
    return i > 0 ? &roster->spans[i - 1] : &roster->uniform;
}

uint32_t roster_micro_batches(const struct roster *roster, uint64_t step) {
    return roster_span(roster, step)->micro_batches;
}

uint64_t roster_place(const struct roster *roster, uint64_t step, uint32_t index) {
    const struct roster_span *span = roster_span(roster, step);
    return span->position + (step - span->step) * span->micro_batches + index;
}

uint64_t roster_step_of(const struct roster *roster, uint64_t position) {
    uint32_t i = roster->span_count;
    while (i > 1 && roster->spans[i - 1].position > position) {
        i--;
    }
    const struct roster_span *span = i > 0 ? &roster->spans[i - 1] : &roster->uniform;
    return span->step + (position - span->position) / span->micro_batches;
}

void roster_deinit(struct roster *roster) {
    free(roster->members);
    free(roster->replica_of_dp);
    *roster = (struct roster){0};
}

struct member *roster_member(const struct roster *roster, const struct rank_place *place) {
    const struct rank_place *mesh = &roster->mesh;
    assert(place->dp < mesh->dp && place->pp < mesh->pp && place->cp < mesh->cp &&
           place->tp < mesh->tp);
    uint32_t replica = roster->replica_of_dp[place->dp];
    if (replica == UINT32_MAX) {
        return NULL;
    }
    uint32_t within = (place->pp * mesh->cp + place->cp) * mesh->tp + place->tp;
    return &roster->members[replica * roster->replica_members + within];
}

bool roster_live(const struct member *member, uint64_t now_ns) {
    return member->connected || now_ns < member->lease_end_ns;
}

int roster_join(struct roster *roster, struct member *member, uint64_t now_ns) {
    if (member->connected) {
        return -EEXIST;
    }
    if (!roster_live(member, now_ns)) {
        roster_restore(member, roster->committed_step);
    }
    member->connected = true;
    member->seen = true;
    return 0;
}

void roster_restore(struct member *member, uint64_t step) {
    if (member->committed_step < step) {
        member->committed_step = step;
    }
    if (member->delivered_step < step) {
        member->delivered_step = step;
    }
}

void roster_commit(struct roster *roster, struct member *member, uint64_t step, uint64_t now_ns) {
    roster->changes += step > member->committed_step;
    roster_restore(member, step);
    (void)roster_advance(roster, now_ns);
}

void roster_leave(struct roster *roster, struct member *member, uint64_t now_ns) {
    assert(member->connected);
    member->connected = false;
    member->streaming = false;
    member->subscribed = false;
    member->held_back = false;
    member->credits = 0;
    member->waiting_ns = 0;
    roster_lead_end(member, now_ns);
    member->lease_end_ns = now_ns + roster->lease_ns;
}

void roster_forgive(struct roster *roster, uint64_t since_ns, uint64_t ns) {
    for (uint32_t i = 0; i < roster->count; i++) {
        struct member *member = &roster->members[i];
        member->lease_end_ns += member->lease_end_ns > since_ns ? ns : 0;
    }
}

static void roster_place_member(struct member *member, uint64_t step) {
    assert(!member->streaming);
    member->committed_step = step;
    member->delivered_step = step;
    member->delivery_known = true;
    member->step = step;
    member->index = 0;
}

void roster_rewind_member(struct roster *roster, struct member *member, uint64_t step) {
    roster->changes += member->committed_step > step;
    roster_place_member(member, step);
}

void roster_rewind(struct roster *roster, uint64_t step) {
    roster->committed_step = step;
    for (uint32_t i = 0; i < roster->count; i++) {
        roster_place_member(&roster->members[i], step);
    }
}

/* Now, or when somebody was live last: leases end between two looks at the clock. */
static uint64_t roster_live_ns(const struct roster *roster, uint64_t now_ns) {
    uint64_t last_ns = 0;
    for (uint32_t i = 0; i < roster->count; i++) {
        const struct member *member = &roster->members[i];
        if (roster_live(member, now_ns)) {
            return now_ns;
        }
        last_ns = member->lease_end_ns > last_ns ? member->lease_end_ns : last_ns;
    }
    return last_ns > 0 ? last_ns - 1 : 0;
}

bool roster_advance(struct roster *roster, uint64_t now_ns) {
    uint64_t lowest = UINT64_MAX;
    uint64_t live_ns = roster_live_ns(roster, now_ns);
    for (uint32_t i = 0; i < roster->count; i++) {
        const struct member *member = &roster->members[i];
        if (roster_live(member, live_ns) && member->committed_step < lowest) {
            lowest = member->committed_step;
        }
    }
    if (lowest == UINT64_MAX || lowest <= roster->committed_step) {
        return false;
    }
    roster->committed_step = lowest;
    roster->changes++;
    return true;
}

bool roster_slowest(const struct roster *roster, uint32_t replica, uint64_t *position) {
    const struct member *first = &roster->members[replica * roster->replica_members];
    bool found = false;
    for (const struct member *m = first; m < first + roster->replica_members; m++) {
        if (m->streaming && m->subscribed && (!found || roster_position(roster, m) < *position)) {
            *position = roster_position(roster, m);
            found = true;
        }
    }
    return found;
}

bool roster_fastest(const struct roster *roster, uint32_t replica, uint64_t *position) {
    const struct member *first = &roster->members[replica * roster->replica_members];
    bool found = false;
    for (const struct member *m = first; m < first + roster->replica_members; m++) {
        if (m->streaming && m->subscribed && (!found || roster_position(roster, m) > *position)) {
            *position = roster_position(roster, m);
            found = true;
        }
    }
    return found;
}

bool roster_awaits(const struct roster *roster, uint32_t replica, uint64_t now_ns) {
    const struct member *first = &roster->members[replica * roster->replica_members];
    for (const struct member *m = first; m < first + roster->replica_members; m++) {
        if (!m->connected && roster_live(m, now_ns)) {
            return true;
        }
    }
    return false;
}

bool roster_fastest_step(const struct roster *roster, uint64_t *step) {
    bool found = false;
    for (uint32_t i = 0; i < roster->count; i++) {
        const struct member *member = &roster->members[i];
        if (member->streaming && (!found || member->step > *step)) {
            *step = member->step;
            found = true;
        }
    }
    return found;
}

bool roster_slowest_step(const struct roster *roster, uint64_t *step) {
    bool found = false;
    for (uint32_t i = 0; i < roster->count; i++) {
        const struct member *member = &roster->members[i];
        if (member->streaming && (!found || member->step < *step)) {
            *step = member->step;
            found = true;
        }
    }
    return found;
}

bool roster_stands_at(const struct roster *roster, uint64_t step) {
    for (uint32_t i = 0; i < roster->count; i++) {
        if (roster->members[i].streaming && roster->members[i].step == step) {
            return true;
        }
    }
    return false;
}

uint64_t roster_done(const struct member *member) {
    return member->streaming && member->from_step > member->committed_step ? member->from_step
                                                                           : member->committed_step;
}

const struct member *roster_last(const struct roster *roster, uint64_t now_ns) {
    const struct member *last = NULL;
    for (const struct member *m = roster->members; m < roster->members + roster->count; m++) {
        if (roster_live(m, now_ns) && (last == NULL || roster_done(m) < roster_done(last))) {
            last = m;
        }
    }
    return last;
}

static bool roster_is_far(const struct roster *roster, uint64_t step, uint64_t from) {
    return step > from && step - from >= roster->lead_steps;
}

bool roster_leads(const struct roster *roster, const struct member *member, uint64_t now_ns) {
    if (!roster_is_far(roster, member->step, roster->committed_step)) {
        return false; /* mostly: nobody's is below that */
    }
    const struct member *last = roster_last(roster, now_ns);
    return last != NULL && roster_is_far(roster, member->step, roster_done(last));
}

void roster_lead_end(struct member *member, uint64_t now_ns) {
    member->led_ns = roster_led_ns(member, now_ns);
    member->leading_ns = 0;
}

uint64_t roster_led_ns(const struct member *member, uint64_t now_ns) {
    return member->led_ns + (member->leading_ns == 0 ? 0 : now_ns - member->leading_ns);
}

const struct member *roster_leader(const struct roster *roster) {
    const struct member *leader = NULL;
    for (const struct member *m = roster->members; m < roster->members + roster->count; m++) {
        if (m->streaming && m->leading_ns != 0 &&
            (leader == NULL || m->leading_ns < leader->leading_ns)) {
            leader = m;
        }
    }
    return leader;
}

/* The rank of its replica that the member is held back for; those that may come back count where
 * they were. */
static const struct member *roster_held_by(const struct roster *roster, const struct member *member,
                                           uint64_t now_ns) {
    const struct member *first = &roster->members[member->replica * roster->replica_members];
    const struct member *last = NULL;
    for (const struct member *m = first; m < first + roster->replica_members; m++) {
        bool counts = m->streaming ? m->subscribed : roster_live(m, now_ns);
        if (m != member && counts &&
            (last == NULL || roster_position(roster, m) < roster_position(roster, last))) {
            last = m;
        }
    }
    return last;
}

const struct member *roster_awaited(const struct roster *roster, const struct member *member,
                                    uint64_t now_ns) {
    if (member->leading_ns != 0) {
        return roster_last(roster, now_ns);
    }
    return member->held_back ? roster_held_by(roster, member, now_ns) : NULL;
}

uint64_t roster_behind(const struct member *awaited, const struct member *member) {
    uint64_t step = member->leading_ns != 0 ? roster_done(awaited) : awaited->step;
    return member->step > step ? member->step - step : 0;
}

/* Whether the member is so far behind one that leads that this waits for it. */
static bool roster_stops_leader(const struct roster *roster, const struct member *member) {
    uint64_t done = roster_done(member);
    if (member->waiting_ns != 0 && member->leading_ns == 0) {
        return false;
    }
    for (const struct member *m = roster->members; m < roster->members + roster->count; m++) {
        if (m->streaming && m->leading_ns != 0 && roster_done(m) > done &&
            roster_is_far(roster, m->step, done)) {
            return true;
        }
    }
    return false;
}

static bool roster_stops_replica(const struct roster *roster, const struct member *member,
                                 bool holds_slots) {
    uint64_t slowest = 0;
    uint64_t position = roster_position(roster, member);
    bool last = roster_slowest(roster, member->replica, &slowest) && position <= slowest;
    if (member->waiting_ns != 0 && !(member->held_back && last)) {
        return false;
    }
    const struct member *first = &roster->members[member->replica * roster->replica_members];
    for (const struct member *m = first; m < first + roster->replica_members; m++) {
        if (m != member && m->streaming && m->held_back &&
            (holds_slots || position < roster_position(roster, m))) {
            return true;
        }
    }
    return false;
}

bool roster_blames(const struct roster *roster, const struct member *member, bool holds_slots) {
    return roster_stops_replica(roster, member, holds_slots) || roster_stops_leader(roster, member);
}
