/* Compares random traffic between three ranks, for all of which this thread acts, with a model that consists of
   counters. The k-th send of a name from s to d must meet the k-th of d's receives of that name that s answers, in the
   order of posting. When traffic has come to rest, no posted receive may be left that a send could answer. The test
   prints its seeds; an argument replaces them by one seed. */
#include "backend/transports/shm/pair.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/ranks.h"

enum { RANKS = 3, NAMES = 12, ANY_NAMES = 4, OPERATIONS = 10000, MAX_MESSAGES = 30000, QUIET = 200 };
struct message {
    struct transfer x;
    struct piece pieces[3];
    unsigned char *data;
    size_t bytes;
    int rank, name;
};
struct model {
    unsigned long random;
    struct router *routers[RANKS];
    int send_count, receive_count;
    struct message sends[MAX_MESSAGES], receives[MAX_MESSAGES];
    /* [from][to][name]: sends, and receives that they have answered. */
    int sent[RANKS][RANKS][NAMES];
    int answered[RANKS][RANKS][NAMES];
    /* [to][from][name]: receives that name their sender. */
    int asked[RANKS][RANKS][NAMES];
};
static struct model m;
static unsigned long given_seed;

static unsigned draw(unsigned below)
{
    m.random = m.random * 6364136223846793005ul + 1442695040888963407ul;
    return (unsigned)(m.random >> 33) % below;
}
static bool takes_any(int name) { return name >= NAMES - ANY_NAMES; }
static uint64_t identity(int from, int to, int name, int k)
{
    return ((uint64_t)k * NAMES + (uint64_t)name) * RANKS * RANKS + (uint64_t)(from * RANKS + to);
}
static size_t bytes_of(int from, int to, int name, int k)
{
    static const size_t usual[] = { 0, 1, 8, 40, 41, 300, 700, 4096 }, large[] = { 4097, 20000, 65536, 70000, 300000 };
    if (takes_any(name)) return name == NAMES - 1 ? 9000 : usual[name % 8];
    uint64_t mixed = identity(from, to, name, k) * 0x9e3779b97f4a7c15u >> 40;
    return mixed % 12 == 0 ? large[mixed / 12 % 5] : usual[mixed % 8];
}
/* Cuts a message into three pieces of random lengths, some of them empty. */
static void message_cut(struct message *message)
{
    size_t first = draw((unsigned)message->bytes + 1), second = draw((unsigned)(message->bytes - first) + 1);
    size_t lengths[3] = { first, second, message->bytes - first - second };
    unsigned char *at = message->data;
    for (int i = 0; i < 3; at += lengths[i++]) message->pieces[i] = (struct piece){ at, lengths[i], lengths[i] };
}
static void post(struct message *message, int peer, bool is_send, size_t bytes)
{
    message->bytes = bytes;
    message_cut(message);
    message->x = (struct transfer){ .name = { (uint64_t)message->name / 5, (uint64_t)message->name % 5 << 40 },
        .peer = peer,
        .is_send = is_send,
        .pieces = message->pieces,
        .piece_count = 3 };
    router_post(m.routers[message->rank], &message->x);
}
static void send_one(int from, int to, int name)
{
    assert_true(m.send_count < MAX_MESSAGES);
    struct message *message = &m.sends[m.send_count++];
    int k = m.sent[from][to][name]++;
    size_t bytes = bytes_of(from, to, name, k);
    *message = (struct message){ .rank = from, .name = name, .data = malloc(bytes + 1) };
    bytes_fill(message->data, bytes, identity(from, to, name, k));
    post(message, to, true, bytes);
}
static void receive_one(int to, int from, int name, bool wrong)
{
    assert_true(m.receive_count < MAX_MESSAGES);
    struct message *message = &m.receives[m.receive_count++];
    int k = from == TRANSFER_ANY_PEER ? 0 : m.asked[to][from][name]++;
    size_t bytes = bytes_of(from, to, name, k) + wrong;
    *message = (struct message){ .rank = to, .name = name, .data = malloc(bytes + 1) };
    post(message, from, false, bytes);
}
static void act(void)
{
    int a = (int)draw(RANKS), b = (int)draw(RANKS), name = (int)draw(NAMES);
    unsigned what = draw(10);
    if (what < 4) send_one(a, b, name);
    else if (what < 8) {
        bool any = takes_any(name) && draw(2);
        receive_one(a, any ? TRANSFER_ANY_PEER : b, name, !takes_any(name) && draw(30) == 0);
    } else
        for (unsigned n = draw(12); n > 0; n--) router_poll(m.routers[draw(RANKS)]);
}
/* Polls until QUIET rounds have passed without progress, longer than inproc delays a message. */
static void poll_until_quiet(void)
{
    for (int quiet = 0; quiet < QUIET; quiet++)
        for (int r = 0; r < RANKS; r++)
            if (router_poll(m.routers[r])) quiet = 0;
}

/* ---- what must hold ---- */
static const struct message *nth_send(int from, int to, int name, int k)
{
    for (int i = 0; i < m.send_count; i++)
        if (m.sends[i].rank == from && m.sends[i].x.peer == to && m.sends[i].name == name && k-- == 0)
            return &m.sends[i];
    return NULL;
}
static void check_pair(const struct message *receive, int k)
{
    int from = receive->x.source;
    const struct message *send = nth_send(from, receive->rank, receive->name, k);
    assert_non_null(send);
    if (receive->bytes == send->bytes) {
        assert_int_equal(receive->x.state, TRANSFER_DONE);
        assert_int_equal(send->x.state, TRANSFER_DONE);
        assert_true(bytes_are(receive->data, receive->bytes, identity(from, receive->rank, receive->name, k)));
        return;
    }
    assert_int_equal(receive->x.state, TRANSFER_FAILED);
    assert_int_equal(receive->x.status, TUTTI_MISMATCH);
    assert_int_equal(receive->x.peer_bytes, send->bytes);
    assert_int_not_equal(send->x.state, TRANSFER_POSTED);
    if (send->x.state == TRANSFER_DONE) assert_true(send->bytes <= EAGER_LIMIT);
    else assert_int_equal(send->x.peer_bytes, receive->bytes);
}
static void count_answers(bool check)
{
    memset(m.answered, 0, sizeof m.answered);
    for (int i = 0; i < m.receive_count; i++) {
        const struct message *receive = &m.receives[i];
        if (receive->x.state == TRANSFER_POSTED) continue;
        int *k = &m.answered[receive->x.source][receive->rank][receive->name];
        if (check) check_pair(receive, *k);
        ++*k;
    }
}
static bool could_be_answered(const struct message *receive)
{
    for (int s = 0; s < RANKS; s++)
        if ((receive->x.peer == s || receive->x.peer == TRANSFER_ANY_PEER)
            && m.sent[s][receive->rank][receive->name] > m.answered[s][receive->rank][receive->name])
            return true;
    return false;
}
static void check_nothing_is_stuck(void)
{
    count_answers(false);
    for (int i = 0; i < m.receive_count; i++)
        if (m.receives[i].x.state == TRANSFER_POSTED) assert_false(could_be_answered(&m.receives[i]));
}
/* Posts the other end of each open transfer. false: some were open, so the caller repeats it, because a receive from
   any peer may take a message that was posted for another receive. */
static bool balance(void)
{
    bool balanced = true;
    int posted = m.receive_count;
    for (int i = 0; i < posted; i++) {
        const struct message *receive = &m.receives[i];
        if (receive->x.state != TRANSFER_POSTED) continue;
        send_one(receive->x.peer < 0 ? 0 : receive->x.peer, receive->rank, receive->name);
        balanced = false;
    }
    if (!balanced) return false;
    for (int s = 0; s < RANKS; s++)
        for (int d = 0; d < RANKS; d++)
            for (int name = 0; name < NAMES; name++)
                for (int n = m.sent[s][d][name] - m.answered[s][d][name]; n > 0; n--, balanced = false)
                    receive_one(d, s, name, false);
    return balanced;
}
static void run(unsigned long seed)
{
    print_message("seed %lu\n", seed);
    m.random = seed;
    m.send_count = m.receive_count = 0;
    memset(m.sent, 0, sizeof m.sent);
    memset(m.asked, 0, sizeof m.asked);
    for (int i = 0; i < OPERATIONS; i++) {
        act();
        if (i % 1000 != 999) continue;
        poll_until_quiet();
        check_nothing_is_stuck();
    }
    do {
        poll_until_quiet();
        check_nothing_is_stuck();
    } while (!balance());
    count_answers(true);
    for (int i = 0; i < m.send_count; i++) free(m.sends[i].data);
    for (int i = 0; i < m.receive_count; i++) free(m.receives[i].data);
}

/* ---- over each transport, and over both ---- */
static void over_shm(unsigned long seed)
{
    struct table table;
    table_open(&table, RANKS, -1);
    memcpy(m.routers, table.routers, sizeof m.routers);
    run(seed);
    table_close(&table);
}
/* Rank r is on host host_of[r]. A rank that is alone on its host uses shm only for messages to itself. */
static void over_hosts(unsigned long seed, const int *host_of)
{
    struct mixed mixed;
    struct inproc_options options = { .seed = (unsigned)seed, .delay = (int)(seed % 3) * 20, .budget = 6 };
    mixed_open(&mixed, RANKS, host_of, &options);
    memcpy(m.routers, mixed.routers, sizeof m.routers);
    run(seed);
    mixed_close(&mixed);
}
static void test_traffic_over_shm_meets_the_model(void **state)
{
    (void)state;
    for (unsigned long seed = 1; seed <= 3; seed++) over_shm(given_seed ? given_seed : seed);
}
static void test_traffic_over_inproc_meets_the_model(void **state)
{
    (void)state;
    for (unsigned long seed = 1; seed <= 3; seed++) over_hosts(given_seed ? given_seed : seed, (int[]){ 0, 1, 2 });
}
static void test_traffic_over_shm_and_inproc_meets_the_model(void **state)
{
    (void)state;
    for (unsigned long seed = 1; seed <= 3; seed++) {
        over_hosts(given_seed ? given_seed : seed, (int[]){ 0, 0, 1 });
        over_hosts(given_seed ? given_seed : seed, (int[]){ 0, 1, 0 });
    }
}
unit_function test_model;
int test_model(void)
{
    int argc = unit_arguments.count;
    char **argv = unit_arguments.words;
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_traffic_over_shm_meets_the_model),
        cmocka_unit_test(test_traffic_over_inproc_meets_the_model),
        cmocka_unit_test(test_traffic_over_shm_and_inproc_meets_the_model) };
    given_seed = argc > 1 ? strtoul(argv[1], NULL, 10) : 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
