/* Random messages over each transport whose ranks can be threads. Sizes, peers, names and the order of posting come
   from a seed that all ranks know, so each rank knows which messages must arrive.
   `unit_transports test_storm [BLOCKS [SEED]]` runs BLOCKS blocks of 10,000 messages over each transport. Each block
   has connections and a seed of its own; SEED is the first. */
#include "backend/transports/tcp/tcp.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/contract.h"
#include "tests/unit/transports/ranks_fabric.h"
#ifdef FAKE_VERBS
#include "tests/unit/transports/ranks_verbs.h"
#endif

enum { RANKS = 3, ROUND = 64, NAMES = 4, MOST_BYTES = 300000, MESSAGES = 10000 };
static int blocks = 2;
static uint64_t first_seed = 1, seed;

struct message { int from, to; uint64_t name, id; size_t bytes; };
static uint64_t roll(uint64_t *dice, uint64_t below) { return random_next(dice) % below; }
/* Most messages are small. The sizes of some are around EAGER_BYTES, above which messages are announced, and a few are
   large. */
static size_t roll_bytes(uint64_t *dice)
{
    uint64_t kind = roll(dice, 1000);
    if (kind < 400) return roll(dice, 9);
    if (kind < 750) return roll(dice, 200);
    if (kind < 965) return roll(dice, 5000);
    if (kind < 995) return 65536 - 70 + roll(dice, 140);
    return roll(dice, MOST_BYTES + 1);
}
static void roll_round(uint64_t *dice, uint64_t first, struct message *out)
{
    for (int i = 0; i < ROUND; i++) {
        int from = (int)roll(dice, RANKS), to = (from + 1 + (int)roll(dice, RANKS - 1)) % RANKS;
        out[i] = (struct message){ from, to, roll(dice, NAMES), first + (uint64_t)i, roll_bytes(dice) };
    }
}

/* ---- a rank ---- */
struct part {
    struct message all[ROUND];
    struct transfer transfers[ROUND];
    struct piece pieces[ROUND];
    unsigned char *room[ROUND];
};
static void post(struct rank *me, struct part *p, int i, int *posted)
{
    const struct message *m = &p->all[i];
    struct transfer *x = &p->transfers[*posted];
    struct piece *piece = &p->pieces[(*posted)++];
    if (m->from == me->rank) {
        bytes_fill(p->room[i], m->bytes, m->id);
        rank_send(me, x, m->to, m->name, piece, p->room[i], m->bytes);
    } else {
        p->room[i][m->bytes] = 0xee;
        rank_recv(me, x, m->from, m->name, piece, p->room[i], m->bytes);
    }
}
static int next_one(const struct part *p, int rank, bool sends, int i)
{
    while (i < ROUND && (sends ? p->all[i].from : p->all[i].to) != rank) i++;
    return i;
}
/* Posts this rank's sends in the order of the round, and its receives as well, so that the order of each name is the
   same at both ends. Sends and receives mix at random. Returns the number of transfers. */
static int post_round(struct rank *me, struct part *p, uint64_t *mine)
{
    int posted = 0, send = next_one(p, me->rank, true, 0), receive = next_one(p, me->rank, false, 0);
    uint64_t leaning = roll(mine, 11);
    while (send < ROUND || receive < ROUND) {
        bool sends = receive == ROUND || (send < ROUND && roll(mine, 10) < leaning);
        int *next = sends ? &send : &receive;
        post(me, p, *next, &posted);
        *next = next_one(p, me->rank, sends, *next + 1);
        if (roll(mine, 4) == 0) router_poll(me->router);
    }
    return posted;
}
static void require_round(struct rank *me, const struct part *p, int posted)
{
    for (int i = 0; i < posted; i++) REQUIRE(p->transfers[i].state == TRANSFER_DONE);
    for (int i = 0; i < ROUND; i++) {
        const struct message *m = &p->all[i];
        if (m->to == me->rank) REQUIRE(bytes_are(p->room[i], m->bytes, m->id) && p->room[i][m->bytes] == 0xee);
    }
}
static void storm(struct rank *me)
{
    uint64_t all = seed, mine = seed * 31 + (uint64_t)me->rank;
    struct part *p = calloc(1, sizeof *p);
    for (int i = 0; i < ROUND; i++) p->room[i] = malloc(MOST_BYTES + 1);
    for (uint64_t first = 0; first < MESSAGES; first += ROUND) {
        roll_round(&all, first, p->all);
        int posted = post_round(me, p, &mine);
        rank_await(me, p->transfers, posted);
        require_round(me, p, posted);
    }
    rank_meet(me);
    for (int i = 0; i < ROUND; i++) free(p->room[i]);
    free(p);
}

/* ---- over each ---- */
static void storms(void (*over)(enum waiting))
{
    for (int i = 0; i < blocks; i++) {
        seed = first_seed + (uint64_t)i;
        over(i % 2 ? SLEEPS : POLLS);
    }
}
static void over_inproc(enum waiting waiting)
{
    ranks_inproc(RANKS, (unsigned)seed, waiting == SLEEPS ? SLEEPS_IN_TIME : POLLS, storm);
}
static void test_storm_over_inproc(void **state)
{
    (void)state;
    storms(over_inproc);
}
static void over_shm(enum waiting waiting)
{
    (void)waiting;
    ranks_threads(RANKS, storm);
}
static void test_storm_over_shm(void **state)
{
    (void)state;
    storms(over_shm);
}
static struct fabric *new_sockets(void)
{
    static struct fabric fabrics[RANKS];
    for (int r = 0; r < RANKS; r++) fabrics[r] = (struct fabric)FABRIC(&tcp_operations);
    return fabrics;
}
static void over_tcp(enum waiting waiting) { ranks_fabric_apart(new_sockets(), RANKS, waiting, storm); }
static void test_storm_over_tcp(void **state)
{
    (void)state;
    storms(over_tcp);
}
#ifdef FAKE_VERBS
static void over_verbs(enum waiting waiting) { ranks_verbs_apart(RANKS, waiting, storm); }
static void test_storm_over_verbs(void **state)
{
    (void)state;
    fake.fake_reset();
    storms(over_verbs);
    assert_int_equal(fake.fake_left(), 0);
}
/* Makes the fake provider complete requests late, and lose and duplicate handshake datagrams. */
static void fake_set_worst_faults(void)
{
    const struct fake_faults faults = { .seed = first_seed,
        .delay = 20000,
        .delay_most_us = 200,
        .late = 20000,
        .late_most_us = 200,
        .drop = 300000,
        .duplicate = 300000 };
    fake.fake_reset();
    fake.fake_set_faults(&faults);
}
static void test_storm_over_verbs_with_faults(void **state)
{
    (void)state;
    fake_set_worst_faults();
    storms(over_verbs);
    assert_int_equal(fake.fake_left(), 0);
}
/* Messages by TCP overtake those that are late by verbs. */
static void over_both(enum waiting waiting)
{
    ranks_fabric_apart_beside(new_sockets(), verbs_fabrics, RANKS, waiting, storm);
}
static void test_storm_over_tcp_beside_verbs(void **state)
{
    (void)state;
    fake_set_worst_faults();
    storms(over_both);
    assert_int_equal(fake.fake_left(), 0);
}
#endif
unit_function test_storm;
int test_storm(void)
{
    int count = unit_arguments.count;
    char **words = unit_arguments.words;
    if (count > 1) blocks = atoi(words[1]);
    if (count > 2) first_seed = strtoull(words[2], NULL, 10);
    printf("%d messages between %d ranks over each, seeds from %llu on\n", blocks * MESSAGES, RANKS,
        (unsigned long long)first_seed);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_storm_over_inproc),
        cmocka_unit_test(test_storm_over_shm),
        cmocka_unit_test(test_storm_over_tcp),
#ifdef FAKE_VERBS
        cmocka_unit_test(test_storm_over_verbs),
        cmocka_unit_test(test_storm_over_verbs_with_faults),
        cmocka_unit_test(test_storm_over_tcp_beside_verbs),
#endif
    };
#ifdef FAKE_VERBS
    if (!ranks_verbs_open()) return 1;
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
