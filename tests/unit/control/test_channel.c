/* Control channels: in order, between processes and between threads of one; what is not taken at once is kept, and has
   a bound; what comes early is delivered later; what the dead have said comes before their end; a child starts anew. */
#include "backend/base/clock.h"
#include "backend/control/channel.h"
#include "backend/processes/registry.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <signal.h>
#include <sys/wait.h>

enum { MANY = 5000, WORDS = 4, END = -1 };
static const unsigned char token[16] = "one token";
struct body { int from, word, value; };
struct eager_ring {                                            /* what one rank has received */
    _Atomic int count, ticks, lost;
    struct body first, last[WORDS];
    _Atomic bool ended;
    bool ordered, slow;
    pthread_t thread;
};
static void ring_receive(void *context, int from, const void *bytes, size_t length)
{
    struct eager_ring *box = context;
    struct body body;
    REQUIRE(length == sizeof body && !atomic_load(&box->lost));
    memcpy(&body, bytes, sizeof body);
    REQUIRE(body.from == from);
    if (box->slow) sleep_ms(50);
    if (!atomic_load(&box->count)) box->first = body, box->ordered = true;
    if (body.value != END && body.value < box->last[body.word].value) box->ordered = false;
    box->last[body.word] = body;
    box->thread = pthread_self();
    if (body.value == END) atomic_store(&box->ended, true);
    atomic_fetch_add(&box->count, 1);
}
static void ring_count_tick(void *context) { atomic_fetch_add(&((struct eager_ring *)context)->ticks, 1); }
static struct channel *open_channel(const unsigned char name[16], int me, struct peer *const *peers,
    struct eager_ring *box)
{
    struct channel *c;
    REQUIRE(channel_open(name, me, peers, size < 2 ? 2 : size, NULL,
                &(struct channel_user){ ring_receive, ring_count_tick, box }, &c)
        == TUTTI_OK);
    return c;
}
static bool channel_post_value(struct channel *c, int from, int to, int word, int value)
{
    struct body body = { from, word, value };
    return channel_send(c, to, (unsigned)word, &body, sizeof body);
}
static void await_count(const _Atomic int *count, int least)
{
    for (int64_t until = clock_ms() + JOIN_MS; atomic_load(count) < least; sleep_ms(1)) REQUIRE(clock_ms() < until);
}
static void await_end(const struct eager_ring *box)
{
    for (int64_t until = clock_ms() + JOIN_MS; !atomic_load(&box->ended); sleep_ms(1)) REQUIRE(clock_ms() < until);
}
static void channel_finish(struct channel *c, struct peer *peer)
{
    channel_close(c);
    peer_release(peer);
    peers_release();
}

/* ---- order ---- */
static void post_many(struct channel *c, int from, int to)
{
    for (int i = 0; i < MANY; i++) REQUIRE(channel_post_value(c, from, to, i % 3, i));
    REQUIRE(channel_post_value(c, from, to, 3, END));
}
static void expect_many(const struct eager_ring *box, int from)
{
    await_end(box);
    REQUIRE(box->ordered && box->first.from == from && !pthread_equal(box->thread, pthread_self()));
    for (int word = 0; word < 3; word++) REQUIRE(box->last[word].value >= MANY - 3);
}
static void order_of_processes(void)
{
    struct peer *peers[2] = { NULL };
    struct eager_ring box = { 0 };
    world_join();
    REQUIRE(world_call(1 - rank, &peers[1 - rank]) == TUTTI_OK);
    struct channel *c = open_channel(token, rank, peers, &box);
    post_many(c, rank, 1 - rank);
    expect_many(&box, 1 - rank);
    world_barrier(2);
    channel_finish(c, peers[1 - rank]);
}
static void order_of_threads(void)
{
    struct peer *nobody[2] = { NULL };
    struct eager_ring box[2] = { 0 };
    struct channel *c[2];
    world_join();
    for (int r = 0; r < 2; r++) c[r] = open_channel(token, r, nobody, &box[r]);
    for (int r = 0; r < 2; r++) post_many(c[r], r, 1 - r);
    for (int r = 0; r < 2; r++) expect_many(&box[r], 1 - r);
    channel_close(c[0]);
    channel_finish(c[1], NULL);
}
static void test_messages_keep_their_order(void **state)
{
    (void)state;
    world_run(2, order_of_processes, 0);
    world_run(1, order_of_threads, 0);
}

/* ---- a peer that does not read ---- */
static void one_is_stopped(void)
{
    struct peer *peers[2] = { NULL };
    struct eager_ring box = { 0 };
    world_join();
    REQUIRE(world_call(1 - rank, &peers[1 - rank]) == TUTTI_OK);
    struct channel *c = open_channel(token, rank, peers, &box);
    world_barrier(2);
    if (rank == 0) {
        pid_t other = (pid_t)world->identity[1].pid;
        int stopped = kill(other, SIGSTOP);
        post_many(c, 0, 1);
        peers_abort_join(token);                           /* said once, and its socket is full */
        pthread_mutex_lock(&registry.lock);
        int kept = peers[1]->unsent.count;
        pthread_mutex_unlock(&registry.lock);
        REQUIRE(kill(other, SIGCONT) == 0 && !stopped);
        REQUIRE(kept > 0 && kept <= WORDS);
    } else {
        struct identity by;
        expect_many(&box, 0);
        for (int64_t until = clock_ms() + JOIN_MS; !peers_join_is_aborted(token, &by); sleep_ms(1))
            REQUIRE(clock_ms() < until);
    }
    world_barrier(2);
    channel_finish(c, peers[1 - rank]);
}
static void test_what_a_stopped_peer_is_owed_has_a_bound(void **state)
{
    (void)state;
    world_run(2, one_is_stopped, 0);
}
/* It leaves at once: what it has said still arrives, and before its end. */
static void ring_count_loss(void *context) { atomic_fetch_add(&((struct eager_ring *)context)->lost, 1); }
static void one_says_something_and_goes(void)
{
    struct peer *peers[2] = { NULL };
    struct eager_ring box = { 0 };
    world_join();
    REQUIRE(world_call(1 - rank, &peers[1 - rank]) == TUTTI_OK);
    struct channel *c = open_channel(token, rank, peers, &box);
    struct peer_watch watch = { .peer = peers[1 - rank], .lost = ring_count_loss, .context = &box };
    world_barrier(2);
    if (rank == 1) {
        post_many(c, 1, 0);
        raise(SIGKILL);
    }
    peer_watch(&watch);
    await_count(&box.lost, 1);                                /* and `receive` was not called later */
    REQUIRE(atomic_load(&box.count) > 0 && box.ordered);
    peer_unwatch(&watch);
    REQUIRE(!channel_post_value(c, 0, 1, 0, 0));
    channel_finish(c, peers[1]);
}
static void test_what_the_dead_have_said_comes_before_their_end(void **state)
{
    (void)state;
    world_run(2, one_says_something_and_goes, 2);
}

/* ---- nobody is there ---- */
static void early_and_late(void)
{
    struct peer *peers[2] = { NULL };
    struct eager_ring box = { 0 };
    world_join();
    REQUIRE(world_call(1 - rank, &peers[1 - rank]) == TUTTI_OK);
    struct channel *c = rank == 0 ? open_channel(token, 0, peers, &box) : NULL;
    if (rank == 0)
        for (int value = 1; value <= 3; value++) REQUIRE(channel_post_value(c, 0, 1, value, value));
    world_barrier(2);
    if (rank == 1) {
        sleep_ms(20);                                   /* most have come by now, and all come in order */
        c = open_channel(token, 1, peers, &box);
        await_count(&box.count, 3);
        REQUIRE(box.first.value == 1 && box.ordered && box.last[3].value == 3);
        channel_close(c);
    }
    world_barrier(2);
    if (rank == 0) REQUIRE(channel_post_value(c, 0, 1, 1, 4)); /* it has closed: this goes nowhere, and nowhere else */
    world_barrier(2);
    if (rank == 1) {
        c = open_channel((const unsigned char *)"another token..", 1, peers, &box);
        REQUIRE(channel_post_value(c, 1, 1, 0, END));                 /* to itself, behind what may have come */
        await_end(&box);
        REQUIRE(atomic_load(&box.count) == 4 && box.last[1].value == 1);
    }
    world_barrier(2);
    channel_finish(c, peers[1 - rank]);
}
static void test_what_comes_early_is_kept_and_what_comes_late_is_not(void **state)
{
    (void)state;
    world_run(2, early_and_late, 0);
}
/* For communicators that never come: the last are kept, the others go. */
static void for_nobody(void)
{
    struct peer *nobody[2] = { NULL };
    struct eager_ring box = { 0 };
    unsigned char other[16] = { 0 };
    world_join();
    for (int i = 0; i < 300; i++) {
        memcpy(other, &i, sizeof i);
        struct channel *c = open_channel(other, 0, nobody, &box);
        REQUIRE(channel_post_value(c, 0, 1, 1, i));
        REQUIRE(channel_post_value(c, 0, 0, 0, END));
        await_end(&box);
        atomic_store(&box.ended, false);
        channel_close(c);
    }
    box = (struct eager_ring){ 0 };
    struct channel *old = open_channel(memset(other, 0, sizeof other), 1, nobody, &box);
    struct channel *new = open_channel(memcpy(other, &(int){ 299 }, sizeof(int)), 1, nobody, &box);
    await_count(&box.count, 1);
    REQUIRE(box.first.value == 299);
    channel_close(old);
    channel_finish(new, NULL);
}
static void test_what_is_kept_for_nobody_has_a_bound(void **state)
{
    (void)state;
    world_run(1, for_nobody, 0);
}

/* ---- the thread that calls ---- */
static void time_passes(void)
{
    struct peer *nobody[1] = { NULL };
    struct eager_ring box[2] = { 0 };
    world_join();
    struct channel *quiet = open_channel(token, 0, nobody, &box[0]);
    struct channel *c = open_channel(token, 1, nobody, &box[1]);
    channel_set_tick(c, true);
    await_count(&box[1].ticks, 5);
    channel_set_tick(c, false);
    REQUIRE(!atomic_load(&box[0].ticks));
    channel_close(quiet);
    channel_finish(c, NULL);
}
static void test_a_channel_ticks_when_asked_to(void **state)
{
    (void)state;
    world_run(1, time_passes, 0);
}
static void close_while_called(void)
{
    struct peer *nobody[2] = { NULL };
    struct eager_ring box = { .slow = true };
    world_join();
    struct channel *c = open_channel(token, 0, nobody, &box);
    REQUIRE(channel_post_value(c, 0, 0, 0, 1));
    sleep_ms(10);                                       /* it is being delivered, most of the time */
    channel_close(c);
    int count = atomic_load(&box.count);
    sleep_ms(100);
    REQUIRE(atomic_load(&box.count) == count);
    peers_release();
}
static void test_nobody_is_called_after_close(void **state)
{
    (void)state;
    world_run(1, close_while_called, 0);
}
static struct {
    struct channel *channel;
    _Atomic bool called, closes;
} sender;
static void receive_and_send(void *context, int from, const void *bytes, size_t length)
{
    (void)context, (void)bytes, (void)length;
    atomic_store(&sender.called, true);
    while (!atomic_load(&sender.closes)) sleep_ms(1);
    sleep_ms(50);                                       /* until close waits */
    REQUIRE(channel_post_value(sender.channel, 0, from, 0, END));
}
static void closes_while_it_sends(void)
{
    struct peer *nobody[2] = { NULL };
    struct eager_ring box = { 0 };
    const struct channel_user user = { receive_and_send, NULL, NULL };
    world_join();
    REQUIRE(channel_open(token, 0, nobody, 2, NULL, &user, &sender.channel) == TUTTI_OK);
    struct channel *other = open_channel(token, 1, nobody, &box);
    REQUIRE(channel_post_value(other, 1, 0, 0, 1));
    while (!atomic_load(&sender.called)) sleep_ms(1);
    atomic_store(&sender.closes, true);
    channel_close(sender.channel);
    await_end(&box);
    channel_finish(other, NULL);
}
static void test_who_is_called_may_send_while_it_closes(void **state)
{
    (void)state;
    world_run(1, closes_while_it_sends, 0);
}
static void channel_in_child(void)
{
    struct peer *nobody[2] = { NULL };
    struct eager_ring box = { 0 }, own = { 0 };
    struct identity identity;
    world_join();
    struct channel *c = open_channel(token, 0, nobody, &box);
    REQUIRE(channel_post_value(c, 0, 1, 0, 7));                       /* early, for the parent alone */
    /* A thread that starts holds locks of the address sanitizer, which no child is ever given back: it has started. */
    REQUIRE(channel_post_value(c, 0, 0, 0, 8));
    await_count(&box.count, 1);
    pid_t child = fork();
    if (child == 0) {
        REQUIRE(world_acquire(&identity) == TUTTI_OK);
        struct channel *mine = open_channel(token, 1, nobody, &own);
        REQUIRE(channel_post_value(mine, 1, 1, 0, END));
        await_end(&own);
        REQUIRE(atomic_load(&own.count) == 1);
        channel_finish(mine, NULL);
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    REQUIRE(channel_post_value(c, 0, 0, 0, END));
    await_end(&box);
    REQUIRE(atomic_load(&box.count) == 2);
    channel_finish(c, NULL);
}
static void test_a_forked_child_starts_anew(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    print_message("the thread sanitizer does not allow threads in a child of a process with threads\n");
    skip();
#endif
    world_run(1, channel_in_child, 0);
}
/* ---- in the name of another ---- */
/* 2 is connected with 0, and no rank of the group: what it sends in the name of rank 1 is not delivered, whether it
   says that it passes it on or not, and its own connection ends; that of rank 1 does not. The same if the group's
   channel opens later. */
static bool early;
static void send_as_another(void)
{
    struct peer *peers[3] = { NULL };
    struct eager_ring box = { 0 };
    struct loss loss = { 0 };
    world_join();
    if (rank != 0) REQUIRE(world_call(0, &peers[0]) == TUTTI_OK);
    for (int peer = 1; peer < 3 && rank == 0; peer++) REQUIRE(world_call(peer, &peers[peer]) == TUTTI_OK);
    struct channel *c = rank < 2 && !(early && rank == 0) ? open_channel(token, rank, peers, &box) : NULL;
    world_barrier(3);
    if (rank == 2) {
        struct ctrl_msg msg = { .to = { .rank = 0 }, .from = 1, .hops = (uint8_t)(getpid() % 2), .length = 12 };
        struct body body = { 1, 0, END };
        memcpy(msg.to.token, token, sizeof msg.to.token);
        memcpy(msg.bytes, &body, sizeof body);
        pthread_mutex_lock(&registry.lock);
        REQUIRE(peer_post_ctrl_msg(peers[0], &msg));
        pthread_mutex_unlock(&registry.lock);
    }
    world_barrier(3);
    if (!c && rank == 0) c = open_channel(token, 0, peers, &box);
    struct peer *watched = rank == 0 ? peers[2] : rank == 2 ? peers[0] : NULL;
    struct peer_watch watch = { .peer = watched, .lost = loss_record, .context = &loss };
    if (watched) peer_watch(&watch);
    if (watched) loss_await(&loss);
    world_barrier(3);
    if (rank == 1) REQUIRE(channel_post_value(c, 1, 0, 1, 7));
    if (rank == 0) await_count(&box.count, 1);
    if (rank == 0) REQUIRE(box.first.word == 1 && box.first.value == 7 && !atomic_load(&box.ended));
    if (rank == 0) REQUIRE(!peer_is_gone(peers[1]) && peer_is_gone(peers[2]));
    world_barrier(3);
    if (watched) peer_unwatch(&watch);
    channel_close(c);
    for (int peer = 0; peer < 3; peer++) peer_release(peers[peer]);
    peers_release();
}
static void test_no_process_speaks_for_another(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        early = i % 2;
        world_run(3, send_as_another, 0);
    }
}
unit_function test_channel;
int test_channel(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_process_speaks_for_another),
        cmocka_unit_test(test_messages_keep_their_order),
        cmocka_unit_test(test_what_a_stopped_peer_is_owed_has_a_bound),
        cmocka_unit_test(test_what_the_dead_have_said_comes_before_their_end),
        cmocka_unit_test(test_what_comes_early_is_kept_and_what_comes_late_is_not),
        cmocka_unit_test(test_what_is_kept_for_nobody_has_a_bound),
        cmocka_unit_test(test_a_channel_ticks_when_asked_to),
        cmocka_unit_test(test_nobody_is_called_after_close),
        cmocka_unit_test(test_who_is_called_may_send_while_it_closes),
        cmocka_unit_test(test_a_forked_child_starts_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
