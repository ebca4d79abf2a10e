/* Control channels keep the order of messages, between processes and between threads of one process. The queues for a
   stopped peer and for channels that are not open are bounded. Messages for a channel that opens later are delivered
   then. The messages of a process that dies arrive before its loss is reported. A forked child has no messages of its
   parent. */
#include "backend/base/clock.h"
#include "backend/control/channel.h"
#include "backend/processes/registry.h"
#include "tests/support/unit.h"
#include "tests/unit/processes/peers_world.h"
#include <signal.h>
#include <sys/wait.h>

/* TYPES is the number of message types. A message with the value END is the last one. */
enum { MANY = 5000, TYPES = 4, END = -1 };
static const unsigned char token[16] = "one token";
/* A message, with its sender and its type. */
struct body { int from, type, value; };
/* The messages that one rank has received: their number, the first, and the last of each type. `ended`: END has
   arrived. `ordered`: the values of a type never fell. `slow`: a receive takes 50 ms. The watch thread is `thread`. */
struct inbox {
    _Atomic int count, ticks, lost;
    struct body first, last[TYPES];
    _Atomic bool ended;
    bool ordered, slow;
    pthread_t thread;
};
static void inbox_receive(void *context, int from, unsigned type, const void *bytes, size_t length)
{
    struct inbox *received = context;
    struct body body;
    REQUIRE(length == sizeof body && !atomic_load(&received->lost));
    memcpy(&body, bytes, sizeof body);
    REQUIRE(body.from == from && body.type == (int)type);
    if (received->slow) sleep_ms(50);
    if (!atomic_load(&received->count)) received->first = body, received->ordered = true;
    if (body.value != END && body.value < received->last[body.type].value) received->ordered = false;
    received->last[body.type] = body;
    received->thread = pthread_self();
    if (body.value == END) atomic_store(&received->ended, true);
    atomic_fetch_add(&received->count, 1);
}
static void inbox_count_tick(void *context) { atomic_fetch_add(&((struct inbox *)context)->ticks, 1); }
static struct channel *open_channel(const unsigned char name[16], int me, struct peer *const *peers,
    struct inbox *received)
{
    struct channel *c;
    REQUIRE(channel_open(name, me, peers, size < 2 ? 2 : size, NULL,
                &(struct channel_user){ inbox_receive, inbox_count_tick, received }, &c)
        == TUTTI_OK);
    return c;
}
static bool channel_post_value(struct channel *c, int from, int to, int type, int value)
{
    struct body body = { from, type, value };
    return channel_send(c, to, (unsigned)type, &body, sizeof body);
}
static void await_count(const _Atomic int *count, int least)
{
    for (int64_t until = clock_ms() + JOIN_MS; atomic_load(count) < least; sleep_ms(1)) REQUIRE(clock_ms() < until);
}
static void await_end(const struct inbox *received)
{
    for (int64_t until = clock_ms() + JOIN_MS; !atomic_load(&received->ended); sleep_ms(1)) REQUIRE(clock_ms() < until);
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
static void expect_many(const struct inbox *received, int from)
{
    await_end(received);
    REQUIRE(received->ordered && received->first.from == from && !pthread_equal(received->thread, pthread_self()));
    for (int type = 0; type < 3; type++) REQUIRE(received->last[type].value >= MANY - 3);
}
static void order_of_processes(void)
{
    struct peer *peers[2] = { NULL };
    struct inbox received = { 0 };
    world_join();
    REQUIRE(world_call(1 - rank, &peers[1 - rank]) == TUTTI_OK);
    struct channel *c = open_channel(token, rank, peers, &received);
    post_many(c, rank, 1 - rank);
    expect_many(&received, 1 - rank);
    world_barrier(2);
    channel_finish(c, peers[1 - rank]);
}
static void order_of_threads(void)
{
    struct peer *no_peers[2] = { NULL };
    struct inbox received[2] = { 0 };
    struct channel *c[2];
    world_join();
    for (int r = 0; r < 2; r++) c[r] = open_channel(token, r, no_peers, &received[r]);
    for (int r = 0; r < 2; r++) post_many(c[r], r, 1 - r);
    for (int r = 0; r < 2; r++) expect_many(&received[r], 1 - r);
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
static void post_to_a_stopped_peer(void)
{
    struct peer *peers[2] = { NULL };
    struct inbox received = { 0 };
    world_join();
    REQUIRE(world_call(1 - rank, &peers[1 - rank]) == TUTTI_OK);
    struct channel *c = open_channel(token, rank, peers, &received);
    world_barrier(2);
    if (rank == 0) {
        pid_t other = (pid_t)world->identity[1].pid;
        int stopped = kill(other, SIGSTOP);
        post_many(c, 0, 1);
        /* The notice is posted once, while the socket of rank 1 is full. */
        peers_abort_join(token);
        pthread_mutex_lock(&registry.lock);
        int waiting = peers[1]->unsent.count;
        pthread_mutex_unlock(&registry.lock);
        REQUIRE(kill(other, SIGCONT) == 0 && !stopped);
        REQUIRE(waiting > 0 && waiting <= TYPES);
    } else {
        struct identity by;
        expect_many(&received, 0);
        for (int64_t until = clock_ms() + JOIN_MS; !peers_join_is_aborted(token, &by); sleep_ms(1))
            REQUIRE(clock_ms() < until);
    }
    world_barrier(2);
    channel_finish(c, peers[1 - rank]);
}
static void test_queue_for_a_stopped_peer_is_bounded(void **state)
{
    (void)state;
    world_run(2, post_to_a_stopped_peer, 0);
}
static void inbox_count_loss(void *context) { atomic_fetch_add(&((struct inbox *)context)->lost, 1); }
/* Rank 1 dies right after it has posted. Its messages still arrive, and before its loss is reported. */
static void post_and_die(void)
{
    struct peer *peers[2] = { NULL };
    struct inbox received = { 0 };
    world_join();
    REQUIRE(world_call(1 - rank, &peers[1 - rank]) == TUTTI_OK);
    struct channel *c = open_channel(token, rank, peers, &received);
    struct peer_watch watch = { .peer = peers[1 - rank], .lost = inbox_count_loss, .context = &received };
    world_barrier(2);
    if (rank == 1) {
        post_many(c, 1, 0);
        raise(SIGKILL);
    }
    peer_watch(&watch);
    /* inbox_receive fails if it is called after the loss. */
    await_count(&received.lost, 1);
    REQUIRE(atomic_load(&received.count) > 0 && received.ordered);
    peer_unwatch(&watch);
    REQUIRE(!channel_post_value(c, 0, 1, 0, 0));
    channel_finish(c, peers[1]);
}
static void test_messages_of_a_dead_process_arrive_before_its_loss(void **state)
{
    (void)state;
    world_run(2, post_and_die, 2);
}

/* ---- channels that are not open ---- */
static void early_and_late(void)
{
    struct peer *peers[2] = { NULL };
    struct inbox received = { 0 };
    world_join();
    REQUIRE(world_call(1 - rank, &peers[1 - rank]) == TUTTI_OK);
    struct channel *c = rank == 0 ? open_channel(token, 0, peers, &received) : NULL;
    if (rank == 0)
        for (int value = 1; value <= 3; value++) REQUIRE(channel_post_value(c, 0, 1, value, value));
    world_barrier(2);
    if (rank == 1) {
        /* Most messages have arrived by now. The others arrive in order. */
        sleep_ms(20);
        c = open_channel(token, 1, peers, &received);
        await_count(&received.count, 3);
        REQUIRE(received.first.value == 1 && received.ordered && received.last[3].value == 3);
        channel_close(c);
    }
    world_barrier(2);
    /* Rank 1 has closed its channel. The message is dropped, and no other channel gets it. */
    if (rank == 0) REQUIRE(channel_post_value(c, 0, 1, 1, 4));
    world_barrier(2);
    if (rank == 1) {
        c = open_channel((const unsigned char *)"another token..", 1, peers, &received);
        /* Rank 1 sends END to itself. It arrives after all messages that have arrived before. */
        REQUIRE(channel_post_value(c, 1, 1, 0, END));
        await_end(&received);
        REQUIRE(atomic_load(&received.count) == 4 && received.last[1].value == 1);
    }
    world_barrier(2);
    channel_finish(c, peers[1 - rank]);
}
static void test_early_message_is_kept_and_late_one_is_dropped(void **state)
{
    (void)state;
    world_run(2, early_and_late, 0);
}
/* Messages wait for 300 channels that are not open. The oldest are dropped, the latest are kept. */
static void post_to_unopened_channels(void)
{
    struct peer *no_peers[2] = { NULL };
    struct inbox received = { 0 };
    unsigned char other[16] = { 0 };
    world_join();
    for (int i = 0; i < 300; i++) {
        memcpy(other, &i, sizeof i);
        struct channel *c = open_channel(other, 0, no_peers, &received);
        REQUIRE(channel_post_value(c, 0, 1, 1, i));
        REQUIRE(channel_post_value(c, 0, 0, 0, END));
        await_end(&received);
        atomic_store(&received.ended, false);
        channel_close(c);
    }
    received = (struct inbox){ 0 };
    struct channel *old = open_channel(memset(other, 0, sizeof other), 1, no_peers, &received);
    struct channel *new = open_channel(memcpy(other, &(int){ 299 }, sizeof(int)), 1, no_peers, &received);
    await_count(&received.count, 1);
    REQUIRE(received.first.value == 299);
    channel_close(old);
    channel_finish(new, NULL);
}
static void test_messages_for_unopened_channels_are_bounded(void **state)
{
    (void)state;
    world_run(1, post_to_unopened_channels, 0);
}

/* ---- the thread that calls ---- */
static void count_ticks(void)
{
    struct peer *no_peers[1] = { NULL };
    struct inbox received[2] = { 0 };
    world_join();
    struct channel *quiet = open_channel(token, 0, no_peers, &received[0]);
    struct channel *c = open_channel(token, 1, no_peers, &received[1]);
    channel_set_tick(c, true);
    await_count(&received[1].ticks, 5);
    channel_set_tick(c, false);
    REQUIRE(!atomic_load(&received[0].ticks));
    channel_close(quiet);
    channel_finish(c, NULL);
}
static void test_channel_ticks_only_if_set_to(void **state)
{
    (void)state;
    world_run(1, count_ticks, 0);
}
static void close_while_called(void)
{
    struct peer *no_peers[2] = { NULL };
    struct inbox received = { .slow = true };
    world_join();
    struct channel *c = open_channel(token, 0, no_peers, &received);
    REQUIRE(channel_post_value(c, 0, 0, 0, 1));
    /* Most of the time the message is being delivered now. */
    sleep_ms(10);
    channel_close(c);
    int count = atomic_load(&received.count);
    sleep_ms(100);
    REQUIRE(atomic_load(&received.count) == count);
    peers_release();
}
static void test_user_is_not_called_after_close(void **state)
{
    (void)state;
    world_run(1, close_while_called, 0);
}
static struct {
    struct channel *channel;
    _Atomic bool called, closes;
} sender;
static void receive_and_send(void *context, int from, unsigned type, const void *bytes, size_t length)
{
    (void)context, (void)type, (void)bytes, (void)length;
    atomic_store(&sender.called, true);
    while (!atomic_load(&sender.closes)) sleep_ms(1);
    /* By now channel_close waits for this call. */
    sleep_ms(50);
    REQUIRE(channel_post_value(sender.channel, 0, from, 0, END));
}
static void closes_while_it_sends(void)
{
    struct peer *no_peers[2] = { NULL };
    struct inbox received = { 0 };
    const struct channel_user user = { receive_and_send, NULL, NULL };
    world_join();
    REQUIRE(channel_open(token, 0, no_peers, 2, NULL, &user, &sender.channel) == TUTTI_OK);
    struct channel *other = open_channel(token, 1, no_peers, &received);
    REQUIRE(channel_post_value(other, 1, 0, 0, 1));
    while (!atomic_load(&sender.called)) sleep_ms(1);
    atomic_store(&sender.closes, true);
    channel_close(sender.channel);
    await_end(&received);
    channel_finish(other, NULL);
}
static void test_receiver_may_send_while_its_channel_closes(void **state)
{
    (void)state;
    world_run(1, closes_while_it_sends, 0);
}
static void channel_in_child(void)
{
    struct peer *no_peers[2] = { NULL };
    struct inbox received = { 0 }, own = { 0 };
    struct identity identity;
    world_join();
    struct channel *c = open_channel(token, 0, no_peers, &received);
    /* The channel of rank 1 is not open in the parent, so this message waits there. The child must not get it. */
    REQUIRE(channel_post_value(c, 0, 1, 0, 7));
    /* The watch thread has started when this message has arrived. While it starts, it holds locks of the address
       sanitizer, which would stay locked in the child. */
    REQUIRE(channel_post_value(c, 0, 0, 0, 8));
    await_count(&received.count, 1);
    pid_t child = fork();
    if (child == 0) {
        REQUIRE(world_acquire(&identity) == TUTTI_OK);
        struct channel *mine = open_channel(token, 1, no_peers, &own);
        REQUIRE(channel_post_value(mine, 1, 1, 0, END));
        await_end(&own);
        REQUIRE(atomic_load(&own.count) == 1);
        channel_finish(mine, NULL);
        _exit(0);
    }
    int status;
    REQUIRE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    REQUIRE(channel_post_value(c, 0, 0, 0, END));
    await_end(&received);
    REQUIRE(atomic_load(&received.count) == 2);
    channel_finish(c, NULL);
}
static void test_forked_child_has_no_messages_of_its_parent(void **state)
{
    (void)state;
#if defined(__SANITIZE_THREAD__)
    print_message("the thread sanitizer does not allow threads in a child of a process with threads\n");
    skip();
#endif
    world_run(1, channel_in_child, 0);
}
/* ---- messages in the name of another rank ---- */
/* Process 2 is connected with process 0, but is no rank of the group. It sends a message in the name of rank 1, as its
   own (hops 0) or as one that it passes on (hops 1). The message is not delivered. The connection of process 2 ends,
   and that of rank 1 stays open. `early`: the message arrives before rank 0 opens the channel. */
static bool early;
static void send_as_another(void)
{
    struct peer *peers[3] = { NULL };
    struct inbox received = { 0 };
    struct loss loss = { 0 };
    world_join();
    if (rank != 0) REQUIRE(world_call(0, &peers[0]) == TUTTI_OK);
    for (int peer = 1; peer < 3 && rank == 0; peer++) REQUIRE(world_call(peer, &peers[peer]) == TUTTI_OK);
    struct channel *c = rank < 2 && !(early && rank == 0) ? open_channel(token, rank, peers, &received) : NULL;
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
    if (!c && rank == 0) c = open_channel(token, 0, peers, &received);
    struct peer *watched = rank == 0 ? peers[2] : rank == 2 ? peers[0] : NULL;
    struct peer_watch watch = { .peer = watched, .lost = loss_record, .context = &loss };
    if (watched) peer_watch(&watch);
    if (watched) loss_await(&loss);
    world_barrier(3);
    if (rank == 1) REQUIRE(channel_post_value(c, 1, 0, 1, 7));
    if (rank == 0) await_count(&received.count, 1);
    if (rank == 0) REQUIRE(received.first.type == 1 && received.first.value == 7 && !atomic_load(&received.ended));
    if (rank == 0) REQUIRE(!peer_is_gone(peers[1]) && peer_is_gone(peers[2]));
    world_barrier(3);
    if (watched) peer_unwatch(&watch);
    channel_close(c);
    for (int peer = 0; peer < 3; peer++) peer_release(peers[peer]);
    peers_release();
}
static void test_message_in_the_name_of_another_rank_ends_the_connection(void **state)
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
        cmocka_unit_test(test_message_in_the_name_of_another_rank_ends_the_connection),
        cmocka_unit_test(test_messages_keep_their_order),
        cmocka_unit_test(test_queue_for_a_stopped_peer_is_bounded),
        cmocka_unit_test(test_messages_of_a_dead_process_arrive_before_its_loss),
        cmocka_unit_test(test_early_message_is_kept_and_late_one_is_dropped),
        cmocka_unit_test(test_messages_for_unopened_channels_are_bounded),
        cmocka_unit_test(test_channel_ticks_only_if_set_to),
        cmocka_unit_test(test_user_is_not_called_after_close),
        cmocka_unit_test(test_receiver_may_send_while_its_channel_closes),
        cmocka_unit_test(test_forked_child_has_no_messages_of_its_parent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
