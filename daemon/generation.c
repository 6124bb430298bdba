/* generation: see generation.h. */
#include "daemon/generation.h"

/* Whether somebody else stands in the generation, having joined it. */
static bool generation_kept(const struct generation *generation, const struct roster *roster,
                            const struct member *member) {
    for (uint32_t i = 0; i < roster->count; i++) {
        const struct member *other = &roster->members[i];
        if (other != member && other->connected && other->generation == generation->number) {
            return true;
        }
    }
    return false;
}

enum generation_way generation_seek(const struct generation *generation,
                                    const struct roster *roster, const struct member *member,
                                    uint64_t step, uint64_t least) {
    if (generation->number == 0 || roster->committed_step != generation->step) {
        return GENERATION_OPENS;
    }
    if (step == generation->step && least <= generation->number) {
        return GENERATION_JOINS;
    }
    bool again = member != NULL && member->sought == generation->number;
    return !again && step != generation->step && generation_kept(generation, roster, member)
               ? GENERATION_REFUSED
               : GENERATION_OPENS;
}
