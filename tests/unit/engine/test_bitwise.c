/* A sum on one host has one result, to the last bit: rank 0's number plus rank 1's plus rank 2's, in this order. For
 * types of 16 bits it is computed in float and rounded once. It does not depend on the algorithm, on how a message is
 * cut, on the number of tiles in flight, on how slots are written, on where each rank's tensors lie and begin, on
 * whether results go to a place of their own or around the caches, or on whether the caller waits. Inputs have all
 * magnitudes and cancel, so that another order gives other bits; a test checks this for the reverse order. */
#include "backend/base/settings.h"
#include "backend/collectives/collectives.h"
#include "backend/model/machine.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include "tests/unit/kernels/reference.h"

enum { MOST = 4, MOST_BYTES = 900000, EDGE = 128 };
#ifdef FEW
enum { MIXTURES = 1 };
#else
enum { MIXTURES = 3 };
#endif
enum way { APART, IN_PLACE, SHARED, SHARED_IN_PLACE, WAYS };
/* Sizes in bytes around a line's payload and around the sizes at which the algorithm or the tiling changes, and one
   with more tiles than slots. */
static const size_t sizes[] = { 8, 48, 56, 4104, 16384, 16392, 65528, 65544, 131080, MOST_BYTES };
static const tutti_dtype types[] = { TUTTI_FLOAT32, TUTTI_FLOAT64, TUTTI_FLOAT16, TUTTI_BFLOAT16 };
static const enum collective collectives[] = { ALLREDUCE, REDUCE, REDUCE_SCATTER };
enum { SIZES = sizeof sizes / sizeof *sizes, TYPES = sizeof types / sizeof *types };

static uint64_t drawn(uint64_t a, uint64_t b) { return random_mixed(random_mixed(a * 0x9e3779b97f4a7c15u + 1) + b); }

/* ---- what goes in, and what must come out ---- */
/* The inputs of each rank, and in sum[p] the sum of ranks 0 … p - 1. */
struct numbers { unsigned char *input[MOST], *sum[MOST + 1]; } numbers[TYPES];

/* Returns element i of a rank's input. Half of these numbers subtract what an earlier rank adds, or nearly. The others
   are about as large, or 2^-22 of that, so that sums in float are rounded for types of 16 bits too, and cancelling
   shows the rounding. */
static double number(tutti_dtype dtype, int rank, size_t i)
{
    uint64_t z = drawn((uint64_t)i, (uint64_t)rank);
    int exponent = 3 + (int)(drawn((uint64_t)i, 99) % (dtype == TUTTI_FLOAT16 ? 11 : 60));
    if (rank && z % 2) return -number(dtype, rank - 1 - (rank > 1 && z / 2 % 4), i) * (z / 8 % 4 ? 1 : 1.015625);
    double fraction = 1 + (double)(z >> 12) / (double)(UINT64_C(1) << 52);
    return (z / 2 % 2 ? fraction : -fraction) * ldexp(1, exponent - (z / 4 % 2 ? 22 + (int)(z / 8 % 4) : 0));
}
static uint64_t code_at(const unsigned char *array, size_t i, size_t bytes)
{
    uint64_t code = 0;
    memcpy(&code, array + i * bytes, bytes);
    return code;
}
/* Returns element i of the sum; turned: in the reverse order of the ranks. */
static uint64_t sum_of(tutti_dtype dtype, const struct numbers *n, int size, size_t i, bool turned)
{
    uint64_t codes[MOST];
    for (int r = 0; r < size; r++) codes[r] = code_at(n->input[turned ? size - 1 - r : r], i, bytes_of(dtype));
    return reference(dtype, TUTTI_SUM, codes, size, 1);
}
static int numbers_make(void **state)
{
    (void)state;
    for (int t = 0; t < TYPES; t++) {
        size_t bytes = bytes_of(types[t]), count = MOST_BYTES / bytes;
        for (int r = 0; r < MOST; r++) {
            numbers[t].input[r] = malloc(MOST_BYTES);
            for (size_t i = 0; i < count; i++) {
                uint64_t code = encode(format_of(types[t]), number(types[t], r, i));
                memcpy(numbers[t].input[r] + i * bytes, &code, bytes);
            }
        }
        for (int size = 2; size <= MOST; size++) {
            numbers[t].sum[size] = malloc(MOST_BYTES);
            for (size_t i = 0; i < count; i++) {
                uint64_t code = sum_of(types[t], &numbers[t], size, i, false);
                memcpy(numbers[t].sum[size] + i * bytes, &code, bytes);
            }
        }
    }
    return 0;
}
static int numbers_free(void **state)
{
    (void)state;
    for (int t = 0; t < TYPES; t++) {
        for (int r = 0; r < MOST; r++) free(numbers[t].input[r]);
        for (int size = 2; size <= MOST; size++) free(numbers[t].sum[size]);
    }
    return 0;
}

/* ---- one call ---- */
struct test {
    /* An index of `types`. */
    int type;
    enum collective collective;
    const char *algorithm;
    /* The elements of all inputs of a rank, and their bytes. */
    size_t count, bytes;
    int root;
};
struct area { unsigned char *at; bool shared; };
static struct area area_make(bool shared, size_t bytes)
{
    struct area a = { NULL, shared };
    if (shared) REQUIRE(tutti_mem_alloc((void **)&a.at, bytes + 2 * EDGE) == TUTTI_OK);
    else a.at = malloc(bytes + 2 * EDGE);
    memset(a.at, 0xa5, bytes + 2 * EDGE);
    return a;
}
static void area_free(struct area *a)
{
    if (a->shared) REQUIRE(tutti_mem_free(a->at) == TUTTI_OK);
    else free(a->at);
}
static tutti_status start(const struct test *t, const struct rank *me, const void *in, void *out, tutti_request *r)
{
    tutti_dtype dtype = types[t->type];
    if (t->collective == ALLREDUCE) return tutti_all_reduce(in, out, t->count, dtype, TUTTI_SUM, me->comm, r);
    if (t->collective == REDUCE) return tutti_reduce(in, out, t->count, dtype, TUTTI_SUM, t->root, me->comm, r);
    return tutti_reduce_scatter(in, out, t->count / (size_t)me->size, dtype, TUTTI_SUM, me->comm, r);
}
static void compare(const struct test *t, const struct rank *me, enum way way, const unsigned char *got)
{
    size_t bytes = bytes_of(types[t->type]), count = t->count, first = 0;
    if (t->collective == REDUCE && me->rank != t->root) return;
    if (t->collective == REDUCE_SCATTER) { count /= (size_t)me->size; first = (size_t)me->rank * count; }
    const unsigned char *wanted = numbers[t->type].sum[me->size] + first * bytes;
    if (memcmp(got, wanted, count * bytes) == 0) return;
    size_t i = 0;
    while (memcmp(got + i * bytes, wanted + i * bytes, bytes) == 0) i++;
    fprintf(stderr, "%s %s of %zu %s on %d ranks: element %zu of rank %d (way %d) is %llx, should be %llx\n",
        collective_name(t->collective), t->algorithm ? t->algorithm : "by default", t->count, name_of(types[t->type]),
        me->size, first + i, me->rank, (int)way, (unsigned long long)code_at(got, i, bytes),
        (unsigned long long)code_at(wanted, i, bytes));
    bool has_the_bits_of_the_reference = false;
    REQUIRE(has_the_bits_of_the_reference);
}
/* Tensors begin `odd` bytes into their area, so they are aligned to their elements' size only. */
static void call(const struct test *t, const struct rank *me, enum way way, bool blocking)
{
    bool in_place = way == IN_PLACE || way == SHARED_IN_PLACE, scatters = t->collective == REDUCE_SCATTER;
    size_t odd = bytes_of(types[t->type]) * (size_t)(1 + (me->rank + t->type) % 4 * 2);
    size_t out = scatters ? t->bytes / (size_t)me->size : t->bytes;
    struct area from = area_make(way >= SHARED, t->bytes), to = from;
    if (!in_place) to = area_make(way >= SHARED, out);
    unsigned char *input = from.at + odd, *output = to.at + odd;
    if (in_place && scatters) output += (size_t)me->rank * out;
    memcpy(input, numbers[t->type].input[me->rank], t->bytes);
    tutti_request r = { .struct_size = sizeof r, .blocking = blocking, .algorithm = t->algorithm };
    bool takes = t->collective != REDUCE || me->rank == t->root;
    tutti_status status = start(t, me, input, takes ? output : NULL, &r);
    if (status == TUTTI_OK && !blocking) status = tutti_wait(&r, 0);
    REQUIRE(status == TUTTI_OK);
    compare(t, me, way, output);
    area_free(&from);
    if (!in_place) area_free(&to);
}

/* ---- all of them ---- */
/* Returns NULL, the default, for 0, then each algorithm that accesses memory of peers, then "". The others may add in
   trees. */
static const char *algorithm_at(enum collective collective, int wanted)
{
    if (wanted == 0) return NULL;
    for (const struct algorithm *a = collectives_table; a->name; a++)
        if (a->collective == collective && a->host_memory && --wanted == 0) return a->name;
    return "";
}
static void mixtures(struct test *t, const struct rank *me)
{
    for (int n = 0; n < MIXTURES; n++) {
        uint64_t all = drawn((uint64_t)t->count * TYPES + (uint64_t)t->type, (uint64_t)(n + 7));
        /* In the last mixture ranks draw different ways. */
        uint64_t own = n < MIXTURES - 1 ? all : drawn(all, (uint64_t)me->rank);
        t->root = (int)(all % (uint64_t)me->size);
        call(t, me, (enum way)(own / 8 % WAYS), own / 64 % 2);
    }
}
static void everything(struct rank *me)
{
    const char *algorithm;
    for (int type = 0; type < TYPES; type++)
        for (int size = 0; size < SIZES; size++)
            for (int f = 0; f < 3; f++)
                for (int a = 0; !(algorithm = algorithm_at(collectives[f], a)) || *algorithm; a++) {
                    size_t parts = collectives[f] == REDUCE_SCATTER ? (size_t)me->size : 1;
                    size_t element = bytes_of(types[type]), count = sizes[size] / element / parts * parts;
                    struct test t = { type, collectives[f], algorithm, count, count * element, 0 };
                    if (count) mixtures(&t, me);
                }
}

/* ---- worlds ---- */
static const struct {
    const char *tile_bytes, *slots, *streaming;
} cuts[] = {
    { NULL, NULL, NULL },
    { "4096", "1", "0" },
    { "4096", "8", "1" },
    { "65536", "2", NULL },
};
static void cut_as(const char *tile_bytes, const char *slots, const char *streaming)
{
    const char *const name[] = { "TUTTI_TILE_BYTES", "TUTTI_SLOTS", "TUTTI_STREAMING" };
    const char *const value[] = { tile_bytes, slots, streaming };
    for (int i = 0; i < 3; i++)
        if (value[i]) setenv(name[i], value[i], 1);
        else unsetenv(name[i]);
    settings_reload();
}
static void test_sums_have_the_same_bits_on_threads(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
        for (int size = 2; size <= MOST; size++) {
            cut_as(cuts[c].tile_bytes, cuts[c].slots, cuts[c].streaming);
            world_threads(size, NULL, everything, NULL);
        }
    cut_as(NULL, NULL, NULL);
}
#ifndef NO_PROCESSES
static void test_sums_have_the_same_bits_on_processes(void **state)
{
    (void)state;
    for (int size = 2; size <= MOST; size++) assert_int_equal(world_processes(size, 100, everything, NULL), 0);
}
#endif
/* The sum of two ranks is the same in either order, so three ranks are the least. */
static void test_the_reverse_order_gives_other_bits(void **state)
{
    (void)state;
    for (int t = 0; t < TYPES; t++)
        for (int size = 3; size <= MOST; size++) {
            size_t bytes = bytes_of(types[t]), count = MOST_BYTES / bytes, others = 0;
            for (size_t i = 0; i < count; i++)
                others += sum_of(types[t], &numbers[t], size, i, true) != code_at(numbers[t].sum[size], i, bytes);
            assert_true(others > count / 20);
        }
}

/* Sets a last-level cache that is smaller than the longer messages, so that their results are written around it. */
static void set_small_cache(void)
{
    struct machine parameters = machine_typical();
    parameters.last = 256 << 10;
    for (int distance = 0; distance < DISTANCES; distance++) machine_store_parameters(distance, &parameters, false);
}

unit_function test_bitwise;
int test_bitwise(void)
{
    set_small_cache();
    const struct CMUnitTest tests[] = {
#ifndef NO_PROCESSES
        cmocka_unit_test(test_sums_have_the_same_bits_on_processes),
#endif
        cmocka_unit_test(test_the_reverse_order_gives_other_bits),
        cmocka_unit_test(test_sums_have_the_same_bits_on_threads),
    };
    return cmocka_run_group_tests(tests, numbers_make, numbers_free);
}
