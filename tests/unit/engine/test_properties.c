/* Random calls over simulated hosts: collective, algorithm, type, operation, even or uneven counts, root, tensors that
 * are shared, private or in place, any alignment, blocking or asynchronous, tiles of any size. Every rank computes the
 * expected result from the inputs of all ranks with the arithmetic of tests/unit/kernels/reference.h, compares it bit
 * by bit with what it received, and checks that no other memory was written.
 *   unit_engine test_properties [--cases N] [--seed S] [--first K] [--hosts LIST] [--processes 1]
 * Case k of a seed does not depend on the cases before it. If it fails, it prints the command that runs it again. */
#include "backend/base/settings.h"
#include "backend/engine/comm.h"
#include "kernels/reduce.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include "tests/unit/kernels/reference.h"

#ifdef FEW
enum { CASES = 600 };
#else
enum { CASES = 4000 };
#endif
enum { MOST = 12, EXACT_RANKS = 8, GUARD = 64, IN_A_WORLD = 250, OPEN = 3, LARGEST = 20000, TIMEOUT_MS = 60000 };
/* The first OF_TWO_HOSTS placements have two hosts. Most cases run on them, because every sum then has one order. */
static const struct placement_of {
    const char *hosts;
    int size;
} placements[] = { { "2", 2 }, { "0,1,0", 3 }, { "0,1,1", 3 }, { "2", 4 }, { "0,1,0,1", 4 }, { "0,0,0,1", 4 },
    { "0,1,1,0,1", 5 }, { "2", 6 }, { "3", 3 }, { "0,1,2,0", 4 }, { "4", 4 }, { "0,1,2,2,1,2", 6 },
    { "0,1,2,3,0,1,2,3", 8 }, { "3", 9 }, { "4", 12 }, { "1", 3 } };
enum { PLACEMENTS = sizeof placements / sizeof *placements, OF_TWO_HOSTS = 8 };

/* ---- drawing a case ---- */
static uint64_t mix(uint64_t z) { return random_next(&z); }
static uint64_t draw(uint64_t *state, uint64_t below)
{
    *state = mix(*state);
    return (*state >> 11) % below;
}
/* EXACT: values whose sums are exact in any order. ANY: all values. */
enum exactness { EXACT, ANY };
struct test {
    uint64_t number, seed;
    enum collective collective;
    const struct algorithm *algorithm;
    tutti_dtype dtype;
    tutti_op op;
    enum exactness values;
    int root;
    bool uneven;
    /* [rank][part]: the elements of each part of a rank's input. */
    size_t counts[MOST][MOST];
};
static uint64_t first_seed = 1;
static const char *only_hosts;
static _Atomic uint64_t seen[COLLECTIVE_COUNT][TUTTI_DTYPE_COUNT], seen_ops[TUTTI_DTYPE_COUNT];

static const struct placement_of *placement_of(uint64_t world)
{
    uint64_t state = mix(first_seed * 31 + world);
    const struct placement_of *p =
        &placements[draw(&state, 5) ? draw(&state, OF_TWO_HOSTS)
                                    : OF_TWO_HOSTS + draw(&state, PLACEMENTS - OF_TWO_HOSTS)];
    for (int i = 0; only_hosts && i < PLACEMENTS; i++)
        if (!strcmp(placements[(world + (uint64_t)i) % PLACEMENTS].hosts, only_hosts))
            return &placements[(world + (uint64_t)i) % PLACEMENTS];
    return p;
}
static bool is_summing(enum collective f) { return f == ALLREDUCE || f == REDUCE || f == REDUCE_SCATTER; }
static size_t draw_count(uint64_t *state, size_t most)
{
    static const size_t below[] = { 4, 4, 70, 70, 70, 70, 1500, 1500, 1500, 6000, 6000, LARGEST };
    size_t limit = below[draw(state, sizeof below / sizeof *below)];
    return (size_t)draw(state, limit < most ? limit : most);
}
static void draw_counts(struct test *t, int size, uint64_t *state)
{
    bool many = collective_count_chunks(t->collective, INPUT, size) > 1
        || collective_count_chunks(t->collective, OUTPUT, size) > 1;
    size_t most = many ? LARGEST / (size_t)size : LARGEST, count = draw_count(state, most), column[MOST];
    for (int q = 0; q < size; q++) column[q] = draw(state, 3) ? draw_count(state, most) : 0;
    for (int a = 0; a < size; a++)
        for (int q = 0; q < size; q++) {
            size_t own = t->collective == ALL_TO_ALL ? draw_count(state, most / 4 + 1)
                                                     : column[t->collective == ALLGATHER ? a : q];
            t->counts[a][q] = t->uneven ? own : count;
        }
}
static const struct algorithm *draw_algorithm(enum collective collective, const struct layout *l, uint64_t *state)
{
    const struct algorithm *of_collective[32];
    int count = 0;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        if (a->collective == collective && (l->hosts == 1 || !a->host_memory)) of_collective[count++] = a;
    return draw(state, 2) ? NULL : of_collective[draw(state, (uint64_t)count)];
}
static bool is_defined(tutti_dtype dtype, tutti_op op)
{
    return reduce_find(dtype, op) && (op != TUTTI_PREMUL_SUM || scale_find(dtype));
}
/* Sums, products and averages of floating-point numbers depend on the order, unless they are exact. With up to two
   hosts the order is known for algorithms that are hierarchical or access memory of peers. Results of integers do not
   depend on the order, even if they wrap. */
static enum exactness draw_values(const struct test *t, const struct layout *l, uint64_t *state)
{
    bool ordered = is_floating(t->dtype) && (t->op == TUTTI_SUM || t->op == TUTTI_PROD || t->op == TUTTI_AVG);
    bool known = l->hosts <= 2 && (!t->algorithm || t->algorithm->hierarchical || t->algorithm->host_memory);
    if (is_summing(t->collective) && (t->op == TUTTI_PREMUL_SUM || (ordered && !known))) return EXACT;
    return draw(state, 4) ? ANY : EXACT;
}
static struct test test_nth(uint64_t number, const struct layout *l)
{
    struct test t = { .number = number, .seed = mix(mix(first_seed) ^ number) };
    uint64_t state = t.seed;
    t.collective = (enum collective)draw(&state, COLLECTIVE_COUNT);
    t.uneven =
        draw(&state, 2) && (t.collective == REDUCE_SCATTER || t.collective == ALLGATHER || t.collective == ALL_TO_ALL);
    t.algorithm = draw_algorithm(t.collective, l, &state);
    do {
        t.dtype = (tutti_dtype)draw(&state, TUTTI_DTYPE_COUNT);
        t.op = (tutti_op)draw(&state, TUTTI_OP_COUNT);
    } while (!is_defined(t.dtype, t.op));
    t.root = (int)draw(&state, (uint64_t)l->ranks);
    t.values = draw_values(&t, l, &state);
    draw_counts(&t, l->ranks, &state);
    return t;
}

/* ---- inputs ---- */
static uint64_t exact_code(const struct test *t, uint64_t random)
{
    static const double factors[] = { 1, -1, 2, 0.5, -2, -0.5 };
    double value = t->op == TUTTI_PROD ? factors[random % 6] : (double)(random % 3) - 1;
    if (t->dtype == TUTTI_BOOL) return random & 1;
    return is_floating(t->dtype) ? encode(format_of(t->dtype), value) : cut(random, t->dtype);
}
/* Returns a number of ordinary size, or now and then any bits. */
static uint64_t any_code(const struct test *t, uint64_t random)
{
    if (t->dtype == TUTTI_BOOL || !is_floating(t->dtype)) return exact_code(t, random);
    if (random % 32 == 0) return cut(random >> 8, t->dtype);
    return encode(format_of(t->dtype), ldexp((double)(float)(int32_t)(random >> 20), -31 + (int)(random % 5)));
}
static uint64_t code_of(const struct test *t, int rank, int part, size_t i)
{
    uint64_t random = mix(t->seed ^ ((uint64_t)rank * 64 + (uint64_t)part + 1) << 40 ^ i);
    /* With more ranks sums and products would not be exact, so these have the neutral element. */
    if (t->values == EXACT && rank >= EXACT_RANKS && is_floating(t->dtype))
        return encode(format_of(t->dtype), t->op == TUTTI_PROD);
    return t->values == EXACT ? exact_code(t, random) : any_code(t, random);
}

/* ---- expected results ---- */
/* Reduces over the ranks of each host in their order, then over the hosts. With one host the second step changes
   nothing. */
static uint64_t total(const struct test *t, const struct layout *l, int part, size_t i)
{
    uint64_t of_host[MOST], codes[MOST];
    int divisor = t->op == TUTTI_AVG ? l->ranks : 1;
    tutti_op op = t->op == TUTTI_AVG || t->op == TUTTI_PREMUL_SUM ? TUTTI_SUM : t->op;
    for (int h = 0; h < l->hosts; h++) {
        for (int k = 0; k < layout_host_size(l, h); k++) {
            codes[k] = code_of(t, layout_rank(l, h, k), part, i);
            if (t->op == TUTTI_PREMUL_SUM)
                codes[k] = encode(format_of(t->dtype), 0.5 * decode(format_of(t->dtype), codes[k]));
        }
        of_host[h] = reference(t->dtype, op, codes, layout_host_size(l, h), l->hosts == 1 ? divisor : 1);
    }
    return reference(t->dtype, op, of_host, l->hosts, l->hosts == 1 ? 1 : divisor);
}
/* Returns element i of part q of this rank's result. */
static uint64_t wanted(const struct test *t, const struct layout *l, int rank, int q, size_t i)
{
    switch (t->collective) {
    case ALLREDUCE:
    case REDUCE: return total(t, l, 0, i);
    case REDUCE_SCATTER: return total(t, l, rank, i);
    case BROADCAST: return code_of(t, t->root, 0, i);
    case SCATTER: return code_of(t, t->root, rank, i);
    case ALL_TO_ALL: return code_of(t, q, rank, i);
    default: return code_of(t, q, 0, i);
    }
}
static size_t count_of(const struct test *t, enum buffer buffer, int rank, int q)
{
    if (!t->uneven || buffer == INPUT) return t->counts[rank][q];
    return t->collective == REDUCE_SCATTER ? t->counts[rank][rank] : t->counts[q][rank];
}

/* ---- tensors ---- */
/* An area with the parts of a buffer between guards, with gaps if counts are uneven, and `image`, what it should
   contain. Offsets are in elements. */
struct side { unsigned char *area, *image; size_t bytes, offset[MOST]; bool shared; };
struct job {
    struct test test;
    struct side side[2];
    /* The side in whose area each buffer lies; in place both lie in one. */
    enum buffer home[2];
    /* The number of parts of each buffer; 0: this rank has no such buffer. */
    int parts[2];
    tutti_request request;
};
static size_t element_bytes(const struct test *t) { return t->collective == BARRIER ? 1 : bytes_of(t->dtype); }
static unsigned char *part_in(const struct job *j, enum buffer buffer, int q, bool image)
{
    const struct side *s = &j->side[j->home[buffer]];
    /* In place this buffer has one part, which is this rank's part of the other buffer, or its only one. */
    bool borrower = j->home[buffer] != buffer;
    size_t offset = j->side[buffer].offset[borrower ? 0 : q] * element_bytes(&j->test);
    return (image ? s->image : s->area) + GUARD + offset;
}
static void write_part(const struct job *j, enum buffer buffer, int q, int rank, const struct layout *l)
{
    const struct test *t = &j->test;
    for (size_t i = 0; i < count_of(t, buffer, rank, q); i++) {
        uint64_t code = buffer == INPUT ? code_of(t, rank, q, i) : wanted(t, l, rank, q, i);
        memcpy(part_in(j, buffer, q, true) + i * element_bytes(t), &code, element_bytes(t));
    }
}
static void side_make(struct job *j, enum buffer buffer, int rank, uint64_t *own)
{
    struct side *s = &j->side[buffer];
    const struct test *t = &j->test;
    bool backwards = t->uneven && draw(own, 2);
    /* The parts begin at any alignment. */
    size_t at = (size_t)draw(own, 8);
    for (int k = 0; k < j->parts[buffer]; k++) {
        int q = backwards ? j->parts[buffer] - 1 - k : k;
        s->offset[q] = at;
        at += count_of(t, buffer, rank, q) + (t->uneven ? draw(own, 4) : 0);
    }
    s->bytes = at * element_bytes(t) + (size_t)2 * GUARD;
    if (s->shared) REQUIRE(tutti_mem_alloc((void **)&s->area, s->bytes) == TUTTI_OK);
    else s->area = malloc(s->bytes);
    s->image = malloc(s->bytes);
    memset(s->image, 0xa5, s->bytes);
}
static void job_make(struct job *j, const struct rank *me, uint64_t *own)
{
    const struct test *t = &j->test;
    int way = (int)draw(own, 4);
    for (int b = INPUT; b <= OUTPUT; b++) {
        bool has = t->collective != BARRIER && collective_has_buffer(t->collective, t->root, me->rank, (enum buffer)b);
        j->parts[b] = has ? collective_count_chunks(t->collective, (enum buffer)b, me->size) : 0;
        j->home[b] = (enum buffer)b;
        j->side[b] = (struct side){ .shared = way >= 2 || (way == 1 && b == INPUT) };
    }
    bool in_place = t->collective != ALL_TO_ALL && j->parts[INPUT] && j->parts[OUTPUT] && draw(own, 2);
    enum buffer host = in_place && j->parts[OUTPUT] > j->parts[INPUT] ? OUTPUT : INPUT, borrower = 1 - host;
    if (in_place) j->home[borrower] = host;
    for (int b = INPUT; b <= OUTPUT; b++)
        if (j->parts[b] && j->home[b] == (enum buffer)b) side_make(j, (enum buffer)b, me->rank, own);
    if (in_place) j->side[borrower].offset[0] = j->side[host].offset[j->parts[host] > 1 ? me->rank : 0];
    for (int q = 0; q < j->parts[INPUT]; q++) write_part(j, INPUT, q, me->rank, me->comm->group.layout);
    for (int b = INPUT; b <= OUTPUT; b++)
        if (j->side[b].area) memcpy(j->side[b].area, j->side[b].image, j->side[b].bytes);
}

/* ---- calls ---- */
static tutti_status call_uneven(struct job *j, const struct rank *me, const void *in, void *out)
{
    const struct test *t = &j->test;
    size_t count[2][MOST], *at[2] = { j->side[INPUT].offset, j->side[OUTPUT].offset };
    tutti_request *r = &j->request;
    for (int b = INPUT; b <= OUTPUT; b++)
        for (int q = 0; q < me->size; q++) count[b][q] = count_of(t, (enum buffer)b, me->rank, q);
    if (t->collective == ALLGATHER)
        return tutti_all_gather_v(in, out, count[OUTPUT], at[OUTPUT], t->dtype, me->comm, r);
    if (t->collective == REDUCE_SCATTER)
        return tutti_reduce_scatter_v(in, count[INPUT], at[INPUT], out, t->dtype, t->op, me->comm, r);
    return tutti_all_to_all_v(in, count[INPUT], at[INPUT], out, count[OUTPUT], at[OUTPUT], t->dtype, me->comm, r);
}
static tutti_status call_even(struct job *j, const struct rank *me, const void *in, void *out)
{
    const struct test *t = &j->test;
    size_t count = t->counts[0][0];
    tutti_request *r = &j->request;
    switch (t->collective) {
    case ALLREDUCE: return tutti_all_reduce(in, out, count, t->dtype, t->op, me->comm, r);
    case REDUCE: return tutti_reduce(in, out, count, t->dtype, t->op, t->root, me->comm, r);
    case BROADCAST: return tutti_broadcast(in, out, count, t->dtype, t->root, me->comm, r);
    case REDUCE_SCATTER: return tutti_reduce_scatter(in, out, count, t->dtype, t->op, me->comm, r);
    case ALLGATHER: return tutti_all_gather(in, out, count, t->dtype, me->comm, r);
    case ALL_TO_ALL: return tutti_all_to_all(in, out, count, t->dtype, me->comm, r);
    case GATHER: return tutti_gather(in, out, count, t->dtype, t->root, me->comm, r);
    case SCATTER: return tutti_scatter(in, out, count, t->dtype, t->root, me->comm, r);
    default: return tutti_barrier(me->comm, r);
    }
}
/* Returns the address of a buffer for the call. With uneven counts it is that of the area, because offsets are passed
   too, unless the buffer has only one part. */
static unsigned char *begin_of(const struct job *j, enum buffer buffer)
{
    bool by_offsets = j->test.uneven && j->parts[buffer] > 1;
    return !j->parts[buffer] ? NULL : by_offsets ? j->side[buffer].area + GUARD : part_in(j, buffer, 0, false);
}
static void complain(const struct job *j, const struct rank *me, const char *what)
{
    const struct test *t = &j->test;
    fprintf(stderr, "rank %d of %d on hosts %s: %s, algorithm %s, %s, %s, root %d, %s counts", me->rank, me->size,
        settings_get()->hosts, collective_name(t->collective), t->algorithm ? t->algorithm->name : "chosen",
        name_of(t->dtype), tutti_op_name(t->op), t->root, t->uneven ? "uneven" : "even");
    for (int q = 0; q < me->size; q++) fprintf(stderr, " %zu", t->counts[me->rank][q]);
    fprintf(stderr,
        ", %s%s%s: %s\nto run it again: unit_engine test_properties --seed %llu --first %llu --cases 1, or, with what "
        "came before in its group, --first %llu --cases %llu\n",
        j->side[INPUT].shared ? "shared" : "private", j->side[OUTPUT].shared ? " to shared" : " to private",
        j->home[INPUT] != j->home[OUTPUT] ? "" : ", in place", what, (unsigned long long)first_seed,
        (unsigned long long)t->number, (unsigned long long)(t->number / IN_A_WORLD * IN_A_WORLD),
        (unsigned long long)(t->number % IN_A_WORLD + 1));
}
static void compare(const struct job *j, const struct rank *me)
{
    for (int b = INPUT; b <= OUTPUT; b++) {
        const struct side *s = &j->side[b];
        if (!s->area || memcmp(s->area, s->image, s->bytes) == 0) continue;
        size_t at = 0;
        char what[100];
        while (s->area[at] == s->image[at]) at++;
        snprintf(what, sizeof what, "byte %zu of the %s area of %zu is %02x, should be %02x", at,
            b == INPUT ? "first" : "second", s->bytes, s->area[at], s->image[at]);
        complain(j, me, what);
        bool is_as_defined = false;
        REQUIRE(is_as_defined);
    }
}
static void start(struct job *j, const struct rank *me, uint64_t *own)
{
    job_make(j, me, own);
    j->request = (tutti_request)TUTTI_REQUEST_INIT;
    j->request.algorithm = j->test.algorithm ? j->test.algorithm->name : NULL;
    j->request.factor = 0.5;
    j->request.blocking = draw(own, 2);
    const unsigned char *in = begin_of(j, INPUT);
    unsigned char *out = begin_of(j, OUTPUT);
    tutti_status status = j->test.uneven ? call_uneven(j, me, in, out) : call_even(j, me, in, out);
    if (status != TUTTI_OK) complain(j, me, tutti_get_last_error());
    REQUIRE(status == TUTTI_OK);
}
static void finish(struct job *j, const struct rank *me)
{
    tutti_status status = j->request.blocking ? TUTTI_OK : tutti_wait(&j->request, 0);
    if (status != TUTTI_OK) complain(j, me, tutti_get_last_error());
    REQUIRE(status == TUTTI_OK);
    for (int q = 0; q < j->parts[OUTPUT]; q++) write_part(j, OUTPUT, q, me->rank, me->comm->group.layout);
    compare(j, me);
    for (int b = INPUT; b <= OUTPUT; b++) {
        if (j->side[b].area && j->side[b].shared) REQUIRE(tutti_mem_free(j->side[b].area) == TUTTI_OK);
        else free(j->side[b].area);
        free(j->side[b].image);
    }
}

/* ---- worlds ---- */
struct cases { uint64_t first, count; };
static void body(struct rank *me)
{
    const struct cases *cases = me->context;
    struct job *jobs = calloc(OPEN, sizeof *jobs);
    uint64_t started = 0, finished = 0;
    for (; started < cases->count; started++) {
        struct job *j = &jobs[started % OPEN];
        j->test = test_nth(cases->first + started, me->comm->group.layout);
        uint64_t own = mix(j->test.seed + (uint64_t)me->rank + 1);
        atomic_fetch_add(&seen[j->test.collective][j->test.dtype], 1);
        if (is_summing(j->test.collective)) atomic_fetch_or(&seen_ops[j->test.dtype], (uint64_t)1 << j->test.op);
        start(j, me, &own);
        for (uint64_t open = draw(&own, OPEN); started + 1 - finished > open; finished++)
            finish(&jobs[finished % OPEN], me);
    }
    for (; finished < started; finished++) finish(&jobs[finished % OPEN], me);
    free(jobs);
}
static void draw_settings(uint64_t world)
{
    static const char *const tiles[] = { "0", "0", "4096", "65536" }, *const slots[] = { "0", "0", "1", "3" };
    uint64_t state = mix(first_seed * 17 + world);
    setenv("TUTTI_TILE_BYTES", tiles[draw(&state, 4)], 1);
    setenv("TUTTI_SLOTS", slots[draw(&state, 4)], 1);
}
/* Returns how many types with a collective, and types with an operation, were never drawn. */
static int count_left_out(void)
{
    int left_out = 0;
    for (int d = 0; d < TUTTI_DTYPE_COUNT; d++) {
        for (int f = 0; f < COLLECTIVE_COUNT; f++) left_out += !seen[f][d];
        for (int o = 0; o < TUTTI_OP_COUNT; o++)
            left_out += is_defined((tutti_dtype)d, (tutti_op)o) && !(seen_ops[d] >> o & 1);
    }
    return left_out;
}
static int run_processes(const struct placement_of *p, struct cases *cases)
{
    world_pretend(p->hosts);
    int bad = world_processes(p->size, TIMEOUT_MS / 1000, body, cases);
    world_pretend("");
    return bad;
}
unit_function test_properties;
int test_properties(void)
{
    int count = unit_arguments.count;
    char **arguments = unit_arguments.words;
    uint64_t cases = CASES, first = 0, of_two_hosts = 0;
    bool processes = false;
    int bad = 0;
    for (int i = 1; i + 1 < count; i += 2) {
        if (!strcmp(arguments[i], "--cases")) cases = strtoull(arguments[i + 1], NULL, 10);
        if (!strcmp(arguments[i], "--seed")) first_seed = strtoull(arguments[i + 1], NULL, 10);
        if (!strcmp(arguments[i], "--first")) first = strtoull(arguments[i + 1], NULL, 10);
        if (!strcmp(arguments[i], "--hosts")) only_hosts = arguments[i + 1];
        processes |= !strcmp(arguments[i], "--processes");
    }
    tutti_config options = TUTTI_CONFIG_INIT;
    options.timeout_ms = TIMEOUT_MS;
    for (uint64_t at = first, end = first + cases, next; at < end; at = next) {
        const struct placement_of *p = placement_of(at / IN_A_WORLD);
        next = (at / IN_A_WORLD + 1) * IN_A_WORLD;
        if (next > end) next = end;
        struct cases of_world = { at, next - at };
        draw_settings(at / IN_A_WORLD);
        if (!processes) world_threads_on(p->hosts, p->size, &options, body, &of_world);
        else bad += run_processes(p, &of_world);
        of_two_hosts += p < placements + OF_TWO_HOSTS ? next - at : 0;
    }
    printf("%llu cases from seed %llu on, %llu of them over 2 hosts\n", (unsigned long long)cases,
        (unsigned long long)first_seed, (unsigned long long)of_two_hosts);
    if (!processes && cases >= 4000 && count_left_out()) {
        printf("%d types and operations were never drawn\n", count_left_out());
        return 1;
    }
    return bad > 0;
}
