/* The k-th call of each rank on a communicator is the same collective, so their arguments are compared. A call ends
   when all ranks have made it. tutti.h would let some calls end earlier. */
#include "tests/unit/zero/verbs.h"
#include "backend/base/dtype.h"
#include "backend/base/status.h"
#include "kernels/reduce.h"
#include "tests/unit/zero/strands.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_COMMS = 128, MOST_CALLS = 2048, HEADER_BYTES = 64 };
enum verb {
    BARRIER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    ALL_GATHER,
    BROADCAST,
    SCATTER,
    ALL_TO_ALL,
    ALL_TO_ALL_V,
    SPLIT,
    ALLOCATE
};
/* The arguments of a call that must be equal on all ranks. */
struct arguments {
    enum verb verb;
    tutti_dtype dtype;
    int op, root;
    size_t length[MOST_RANKS];
    double factor;
    uint64_t label;
};
/* The arguments of one rank. */
struct part {
    const void *send;
    void *recv;
    size_t at[MOST_RANKS];
    /* For ALL_TO_ALL_V: rank r gets given[r] elements, which begin at from[r] of `send`, and sends taken[r] elements,
       which go to at[r] of `recv`. */
    size_t from[MOST_RANKS], given[MOST_RANKS], taken[MOST_RANKS];
    tutti_request *request;
    int color, key;
    void **made;
};
struct group { int count; tutti_comm *member[MOST_RANKS]; struct call *first; };
struct call {
    struct call *next;
    struct group *group;
    struct arguments arguments;
    struct part part[MOST_RANKS];
    int came;
    bool over;
};
struct tutti_comm { struct group *group; struct call *last; int rank, world_rank; bool left; };
struct block { size_t references; uint64_t mark; };
static const char *const names[] = { "barrier", "all_reduce", "reduce_scatter", "all_gather", "broadcast", "scatter",
    "all_to_all", "all_to_all_v", "split", "mem_alloc_common" };
static struct tutti_comm comms[MOST_COMMS];
static struct group groups[MOST_COMMS];
static struct call calls[MOST_CALLS];
static int comm_count, group_count, call_count, host_count;
static long blocks;
static bool late;
/* The `done` functions of a call are being called. */
static bool ending;

/* ---- lifetime ---- */
static void *take(void *array, int *count, int most, size_t bytes)
{
    if (*count == most) {
        fprintf(stderr, "too much for one run\n");
        exit(2);
    }
    void *one = (char *)array + bytes * (size_t)(*count)++;
    memset(one, 0, bytes);
    return one;
}
static struct group *make_group(int count)
{
    struct group *g = take(groups, &group_count, MOST_COMMS, sizeof *groups);
    g->count = count;
    return g;
}
static tutti_comm *join(struct group *g, int rank, int world_rank)
{
    tutti_comm *c = take(comms, &comm_count, MOST_COMMS, sizeof *comms);
    *c = (tutti_comm){ .group = g, .rank = rank, .world_rank = world_rank };
    return g->member[rank] = c;
}
void verbs_begin(int ranks, int hosts, bool is_late)
{
    late = is_late;
    blocks = comm_count = group_count = call_count = 0;
    host_count = hosts;
    struct group *all = make_group(ranks);
    for (int r = 0; r < ranks; r++) join(all, r, r);
}
tutti_comm *verbs_comm(int rank) { return &comms[rank]; }
void verbs_end(void)
{
    for (int i = groups[0].count; i < comm_count; i++)
        if (!comms[i].left) strands_fault("rank %d has left a communicator open", comms[i].world_rank);
    if (blocks) strands_fault("%ld pieces of memory have not been freed", blocks);
}
static int host_of(int world_rank) { return world_rank * host_count / groups[0].count; }
static tutti_status refused(void) { return status_repeat(TUTTI_ABORTED, "the waits of this run have been ended"); }

/* ---- memory ---- */
static void *make_block(size_t bytes, size_t references)
{
    size_t all = (HEADER_BYTES + bytes + HEADER_BYTES - 1) / HEADER_BYTES * HEADER_BYTES;
    struct block *b = aligned_alloc(HEADER_BYTES, all);
    if (!b) {
        fprintf(stderr, "no memory\n");
        exit(2);
    }
    *b = (struct block){ references, 0x7475747469 };
    blocks += (long)references;
    return (char *)b + HEADER_BYTES;
}
tutti_status tutti_mem_alloc(void **out, size_t bytes)
{
    *out = make_block(bytes, 1);
    memset(*out, 0xff, bytes);
    return TUTTI_OK;
}
tutti_status tutti_mem_free(void *memory)
{
    if (!memory) return TUTTI_OK;
    struct block *b = (void *)((char *)memory - HEADER_BYTES);
    if (b->mark != 0x7475747469) {
        fprintf(stderr, "memory is freed that was not allocated here\n");
        exit(2);
    }
    blocks--;
    if (--b->references) return TUTTI_OK;
    b->mark = 0;
    free(b);
    return TUTTI_OK;
}

/* ---- carrying out a call ---- */
static char *element_at(const void *base, size_t elements, const struct arguments *s)
{
    return (char *)base + elements * dtype_bytes(s->dtype);
}
/* Reduces `elements` elements of all `count` ranks to `to`. They begin at at[index] of each rank's `send`. */
static void reduce(const struct call *c, int count, int index, size_t elements, void *to)
{
    static float scaled[MOST_RANKS][16384];
    const struct arguments *s = &c->arguments;
    const void *from[MOST_RANKS];
    for (int r = 0; r < count; r++) {
        from[r] = element_at(c->part[r].send, c->part[r].at[index], s);
        if (s->op != TUTTI_PREMUL_SUM) continue;
        if (elements * dtype_bytes(s->dtype) > sizeof scaled[r]) {
            fprintf(stderr, "too large\n");
            exit(2);
        }
        scale_find(s->dtype)(scaled[r], from[r], elements, s->factor);
        from[r] = scaled[r];
    }
    reduce_find(s->dtype, (tutti_op)s->op)(&to, 1, from, count, elements, s->op == TUTTI_AVG ? count : 1);
}
static void all_reduce(struct call *c, int count)
{
    static _Alignas(64) char whole[16384];
    size_t bytes = c->arguments.length[0] * dtype_bytes(c->arguments.dtype);
    if (bytes > sizeof whole) {
        fprintf(stderr, "too large\n");
        exit(2);
    }
    reduce(c, count, 0, c->arguments.length[0], whole);
    for (int r = 0; r < count; r++) memcpy(c->part[r].recv, whole, bytes);
}
/* Copies elements of rank `from`, which begin at `there` of its `send`, to rank `to`, at `here` of its `recv`. */
static void move(struct call *c, int from, size_t there, int to, size_t here, size_t elements)
{
    const char *source = element_at(c->part[from].send, there, &c->arguments);
    char *place = element_at(c->part[to].recv, here, &c->arguments);
    if (source != place) memcpy(place, source, elements * dtype_bytes(c->arguments.dtype));
}
static void move_uneven(struct call *c, int from, int to)
{
    const struct part *gives = &c->part[from], *takes = &c->part[to];
    if (gives->given[to] != takes->taken[from])
        strands_fault("rank %d gives other counts than rank %d takes", from, to);
    else move(c, from, gives->from[to], to, takes->at[from], gives->given[to]);
}
static void split(struct call *c, const struct group *from)
{
    for (int r = 0; r < from->count; r++) {
        int color = c->part[r].color, count = 0, rank = 0;
        struct group *g = NULL;
        for (int q = 0; q < from->count; q++) {
            if (c->part[q].color != color) continue;
            count++;
            rank += c->part[q].key < c->part[r].key || (c->part[q].key == c->part[r].key && q < r);
            if (q < r && color >= 0) g = (*(tutti_comm **)c->part[q].made)->group;
        }
        *c->part[r].made = color < 0 ? NULL : join(g ? g : make_group(count), rank, from->member[r]->world_rank);
    }
}
static void allocate(struct call *c, const struct group *g)
{
    for (int r = 0; r < g->count; r++) {
        int host = host_of(g->member[r]->world_rank);
        size_t here = 0;
        void *memory = NULL;
        for (int q = 0; q < g->count; q++) {
            if (host_of(g->member[q]->world_rank) != host) continue;
            here++;
            if (q < r) memory = *c->part[q].made;
        }
        if (!memory) memset(memory = make_block(c->arguments.length[0], here), 0, c->arguments.length[0]);
        *c->part[r].made = memory;
    }
}
static void carry_out(struct call *c)
{
    const struct group *g = c->group;
    const struct arguments *s = &c->arguments;
    if (s->verb == ALL_REDUCE) all_reduce(c, g->count);
    if (s->verb == SPLIT) split(c, g);
    if (s->verb == ALLOCATE) allocate(c, g);
    for (int r = 0; r < g->count; r++) {
        if (s->verb == REDUCE_SCATTER) reduce(c, g->count, r, s->length[r], c->part[r].recv);
        if (s->verb == BROADCAST) move(c, s->root, 0, r, 0, s->length[0]);
        if (s->verb == SCATTER) move(c, s->root, s->length[r] * (size_t)r, r, 0, s->length[r]);
        for (int q = 0; q < g->count; q++) {
            if (s->verb == ALL_GATHER) move(c, q, 0, r, c->part[r].at[q], s->length[q]);
            if (s->verb == ALL_TO_ALL) move(c, q, s->length[r] * (size_t)r, r, s->length[q] * (size_t)q, s->length[q]);
            if (s->verb == ALL_TO_ALL_V) move_uneven(c, q, r);
        }
    }
    c->over = true;
    ending = true;
    for (int r = 0; r < g->count; r++) {
        tutti_request *request = c->part[r].request;
        if (request && request->done) request->done(request, request->context);
    }
    ending = false;
}

static bool is_ripe(const struct call *c) { return !c->over && c->came == c->group->count; }
static bool blocks_any_rank(const struct call *c)
{
    for (int r = 0; r < c->group->count; r++)
        if (!c->part[r].request || c->part[r].request->blocking) return true;
    return false;
}
bool verbs_ripen(void)
{
    bool any = false;
    for (int i = 0; i < call_count; i++) {
        if (!is_ripe(&calls[i]) || !strands_want(&calls[i].over)) continue;
        carry_out(&calls[i]);
        any = true;
    }
    for (int i = 0; i < call_count && !any; i++) {
        if (!is_ripe(&calls[i])) continue;
        carry_out(&calls[i]);
        any = true;
    }
    return any;
}

/* ---- a call ---- */
static struct call *next_call(tutti_comm *comm)
{
    struct call **link = comm->last ? &comm->last->next : &comm->group->first;
    if (!*link) {
        *link = take(calls, &call_count, MOST_CALLS, sizeof *calls);
        (*link)->group = comm->group;
    }
    return comm->last = *link;
}
/* Overwrites the memory that the call will write, because a call may write it from its start on. All-gathers with a
   label are left out: zero may gather a unit again while it reads the unit, because the bytes stay the same. */
static void part_spoil(const struct part *p, const struct arguments *s, const struct group *g, int rank)
{
    size_t bytes = dtype_bytes(s->dtype);
    if (s->verb == REDUCE_SCATTER || s->verb == SCATTER) memset(p->recv, 0xff, s->length[rank] * bytes);
    if (s->verb == BROADCAST && rank != s->root) memset(p->recv, 0xff, s->length[0] * bytes);
    for (int q = 0; q < g->count; q++) {
        if (s->verb == ALL_TO_ALL) memset(element_at(p->recv, s->length[q] * (size_t)q, s), 0xff, s->length[q] * bytes);
        if (s->verb == ALL_TO_ALL_V) memset(element_at(p->recv, p->at[q], s), 0xff, p->taken[q] * bytes);
        if (s->verb == ALL_GATHER && !s->label && p->send != element_at(p->recv, p->at[q], s))
            memset(element_at(p->recv, p->at[q], s), 0xff, s->length[q] * bytes);
    }
}
static void check_request(const tutti_request *request, const tutti_comm *comm)
{
    for (int i = 0; i < call_count; i++)
        for (int r = 0; r < MOST_RANKS && !calls[i].over; r++)
            if (calls[i].part[r].request == request)
                strands_fault("rank %d uses a request again, of a %s that is not over", comm->world_rank,
                    names[calls[i].arguments.verb]);
}
static tutti_status call_begin(tutti_comm *comm, struct arguments arguments, struct part part, tutti_request *request)
{
    strand_does(names[arguments.verb]);
    if (strands_have_ended_waits()) return refused();
    if (comm->left) strands_fault("rank %d calls %s on a communicator it has left", comm->rank, names[arguments.verb]);
    if (request) {
        check_request(request, comm);
        arguments.label = request->label;
        arguments.factor = request->factor;
    }
    struct call *c = next_call(comm);
    if (!c->came) c->arguments = arguments;
    else if (memcmp(&c->arguments, &arguments, sizeof arguments))
        strands_fault("rank %d calls %s of %zu, label %llu, where others call %s of %zu, label %llu", comm->world_rank,
            names[arguments.verb], arguments.length[0], (unsigned long long)arguments.label, names[c->arguments.verb],
            c->arguments.length[0], (unsigned long long)c->arguments.label);
    if (strands_have_ended_waits()) return refused();
    part.request = request;
    c->part[comm->rank] = part;
    if (request) request->reserved[0] = (uintptr_t)c;
    part_spoil(&part, &arguments, comm->group, comm->rank);
    c->came++;
    if (is_ripe(c) && (!late || blocks_any_rank(c))) carry_out(c);
    if (request && !request->blocking) return TUTTI_OK;
    strand_await(&c->over);
    return c->over ? TUTTI_OK : refused();
}
static struct call *call_of(const tutti_request *request) { return (struct call *)(uintptr_t)request->reserved[0]; }
tutti_status tutti_test(tutti_request *request)
{
    struct call *c = call_of(request);
    if (!ending && !request->reserved[1]) request->reserved[1] = strand_asks(&c->over);
    if (ending || request->reserved[1]) return TUTTI_OK;
    return strands_have_ended_waits() ? refused() : TUTTI_IN_PROGRESS;
}
tutti_status tutti_wait(tutti_request *request, int64_t timeout_ms)
{
    (void)timeout_ms;
    struct call *c = call_of(request);
    strand_does(names[c->arguments.verb]);
    strand_await(&c->over);
    request->reserved[1] = c->over;
    return c->over ? TUTTI_OK : refused();
}

/* ---- the verbs ---- */
static struct arguments arguments_even(enum verb verb, const tutti_comm *comm, size_t count, tutti_dtype dtype)
{
    struct arguments s;
    /* The padding is cleared, too, because memcmp compares it. */
    memset(&s, 0, sizeof s);
    s.verb = verb;
    s.dtype = dtype;
    for (int r = 0; r < comm->group->count; r++) s.length[r] = count;
    return s;
}
static struct part between(const void *send, void *recv, const tutti_comm *comm, size_t apart)
{
    struct part p = { .send = send, .recv = recv };
    for (int r = 0; r < comm->group->count; r++) p.at[r] = apart * (size_t)r;
    return p;
}
tutti_status tutti_barrier(tutti_comm *comm, tutti_request *request)
{
    return call_begin(comm, arguments_even(BARRIER, comm, 0, TUTTI_UINT8), (struct part){ 0 }, request);
}
tutti_status tutti_all_reduce(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_op op,
    tutti_comm *comm, tutti_request *request)
{
    struct arguments arguments = arguments_even(ALL_REDUCE, comm, count, dtype);
    arguments.op = op;
    return call_begin(comm, arguments, between(send, recv, comm, 0), request);
}
tutti_status tutti_reduce_scatter(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_op op,
    tutti_comm *comm, tutti_request *request)
{
    struct arguments arguments = arguments_even(REDUCE_SCATTER, comm, count, dtype);
    arguments.op = op;
    return call_begin(comm, arguments, between(send, recv, comm, count), request);
}
static void set_counts(struct arguments *arguments, struct part *part, const tutti_comm *comm, const size_t *counts,
    const size_t *offsets)
{
    for (int r = 0; r < comm->group->count; r++) {
        arguments->length[r] = counts[r];
        part->at[r] = offsets[r];
    }
}
tutti_status tutti_reduce_scatter_v(const void *send, const size_t *counts, const size_t *offsets, void *recv,
    tutti_dtype dtype, tutti_op op, tutti_comm *comm, tutti_request *request)
{
    struct arguments arguments = arguments_even(REDUCE_SCATTER, comm, 0, dtype);
    struct part part = { .send = send, .recv = recv };
    arguments.op = op;
    set_counts(&arguments, &part, comm, counts, offsets);
    return call_begin(comm, arguments, part, request);
}
tutti_status tutti_all_gather(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_comm *comm,
    tutti_request *request)
{
    return call_begin(comm, arguments_even(ALL_GATHER, comm, count, dtype), between(send, recv, comm, count), request);
}
tutti_status tutti_all_gather_v(const void *send, void *recv, const size_t *counts, const size_t *offsets,
    tutti_dtype dtype, tutti_comm *comm, tutti_request *request)
{
    struct arguments arguments = arguments_even(ALL_GATHER, comm, 0, dtype);
    struct part part = { .send = send, .recv = recv };
    set_counts(&arguments, &part, comm, counts, offsets);
    return call_begin(comm, arguments, part, request);
}
tutti_status tutti_broadcast(const void *send, void *recv, size_t count, tutti_dtype dtype, int root, tutti_comm *comm,
    tutti_request *request)
{
    struct arguments arguments = arguments_even(BROADCAST, comm, count, dtype);
    arguments.root = root;
    return call_begin(comm, arguments, between(send, recv, comm, 0), request);
}
tutti_status tutti_scatter(const void *send, void *recv, size_t count, tutti_dtype dtype, int root, tutti_comm *comm,
    tutti_request *request)
{
    struct arguments arguments = arguments_even(SCATTER, comm, count, dtype);
    arguments.root = root;
    return call_begin(comm, arguments, between(send, recv, comm, 0), request);
}
tutti_status tutti_all_to_all(const void *send, void *recv, size_t count, tutti_dtype dtype, tutti_comm *comm,
    tutti_request *request)
{
    return call_begin(comm, arguments_even(ALL_TO_ALL, comm, count, dtype), between(send, recv, comm, 0), request);
}
tutti_status tutti_all_to_all_v(const void *send, const size_t *send_counts, const size_t *send_offsets, void *recv,
    const size_t *recv_counts, const size_t *recv_offsets, tutti_dtype dtype, tutti_comm *comm, tutti_request *request)
{
    struct part part = { .send = send, .recv = recv };
    for (int r = 0; r < comm->group->count; r++) {
        part.given[r] = send_counts[r];
        part.from[r] = send_offsets[r];
        part.taken[r] = recv_counts[r];
        part.at[r] = recv_offsets[r];
    }
    return call_begin(comm, arguments_even(ALL_TO_ALL_V, comm, 0, dtype), part, request);
}

/* ---- communicators ---- */
tutti_status tutti_comm_split(tutti_comm *comm, int color, int key, tutti_comm **out)
{
    struct part part = { .color = color, .key = key, .made = (void **)out };
    return call_begin(comm, arguments_even(SPLIT, comm, 0, TUTTI_UINT8), part, NULL);
}
tutti_status tutti_mem_alloc_common(void **out, size_t bytes, tutti_comm *comm)
{
    return call_begin(comm, arguments_even(ALLOCATE, comm, bytes, TUTTI_UINT8), (struct part){ .made = out }, NULL);
}
tutti_status tutti_comm_destroy(tutti_comm *comm)
{
    if (!comm) return TUTTI_OK;
    strand_does("destroy");
    for (struct call *c = comm->group->first; c && comm->last; c = c->next) {
        if (is_ripe(c)) carry_out(c);
        if (!c->over) strands_fault("rank %d leaves in the middle of a %s", comm->world_rank, names[c->arguments.verb]);
        if (c == comm->last) break;
    }
    if (comm->left) strands_fault("rank %d leaves a communicator twice", comm->world_rank);
    comm->left = true;
    return TUTTI_OK;
}
tutti_status tutti_comm_abort(tutti_comm *comm)
{
    strands_fault("rank %d aborts: %s", comm->world_rank, status_detail());
    return TUTTI_OK;
}
/* A rank that calls this function waits for memory that other ranks write. */
tutti_status tutti_comm_get_async_error(tutti_comm *comm)
{
    (void)comm;
    strand_watches();
    return strands_have_ended_waits() ? refused() : TUTTI_OK;
}
int tutti_comm_count(const tutti_comm *comm) { return comm->group->count; }
int tutti_comm_user_rank(const tutti_comm *comm) { return comm->rank; }
tutti_status tutti_comm_set_name(tutti_comm *comm, const char *name)
{
    (void)comm;
    (void)name;
    return TUTTI_OK;
}
tutti_status tutti_comm_set_priority(tutti_comm *comm, int priority)
{
    (void)comm;
    (void)priority;
    return TUTTI_OK;
}
tutti_status tutti_comm_place(tutti_comm *comm, int rank, int *host, int *index)
{
    *index = 0;
    *host = host_of(comm->group->member[rank]->world_rank);
    for (int r = 0; r < rank; r++) *index += host_of(comm->group->member[r]->world_rank) == *host;
    return TUTTI_OK;
}
size_t tutti_dtype_bytes(tutti_dtype dtype) { return dtype_bytes(dtype); }
const char *tutti_dtype_name(tutti_dtype dtype) { return dtype_name(dtype); }
