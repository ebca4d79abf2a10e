/* Finds and creates the tuners of a communicator. */
#include "backend/tuning/tuners.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include <stdlib.h>

static bool tuner_key_is_same(const struct tuner_key *a, const struct tuner_key *b)
{
    return a->collective == b->collective && a->root == b->root && a->stage_inputs == b->stage_inputs
        && a->message_bytes == b->message_bytes;
}
void tuners_init(struct tuners *tuners, struct tuning *tuning, bool shares_cores)
{
    int64_t setting = settings_get()->tuner;
    tuners->tuning = tuning;
    tuners->mode = shares_cores && setting == TUNER_ON ? TUNER_OFF : (enum tuner_mode)setting;
}
tutti_status tuners_find_or_create(struct tuners *tuners, const struct tuner_key *key, struct tuner **out)
{
    int i = 0;
    while (i < tuners->count && !tuner_key_is_same(&tuners->of[i]->key, key)) i++;
    *out = i < tuners->count ? tuners->of[i] : NULL;
    if (i < tuners->count || i == MOST_TUNERS) return TUTTI_OK;
    struct tuner *made = memory_alloc_zeroed(1, sizeof *made);
    if (!made) return status_fail(TUTTI_NO_MEMORY, "no memory for a tuner");
    *made = (struct tuner){
        .key = *key, .line = &tuners->tuning->lines[i], .block.number = -1, .survey.line = &tuners->tuning->lines[i]
    };
    *out = tuners->of[tuners->count++] = made;
    return TUTTI_OK;
}
void tuners_finish(struct tuners *tuners)
{
    for (int i = 0; i < tuners->count; i++) free(tuners->of[i]);
    tuners->count = 0;
}
bool tuners_are_stopped(const struct tuners *tuners, enum collective collective)
{
    return atomic_load_explicit(&tuners->tuning->asked, memory_order_relaxed) >> collective & 1;
}
void tuners_stop_collective(struct tuners *tuners, enum collective collective)
{
    if (!tuners_are_stopped(tuners, collective)) atomic_fetch_or(&tuners->tuning->asked, 1u << collective);
}
