/* Access of the benchmarks to internals of the library. */
#include "tests/bench/inside.h"
#include "backend/engine/comm.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *inside_candidate(const char *collective, int index)
{
    for (const struct algorithm *a = collectives_table; a->name; a++)
        if (a->host_memory && strcmp(collective_name(a->collective), collective) == 0 && index-- == 0) return a->name;
    return NULL;
}
void inside_choice(const tutti_comm *comm, const char *collective, char *out, size_t capacity)
{
    snprintf(out, capacity, "messages");
    for (int f = 0; f < COLLECTIVE_COUNT; f++) {
        const struct recent *r = &comm->launcher.recent[f];
        if (strcmp(collective_name((enum collective)f), collective) != 0 || !r->program) continue;
        char words[CHOICE_TEXT_BYTES];
        choice_format(&r->chosen, words);
        snprintf(out, capacity, "%s", words);
    }
}
void inside_hold(tutti_comm *comm, bool holds)
{
    struct tuners *t = &comm->launcher.tuners;
    for (int i = 0; i < t->count; i++) {
        t->of[i]->budget.lost = holds ? HUGE_VAL : 0;
        t->of[i]->survey.next_call = holds ? UINT64_MAX : 0;
    }
}
