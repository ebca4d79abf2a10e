/* Packed slices with an invalid place or an impossible length are an error that names the rank that sent them. */
#include "backend/base/status.h"
#include "tests/support/unit.h"
#include "tests/support/world.h"
#include "zero/compressed_exchange.h"

enum { RANKS = 3, COUNT = 2000, BAD = 1 };
/* Rank BAD changes this: the length or a place of its slices (THERE) or of its average (BACK), or nothing (CHANGES). */
enum change { LENGTH_THERE, PLACES_THERE, LENGTH_BACK, PLACES_BACK, CHANGES };
static const tutti_compression forms[] = {
    { .form = TUTTI_COMPRESS_TOPK, .kept = 50 },
    { .form = TUTTI_COMPRESS_THRESHOLD, .kept = 50, .threshold = 0.5 },
};
struct plan { tutti_compression how; enum change change; };

/* Sets the last place of the packed data, which is at the end, beyond all elements. */
static void spoil(char *packed, size_t bytes) { memset(packed + bytes - 4, 0xff, 4); }
static size_t length_of(const struct packed_slices *p, const struct compressed_exchange *x, int side, size_t room)
{
    return exchange_sends_lengths(x) ? p->out_bytes[side] : room;
}
static tutti_status send_slices(struct packed_slices *p, const struct compressed_exchange *x, struct numbers n,
    enum change spoilt)
{
    tutti_request request = { .struct_size = sizeof request, .blocking = true };
    for (int side = 0; side < x->sides; side++) {
        packed_write_slice(p, x, side, n, (struct packing_state){ NULL, NULL });
        if (spoilt == PLACES_THERE)
            spoil(p->out + p->slice_bytes * (size_t)side, length_of(p, x, side, 50 * COUNT / 1024 * 8));
        if (spoilt == LENGTH_THERE && side == 0) p->out_bytes[side] = p->slice_bytes + 1;
    }
    if (exchange_sends_lengths(x)) TRY(packed_send_lengths(p, x, &request));
    request = (tutti_request){ .struct_size = sizeof request, .blocking = true };
    return packed_send_slices(p, x, &request);
}
static tutti_status send_average(struct packed_slices *p, const struct compressed_exchange *x, struct numbers n,
    enum change spoilt)
{
    packed_write_average(p, x, n, NULL);
    if (spoilt == PLACES_BACK) spoil(p->out, length_of(p, x, x->side, 150 * COUNT / 1024 * 8));
    if (spoilt == LENGTH_BACK) p->out_bytes[x->side] = p->average_bytes + 1;
    TRY(packed_send_average(p, x));
    for (int side = 0; side < x->sides; side++) TRY(packed_read_average(p, x, side, n));
    return TUTTI_OK;
}
static void receive_invalid_slices(struct rank *me)
{
    const struct plan *plan = me->context;
    static float data[RANKS][COUNT];
    enum change spoilt = me->rank == BAD ? plan->change : CHANGES;
    struct numbers n = { data[me->rank], COUNT, 0, TUTTI_FLOAT32, 1 };
    struct packed_slices p = { 0 };
    struct compressed_exchange x;
    for (int i = 0; i < COUNT; i++) data[me->rank][i] = (float)((i * 7919 + me->rank) % 1000) / 500;
    REQUIRE(exchange_init(&x, &plan->how, me->comm) == TUTTI_OK && !x.host_comm);
    REQUIRE(packed_resize(&p, &x, COUNT) == TUTTI_OK);
    tutti_status status = send_slices(&p, &x, n, spoilt);
    if (status == TUTTI_OK) status = packed_average_slices(&p, &x, n);
    if (status == TUTTI_OK) status = send_average(&p, &x, n, spoilt);
    REQUIRE(status == TUTTI_INTERNAL || status == TUTTI_ABORTED);
    bool found = strstr(tutti_get_last_error(), "the packed gradients of rank 1 are invalid") != NULL;
    REQUIRE(found == (status == TUTTI_INTERNAL));
    REQUIRE(status == TUTTI_INTERNAL || plan->change == LENGTH_THERE || plan->change == PLACES_THERE);
    REQUIRE(me->rank != 0 || found);
    exchange_abort_comms(&x);
    exchange_finish(&x);
    packed_finish(&p);
}
static void test_sender_of_invalid_slices_is_named(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++)
        for (enum change change = LENGTH_THERE; change < CHANGES; change++) {
            struct plan plan = { forms[f], change };
            /* The first form sends no lengths. */
            if (f == 0 && (change == LENGTH_THERE || change == LENGTH_BACK)) continue;
            world_threads(RANKS, NULL, receive_invalid_slices, &plan);
        }
}
unit_function test_exchange;
int test_exchange(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_sender_of_invalid_slices_is_named) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
