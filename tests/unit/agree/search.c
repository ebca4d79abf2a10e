/* Searches the states of the world of world.h, breadth first, so that the trace of a mistake has the fewest steps. A
   state is stored as a hash of 64 bits, its predecessor and the event between them; only the states of two levels are
   stored in full. That no rank hangs (I8) is a property of the graph: from each state a final one can be reached
   without another fault. Timers and links are fair, so a state that can always be reached is reached in the end. */
#include "tests/support/exploration.h"
#include "tests/unit/agree/world.h"
#include <stdlib.h>
#include <string.h>

/* No packed state has more bytes. */
enum { MOST_BYTES = sizeof(struct world) / 8 * 9 + 64 };
/* All states that were found, by number. `ends`: the state is final or leads to a final one. `table` finds a state by
   its hash, and has 1 + the number of the state. */
struct states {
    uint64_t *hashes;
    uint32_t *parents, *table;
    struct event *events;
    bool *ends;
    size_t count, room, slots;
};
/* The transitions that are no faults. */
struct edges { uint32_t *from, *to; size_t count, room; };
/* The packed states of one depth, with the number and the bytes of each. */
struct level { unsigned char *bytes; uint32_t *state, *sizes; size_t used, room, count, states_room; };
struct search {
    const struct scenario *scenario;
    struct states states;
    struct edges edges;
    struct level levels[2];
    size_t transitions, depth, most;
    const char *broken;
};
static void *grown(void *at, size_t bytes)
{
    void *p = realloc(at, bytes);
    if (!p) { fprintf(stderr, "no memory for the search\n"); exit(2); }
    return p;
}
static uint64_t hash_of(const unsigned char *bytes, size_t count)
{
    uint64_t h = count, word;
    for (; count; bytes += 8, count -= count < 8 ? count : 8) {
        word = 0;
        memcpy(&word, bytes, count < 8 ? count : 8);
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
        h *= 0xbf58476d1ce4e5b9u;
        h ^= h >> 32;
    }
    return h;
}
static void states_grow(struct states *s)
{
    s->room = s->room ? 2 * s->room : 1 << 16;
    s->slots = 4 * s->room;
    s->hashes = grown(s->hashes, s->room * sizeof *s->hashes);
    s->parents = grown(s->parents, s->room * sizeof *s->parents);
    s->events = grown(s->events, s->room * sizeof *s->events);
    s->ends = grown(s->ends, s->room * sizeof *s->ends);
    free(s->table);
    s->table = calloc(s->slots, sizeof *s->table);
    if (!s->table) { fprintf(stderr, "no memory for the search\n"); exit(2); }
    for (size_t i = 0; i < s->count; i++) {
        size_t at = s->hashes[i] & (s->slots - 1);
        while (s->table[at]) at = (at + 1) & (s->slots - 1);
        s->table[at] = (uint32_t)i + 1;
    }
}
/* Adds a state, unless it is known, and sets *out to its number. Returns true if it is new. */
static bool states_add(struct states *s, uint64_t hash, uint32_t parent, struct event event, uint32_t *out)
{
    if (s->count == s->room) states_grow(s);
    size_t at = hash & (s->slots - 1);
    for (; s->table[at]; at = (at + 1) & (s->slots - 1))
        if (s->hashes[s->table[at] - 1] == hash) { *out = s->table[at] - 1; return false; }
    *out = (uint32_t)s->count++;
    s->table[at] = *out + 1;
    s->hashes[*out] = hash;
    s->parents[*out] = parent;
    s->events[*out] = event;
    s->ends[*out] = false;
    return true;
}
static void edges_add(struct edges *e, uint32_t from, uint32_t to)
{
    if (e->count == e->room) {
        e->room = e->room ? 2 * e->room : 1 << 16;
        e->from = grown(e->from, e->room * sizeof *e->from);
        e->to = grown(e->to, e->room * sizeof *e->to);
    }
    e->from[e->count] = from;
    e->to[e->count++] = to;
}
static void level_add(struct level *l, const unsigned char *bytes, size_t count, uint32_t state)
{
    if (l->used + count > l->room) l->bytes = grown(l->bytes, l->room = 2 * l->room + MOST_BYTES);
    if (l->count == l->states_room) {
        l->states_room = 2 * l->states_room + 64;
        l->state = grown(l->state, l->states_room * sizeof *l->state);
        l->sizes = grown(l->sizes, l->states_room * sizeof *l->sizes);
    }
    memcpy(l->bytes + l->used, bytes, count);
    l->used += count;
    l->sizes[l->count] = (uint32_t)count;
    l->state[l->count++] = state;
}

/* ---- reports ---- */
static void print_trace(const struct search *x, uint32_t state, const struct event *last)
{
    struct event path[512];
    struct world w;
    int n = 0;
    for (uint32_t i = state; i && n < 512; i = x->states.parents[i]) path[n++] = x->states.events[i];
    world_init(&w, x->scenario);
    while (n > 0) world_step(&w, x->scenario, path[--n], stdout);
    if (last) world_step(&w, x->scenario, *last, stdout);
}
static void report(struct search *x, const char *broken, uint32_t state, const struct event *last)
{
    x->broken = broken;
    printf("  BROKEN in \"%s\": %s\n", x->scenario->name, broken);
    print_trace(x, state, last);
}

/* ---- searching ---- */
static bool visit(struct search *x, const struct world *w, uint32_t parent, struct event e, struct level *next)
{
    static _Alignas(8) unsigned char bytes[MOST_BYTES];
    size_t count = world_pack(w, bytes);
    uint32_t state;
    bool is_new = states_add(&x->states, hash_of(bytes, count), parent, e, &state);
    if (e.kind < FAULTS && x->states.count > 1) edges_add(&x->edges, parent, state);
    if (!is_new) return true;
    level_add(next, bytes, count, state);
    if (!world_is_final(w, x->scenario)) return true;
    x->states.ends[state] = true;
    const char *broken = world_check_final(w, x->scenario);
    if (broken) report(x, broken, state, NULL);
    return !broken;
}
static bool expand(struct search *x, const unsigned char *bytes, uint32_t state, struct level *next)
{
    static struct world w, after;
    struct event events[MOST_EVENTS];
    world_unpack(&w, x->scenario, bytes);
    int count = world_events(&w, x->scenario, events);
    for (int i = 0; i < count; i++) {
        memcpy(&after, &w, sizeof w);
        world_connect(&after, x->scenario);
        x->transitions++;
        const char *broken = world_step(&after, x->scenario, events[i], NULL);
        if (broken) report(x, broken, state, &events[i]);
        if (broken || !visit(x, &after, state, events[i], next)) return false;
    }
    return true;
}
static bool explore(struct search *x)
{
    static struct world w;
    struct level *now = &x->levels[0], *next = &x->levels[1];
    world_init(&w, x->scenario);
    if (!visit(x, &w, 0, (struct event){ 0, 0, 0 }, now)) return false;
    for (; now->count; x->depth++) {
        size_t at = 0;
        for (size_t i = 0; i < now->count; i++) {
            if (!expand(x, now->bytes + at, now->state[i], next)) return false;
            at += now->sizes[i];
        }
        if (x->states.count > x->most) {
            printf("  \"%s\" has more than %zu states\n", x->scenario->name, x->most);
            return false;
        }
        struct level *other = now;
        now = next;
        next = other;
        next->used = next->count = 0;
    }
    return true;
}
/* True if a final state can be reached from every state. Most edges lead to states with higher numbers, so few passes
   from the last edge to the first suffice. */
static bool all_end(struct search *x)
{
    bool *ends = x->states.ends;
    for (bool changed = true; changed;) {
        changed = false;
        for (size_t i = x->edges.count; i-- > 0;)
            if (ends[x->edges.to[i]] && !ends[x->edges.from[i]]) changed = ends[x->edges.from[i]] = true;
    }
    for (uint32_t i = 0; i < x->states.count; i++)
        if (!ends[i]) { report(x, "I8: from here on a rank hangs", i, NULL); return false; }
    return true;
}
static void search_finish(struct search *x)
{
    free(x->states.hashes);
    free(x->states.parents);
    free(x->states.events);
    free(x->states.ends);
    free(x->states.table);
    free(x->edges.from);
    free(x->edges.to);
    for (int i = 0; i < 2; i++) {
        free(x->levels[i].bytes);
        free(x->levels[i].state);
        free(x->levels[i].sizes);
    }
}

/* ---- scenarios ---- */
#define SAME(a, b) { { a, b, END }, { a, b, END }, { a, b, END }, { a, b, END } }
#define TWO { 0, 0, 1, 1 }
#define TURNS { 0, 1, 1, 0 }
#define THREE { 0, 1, 2, -1 }
#define UNEVEN { 0, 1, 2, 2 }
/* After the name: the host of each rank; the programs of ranks 0 to 3; the most deaths, aborts, broken links, lost
   messages and stopped ranks; whether a rank may leave after a failure; which timers may expire early. */
static const struct scenario scenarios[] = {
    { "all agree", TWO, SAME(BOTH, BOTH), 0, 0, 0, 0, 0, 0, PATIENT },
    { "both hosts wait", TWO, { { UP, END }, { UP, END }, { DOWN, END }, { DOWN, END } }, 0, 0, 0, 0, 0, 0, PATIENT },
    { "a pair differs", TWO, { { UP, END }, { BOTH, END }, { DOWN, END }, { BOTH, END } }, 0, 0, 0, 0, 0, 0, PATIENT },
    { "a host rests", THREE, { { UP, REST }, { REST }, { HOME, REST } }, 0, 0, 0, 0, 0, 0, CURIOUS },
    { "a host rests later", THREE, { { HOME, UP, REST }, { REST }, { AWAY, REST } }, 0, 0, 0, 0, 0, 0, CURIOUS },
    { "two differ, then wait", THREE, { { HOME, BOTH, REST }, { REST }, { AWAY, BOTH, REST } }, 0, 0, 0, 0, 0, 0,
        CURIOUS },
    { "one leaves early", THREE, { { BOTH, BOTH, END }, { REST }, { BOTH, END } }, 0, 0, 0, 0, 0, 0, CURIOUS },
    { "both send and leave", THREE, { { DOWN, END }, { REST }, { UP, END } }, 0, 0, 0, 0, 0, 0, CURIOUS },
    { "one dies, 3 hosts", THREE, { { BOTH, END }, { REST }, { BOTH, END } }, 1, 0, 0, 0, 0, 0, PATIENT },
    { "one aborts, hasty, 3 hosts", THREE, { { BOTH, REST }, { REST }, { BOTH, REST } }, 0, 1, 0, 0, 0, 0, HASTY },
    { "one differs", TWO, { { BOTH, END }, { DOWN, END }, { BOTH, END }, { BOTH, END } }, 0, 0, 0, 0, 0, 0, PATIENT },
    { "one aborts, a message is lost", TWO, SAME(HOME, REST), 0, 1, 0, 1, 0, 0, PATIENT },
    { "one aborts, one stops", TWO, SAME(REST, REST), 0, 1, 0, 0, 1, 0, PATIENT },
    { "two abort, one stops", TWO, SAME(REST, REST), 0, 2, 0, 0, 1, 0, PATIENT },
    { "one dies, one stops", TWO, SAME(REST, REST), 1, 0, 0, 0, 1, 0, PATIENT },
    { "two abort, one dies, 3 hosts", THREE, SAME(REST, REST), 1, 2, 0, 0, 0, 0, PATIENT },
    { "two abort, two die, 3 hosts", THREE, SAME(REST, REST), 2, 2, 0, 0, 0, 0, PATIENT },
    { "two abort, one dies", TWO, SAME(REST, REST), 1, 2, 0, 0, 0, 0, PATIENT },
    { "two die", TWO, SAME(REST, REST), 2, 0, 0, 0, 0, 0, PATIENT },
    { "two abort and all leave, 3 hosts", THREE, SAME(REST, REST), 0, 2, 0, 0, 0, 1, PATIENT },
    { "two abort and all leave", TWO, SAME(REST, REST), 0, 2, 0, 0, 0, 1, PATIENT },
    { "two abort, one dies, leave, 3 hosts", THREE, SAME(REST, REST), 1, 2, 0, 0, 0, 1, PATIENT },
    { "two abort, hasty, 3 hosts", THREE, SAME(REST, REST), 0, 2, 0, 0, 0, 0, HASTY },
    { "one aborts", TWO, SAME(BOTH, END), 0, 1, 0, 0, 0, 0, PATIENT },
    { "one dies", TWO, SAME(BOTH, END), 1, 0, 0, 0, 0, 0, PATIENT },
    { "a link breaks", TWO, SAME(HOME, REST), 0, 0, 1, 0, 0, 0, PATIENT },
};
static const struct scenario deep[] = {
    { "two abort, one dies, all leave", TWO, SAME(REST, REST), 1, 2, 0, 0, 0, 1, PATIENT },
    { "down, then up", TWO, SAME(DOWN, UP), 0, 0, 0, 0, 0, 0, HASTY },
    { "one operation, hasty", TWO, SAME(BOTH, END), 0, 0, 0, 0, 0, 0, HASTY },
    { "two abort, in turns", TURNS, SAME(BOTH, END), 0, 2, 0, 0, 0, 0, PATIENT },
    { "both hosts send", TWO, { { DOWN, END }, { DOWN, END }, { UP, END }, { UP, END } }, 0, 0, 0, 0, 0, 0, PATIENT },
    { "one differs later", TWO, { { HOME, BOTH, END }, { HOME, BOTH, END }, { HOME, UP, END }, { HOME, BOTH, END } }, 0,
        0, 0, 0, 0, 0, PATIENT },
    { "one differs, a message is lost", TWO, { { BOTH, REST }, { UP, REST }, { BOTH, REST }, { BOTH, REST } }, 0, 0, 0,
        1, 0, 0, PATIENT },
    { "one differs, one dies, 3 hosts", THREE, { { BOTH, END }, { REST }, { UP, END } }, 1, 0, 0, 0, 0, 0, CURIOUS },
    { "two abort, one dies, one stops", TWO, SAME(REST, REST), 1, 2, 0, 0, 1, 0, PATIENT },
    { "a host dies", TWO, SAME(HOME, END), 2, 0, 0, 0, 0, 0, PATIENT },
    { "three die", TWO, SAME(REST, REST), 3, 0, 0, 0, 0, 0, PATIENT },
    { "a link breaks, one dies", TWO, SAME(REST, REST), 1, 0, 1, 0, 0, 0, PATIENT },
    { "three abort, two die, 3 hosts", THREE, SAME(REST, REST), 2, 3, 0, 0, 0, 0, PATIENT },
    { "one aborts, hasty", TWO, SAME(REST, REST), 0, 1, 0, 0, 0, 0, HASTY },
    { "one dies, two operations", TWO, SAME(HOME, BOTH), 1, 0, 0, 0, 0, 0, PATIENT },
    { "two abort, one dies, uneven", UNEVEN, SAME(REST, REST), 1, 2, 0, 0, 0, 1, PATIENT },
};
static bool explore_all(const struct scenario *scenario, size_t count, size_t most)
{
    size_t transitions = 0, states = 0;
    bool held = true;
    for (size_t i = 0; i < count && held; i++) {
        struct search x = { .scenario = &scenario[i], .most = most };
        held = explore(&x) && all_end(&x);
        transitions += x.transitions;
        states += x.states.count;
        printf("%-36s %9zu states, %9zu transitions, %3zu steps deep\n", scenario[i].name, x.states.count,
            x.transitions, x.depth);
        fflush(stdout);
        search_finish(&x);
    }
    printf("%zu states, %zu transitions: %s\n", states, transitions, held ? "all invariants hold" : "BROKEN");
    return held;
}
bool exploration_holds(enum depth depth)
{
    if (depth == QUICK) return true;
    if (depth == DEEP) return explore_all(deep, sizeof deep / sizeof *deep, 30000000);
    return explore_all(scenarios, sizeof scenarios / sizeof *scenarios, 2000000);
}
