/* A storm of random requests: two ends, each with a thread, and several connections between them. The requests are
   reads and writes with immediate, of all sizes, some of them signalled, while requests and completions are delayed.
   The threads check every byte and every order. The program prints the seed. Its first argument is a seed to repeat,
   its second the number of requests. */
#include "tests/support/unit.h"
#include "tests/verbs/ends.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

enum { PAIRS = 4, RING = 32, SLOT = 2048, SIGNAL_EVERY = 8 };
/* The memory of an end: slots from which it writes and into which it reads, slots that the peer writes, and bytes that
   never change, which the peer reads. */
enum { SOURCES = 0, TARGETS = PAIRS * RING * SLOT, CONSTANT = 2 * TARGETS, CONSTANT_BYTES = 1 << 16 };
enum { WORKS = 2 * RING };
_Static_assert(CONSTANT + CONSTANT_BYTES <= END_BYTES, "it fits");

/* One end of a connection. */
struct lane {
    struct ibv_qp *qp;
    /* The number of requests that this end has posted, and of those that completions have shown to be over. */
    uint64_t begun, over;
    /* The number of posted writes, which are messages to the peer. */
    uint64_t messages;
    /* The number of messages that have arrived from the peer; the peer reads it as `checked`. */
    uint64_t heard;
    atomic_ullong checked;
    /* The latest requests: request n is at n % RING. */
    struct { bool is_read; uint32_t bytes, offset; } under_way[RING];
};
/* One end, with its thread. */
struct side {
    struct end *mine, *its;
    struct side *peer;
    struct lane lanes[PAIRS];
    /* The state of the random numbers, the number of requests to post, and that of messages received. */
    uint64_t random, wanted, received;
    /* The text of the first error, or NULL. */
    const char *wrong;
};

static uint64_t requests = 1000000, seed;

static uint32_t draw(struct side *s, uint32_t below)
{
    s->random = s->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((s->random >> 33) % below);
}
/* Returns the byte at index i of the bytes that never change. */
static unsigned char constant(size_t i) { return (unsigned char)(i * 31 + i / 251); }
/* Fills the bytes of a message with a value that follows from its number and length. */
static void paint(unsigned char *at, uint64_t message, uint32_t bytes)
{
    memset(at, (int)(message * 13 + bytes), bytes);
}
static bool is_painted(const unsigned char *at, uint64_t message, uint32_t bytes)
{
    unsigned char expected[SLOT];
    paint(expected, message, bytes);
    return !memcmp(at, expected, bytes);
}
/* Returns the offset of slot n of a connection in an area of the memory. */
static size_t slot(int area, int pair, uint64_t n)
{
    return (size_t)area + (size_t)(pair * RING + (int)(n % RING)) * SLOT;
}

/* Posts a random read. Returns false if it is refused. */
static bool read_begin(struct side *s, int pair)
{
    struct lane *l = &s->lanes[pair];
    uint32_t bytes = draw(s, SLOT) + 1, offset = draw(s, CONSTANT_BYTES - SLOT);
    struct ibv_sge sge = sge_of(s->mine, slot(SOURCES, pair, l->begun), bytes);
    struct ibv_send_wr wr = request(l->begun, IBV_WR_RDMA_READ, &sge, s->its, CONSTANT + offset);
    l->under_way[l->begun % RING].is_read = true;
    l->under_way[l->begun % RING].bytes = bytes;
    l->under_way[l->begun++ % RING].offset = offset;
    return !post(l->qp, &wr);
}
/* Posts a write of a random message into the peer's next slot, or nothing if the peer has not checked the message there
   yet. Returns false if the write is refused. */
static bool message_begin(struct side *s, int pair)
{
    struct lane *l = &s->lanes[pair];
    if (l->messages - atomic_load(&s->peer->lanes[pair].checked) == RING) return true;
    uint32_t bytes = draw(s, 2) ? draw(s, 65) : draw(s, SLOT + 1);
    size_t from = slot(SOURCES, pair, l->begun);
    struct ibv_sge sge = sge_of(s->mine, from, bytes);
    struct ibv_send_wr wr =
        request(l->begun, IBV_WR_RDMA_WRITE_WITH_IMM, &sge, s->its, slot(TARGETS, pair, l->messages));
    paint(s->mine->memory + from, l->messages, bytes);
    wr.imm_data = (uint32_t)l->messages++;
    wr.send_flags = l->begun % SIGNAL_EVERY ? 0 : IBV_SEND_SIGNALED;
    if (bytes <= 64) wr.send_flags |= IBV_SEND_INLINE;
    l->under_way[l->begun++ % RING].is_read = false;
    return !post(l->qp, &wr);
}
/* Checks a completion of this end's request. Returns the error, or NULL. */
static const char *request_over(struct side *s, int pair, const struct ibv_wc *wc)
{
    struct lane *l = &s->lanes[pair];
    if (wc->wr_id < l->over || wc->wr_id >= l->begun) return "requests end in another order";
    bool is_read = l->under_way[wc->wr_id % RING].is_read;
    if (is_read != (wc->opcode == IBV_WC_RDMA_READ)) return "a completion of another kind";
    for (uint32_t i = 0; is_read && i < l->under_way[wc->wr_id % RING].bytes; i++)
        if (s->mine->memory[slot(SOURCES, pair, wc->wr_id) + i] != constant(l->under_way[wc->wr_id % RING].offset + i))
            return "bytes that were read";
    l->over = wc->wr_id + 1;
    return NULL;
}
/* Checks a message of the peer, and posts its receive again. Returns the error, or NULL. */
static const char *message_heard(struct side *s, int pair, const struct ibv_wc *wc)
{
    struct lane *l = &s->lanes[pair];
    if (wc->imm_data != (uint32_t)l->heard) return "messages come in another order";
    if (!is_painted(s->mine->memory + slot(TARGETS, pair, l->heard), l->heard, wc->byte_len))
        return "bytes of a message";
    if (post_receive(l->qp, 0, NULL)) return "no room for a receive";
    atomic_store(&l->checked, ++l->heard);
    s->received++;
    return NULL;
}
static void side_poll(struct side *s)
{
    struct ibv_wc wcs[16];
    int found = ibv_poll_cq(s->mine->cq, 16, wcs);
    for (int i = 0; i < found && !s->wrong; i++) {
        int pair = 0;
        while (s->lanes[pair].qp->qp_num != wcs[i].qp_num) pair++;
        if (wcs[i].status != IBV_WC_SUCCESS) s->wrong = ibv_wc_status_str(wcs[i].status);
        else s->wrong = wcs[i].opcode & IBV_WC_RECV ? message_heard(s, pair, &wcs[i]) : request_over(s, pair, &wcs[i]);
    }
    if (!found) sched_yield();
}
/* Returns the number of requests that the end has posted. */
static uint64_t sent(const struct side *s)
{
    uint64_t all = 0;
    for (int pair = 0; pair < PAIRS; pair++) all += s->lanes[pair].begun;
    return all;
}
/* Returns true if on each connection the last request is over whose number SIGNAL_EVERY divides: it is signalled. */
static bool is_over(const struct side *s)
{
    for (int pair = 0; pair < PAIRS; pair++)
        if (s->lanes[pair].begun && (s->lanes[pair].begun - 1) / SIGNAL_EVERY * SIGNAL_EVERY >= s->lanes[pair].over)
            return false;
    return true;
}
/* The number of threads whose requests are all over, and whether a thread has found an error. */
static atomic_int done, failed;
/* The main function of an end's thread. It goes on until both ends are done, to check the peer's messages. */
static void *side_run(void *argument)
{
    struct side *s = argument;
    bool is_done = false;
    while (atomic_load(&done) < 2 && !atomic_load(&failed)) {
        int pair = (int)draw(s, PAIRS);
        struct lane *l = &s->lanes[pair];
        bool may = sent(s) < s->wanted && l->begun - l->over < RING;
        if (may && !(draw(s, 4) ? message_begin(s, pair) : read_begin(s, pair))) s->wrong = "a request is refused";
        side_poll(s);
        if (s->wrong) atomic_store(&failed, 1);
        if (!is_done && sent(s) >= s->wanted && is_over(s)) {
            is_done = true;
            atomic_fetch_add(&done, 1);
        }
    }
    return NULL;
}
static void side_init(struct side *s, struct side *peer, struct end *mine, struct end *its)
{
    *s = (struct side){
        .mine = mine, .its = its, .peer = peer, .wanted = requests / 2, .random = seed * 2 + (mine < its)
    };
    for (int pair = 0; pair < PAIRS; pair++) s->lanes[pair].qp = end_pair(mine, IBV_QPT_RC, WORKS);
    for (size_t i = 0; i < CONSTANT_BYTES; i++) mine->memory[CONSTANT + i] = constant(i);
}
/* Runs both threads with these faults. Returns the time in seconds. */
static double storm(const struct fake_faults *faults)
{
    struct end e[2];
    struct side sides[2];
    struct timespec from, to;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) end_init(&e[i], i, IBV_QPT_RC, WORKS);
    for (int i = 0; i < 2; i++) side_init(&sides[i], &sides[1 - i], &e[i], &e[1 - i]);
    for (int pair = 0; pair < PAIRS; pair++) {
        pairs_connect(sides[0].lanes[pair].qp, 0, sides[1].lanes[pair].qp, 1);
        for (int n = 0; n < RING; n++)
            for (int i = 0; i < 2; i++) assert_int_equal(post_receive(sides[i].lanes[pair].qp, 0, NULL), 0);
    }
    fake_set_faults(faults);
    atomic_store(&done, 0);
    clock_gettime(CLOCK_MONOTONIC, &from);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, side_run, &sides[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    clock_gettime(CLOCK_MONOTONIC, &to);
    for (int i = 0; i < 2; i++) {
        if (sides[i].wrong) fail_msg("seed %llu: %s", (unsigned long long)seed, sides[i].wrong);
        assert_true(sides[i].received > 0);
        for (int pair = 0; pair < PAIRS; pair++) ibv_destroy_qp(sides[i].lanes[pair].qp);
    }
    ends_finish(e);
    return (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
}
static void test_random_requests_keep_bytes_and_order(void **state)
{
    (void)state;
    fake_reset();
    double seconds = storm(&(struct fake_faults){
        .seed = seed, .delay = 2000, .delay_most_us = 50, .late = 10000, .late_most_us = 100 });
    printf("%llu requests and %llu completions in %.1f s\n", (unsigned long long)fake_count(FAKE_REQUESTS),
        (unsigned long long)fake_count(FAKE_COMPLETIONS), seconds);
    assert_true(fake_count(FAKE_REQUESTS) >= requests / 2 * 2);
}

unit_function test_fake_storm;
int test_fake_storm(void)
{
    int count = unit_arguments.count;
    char **arguments = unit_arguments.words;
#ifdef FEW
    requests /= 10;
#endif
    seed = count > 1 ? strtoull(arguments[1], NULL, 0) : (uint64_t)time(NULL);
    if (count > 2) requests = strtoull(arguments[2], NULL, 0);
    printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_random_requests_keep_bytes_and_order) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
