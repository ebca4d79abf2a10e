/* Connections to the TCP sockets of a process. Strangers get no answer and hold up no other connection. A process that
   has proved its identity and then sends an invalid message loses its connection, and no other does. The test writes
   the bytes of all callers itself, and the fabric's own thread reads them. */
#include "tests/unit/transports/tcp_callers.h"

/* ---- strangers ---- */
static void hello_spoil(struct handshake_hello *hello, int way)
{
    switch (way) {
    case 0: memset(hello, 0xff, sizeof *hello); break;
    case 1: hello->proof[15] ^= 1; break;
    case 2: hello->to[0] = 2; break;
    case 3: memcpy(hello->from.nonce, hello->to, 16); break;
    case 4: hello->head.magic[6] = 'u'; break;
    case 5: hello->key.bytes[3] ^= 1; break;
    case 6: hello->number++; break;
    /* The proof of one process is not valid for another. */
    case 7: hello->from.nonce[0]++; break;
    }
}
enum { WAYS = 9 };
static void test_strangers_are_not_answered(void **state)
{
    struct handshake_hello seen_before;
    (void)state;
    for (int way = 0; way < WAYS; way++) {
        int s = connect_by_hand();
        struct handshake h = handshake_prepare(s, 10, 1);
        if (way == 0) seen_before = h.hello;
        /* A hello that was valid on another connection. */
        if (way == 8) h.hello = seen_before;
        hello_spoil(&h.hello, way);
        send_all(s, &h.hello, sizeof h.hello);
        assert_closed(s);
    }
    assert_false(endpoint_seen(&ours, seen_before.from.nonce).is_open);
    close(call_well(10));
}
/* A silent connection keeps its place until new ones need it. A closed one frees its place. */
static void test_silent_connections_make_room_for_new_ones(void **state)
{
    int silent[PENDING_MOST + 20];
    (void)state;
    for (int i = 0; i < PENDING_MOST + 20; i++) {
        silent[i] = connect_by_hand();
        struct handshake h = handshake_prepare(silent[i], 11, 1);
        send_all(silent[i], &h.hello, 5);
    }
    close(call_well(11));
    for (int i = 0; i < 20; i++) assert_closed(silent[i]);
    for (int i = 20; i < PENDING_MOST + 20; i++) close(silent[i]);
    close(call_well(12));
}
static void test_a_hello_may_come_in_pieces(void **state)
{
    int s = connect_by_hand();
    struct handshake h = handshake_prepare(s, 13, 1);
    (void)state;
    for (size_t i = 0; i < sizeof h.hello; i++) send_all(s, (unsigned char *)&h.hello + i, 1);
    await_welcome(s, &h);
    assert_true(endpoint_seen(&ours, h.hello.from.nonce).is_open);
    close(s);
}
/* A newer attempt of a process replaces its connection. An attempt whose number is not greater is refused. */
static void test_the_latest_attempt_of_a_process_counts(void **state)
{
    int first = call_numbered(15, 3), second = call_numbered(15, 4), third = connect_by_hand();
    (void)state;
    assert_closed(first);
    struct handshake late = handshake_prepare(third, 15, 4);
    send_all(third, &late.hello, sizeof late.hello);
    assert_closed(third);
    struct endpoint latest = endpoint_seen(&ours, late.hello.from.nonce);
    assert_true(latest.is_open && !endpoint_is_broken(&latest));
    close(second);
}
struct stranger_answers { struct handshake_opening opening; struct handshake_answer answer; };
/* Connects the fabric to the port of the process `nonce`, which has ended. A stranger has the port now, and sends these
   answers. Returns the reason for which the endpoint breaks. */
static const char *stranger_answers(unsigned char nonce, const struct stranger_answers *answers, bool gets_hello)
{
    struct tcp_address theirs = { .family = AF_INET, .address = { 127, 0, 0, 1 } };
    const unsigned char process[16] = { nonce };
    struct sockaddr_in name = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof name;
    struct handshake_hello said;
    struct endpoint *e;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&name, bytes), 0);
    assert_int_equal(listen(listener, 1), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&name, &bytes), 0);
    theirs.port = ntohs(name.sin_port);
    pthread_mutex_lock(&ours.lock);
    assert_int_equal(tcp_operations.connect(&ours, process, &key, (unsigned char *)&theirs, sizeof theirs, &e),
        TUTTI_OK);
    pthread_mutex_unlock(&ours.lock);
    int s = accept(listener, NULL, NULL);
    send_all(s, answers, sizeof *answers);
    if (gets_hello) receive_all(s, &said, sizeof said);
    assert_closed(s);
    close(listener);
    return endpoint_seen(&ours, process).why;
}
static void test_a_stranger_that_answers_is_refused(void **state)
{
    struct stranger_answers answers = { { { "tutti-t", HANDSHAKE_VERSION, HANDSHAKE_OPENING }, { 5 } },
        { { "tutti-t", HANDSHAKE_VERSION, HANDSHAKE_WELCOME }, 1, { 0 } } };
    (void)state;
    assert_non_null(strstr(stranger_answers(14, &answers, true), "it has another key: it is of another job"));
    answers.answer.head.kind = HANDSHAKE_REFUSED;
    assert_non_null(strstr(stranger_answers(214, &answers, true), "it has another key: it is of another job"));
    answers.answer.head.kind = HANDSHAKE_HELLO;
    assert_non_null(strstr(stranger_answers(215, &answers, true), "it sent an unexpected message"));
    answers.opening.head.version++;
    assert_non_null(strstr(stranger_answers(216, &answers, false), "it runs another version of tutti"));
    memcpy(answers.opening.head.magic, "GET / H", 8);
    assert_non_null(strstr(stranger_answers(217, &answers, false), "it sent an unexpected message"));
}

/* ---- processes that have proved their identity ---- */
static void test_invalid_frames_close_the_connection(void **state)
{
    static const struct tcp_frame wrong[] = {
        { .kind = GOODBYE + 1 },
        { .kind = UINT64_MAX, .bytes = UINT64_MAX, .id = UINT64_MAX, .extent = UINT64_MAX },
        { .kind = EAGER, .bytes = EAGER_BYTES + 1 },
        { .kind = EAGER, .bytes = UINT64_MAX },
        { .kind = OFFER, .id = 1 },
        { .kind = OFFER, .id = 1, .extent = 5, .bytes = 5 },
        { .kind = PULL, .id = 77 },
        { .kind = RELEASE, .id = 77 },
        { .kind = DATA, .id = 77, .bytes = 8 },
        { .kind = DATA, .id = 77, .bytes = UINT64_MAX, .extent = UINT64_MAX },
        { .kind = GOODBYE, .bytes = 1 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        unsigned char frame[MOST_HEAD] = { 0 }, nonce = (unsigned char)(20 + i);
        int s = call_well(nonce);
        memcpy(frame, &wrong[i], sizeof wrong[i]);
        send_all(s, frame, sizeof frame);
        assert_closed(s);
        assert_string_equal(endpoint_seen(&ours, (unsigned char[16]){ nonce, 7 }).why,
            "its process has sent an invalid message");
    }
}
/* A group of two ranks. Rank 0 uses the fabric, and this test writes the bytes of rank 1, its partner. */
static unsigned char partner[16];
static const unsigned char *process_of(void *context, int rank)
{
    (void)context;
    return rank ? partner : ours.process;
}
static tutti_status address_of(void *context, const struct fabric *fabric, int rank, void *out, size_t *bytes)
{
    (void)context, (void)fabric, (void)rank, (void)out, (void)bytes;
    return TUTTI_IN_PROGRESS;
}
static void name_of_partner(void *context, int rank, char *out, size_t bytes)
{
    (void)context, (void)rank;
    snprintf(out, bytes, "a host");
}
struct pair {
    struct alarm_bell bell;
    struct rank me;
    struct transfer x;
    struct piece piece;
    struct header header;
    int partner;
};
/* Creates rank 0, connects the partner, and posts a receive of `bytes` bytes on rank 0. */
static void pair_open(struct pair *p, unsigned char nonce, unsigned char *at, size_t bytes)
{
    static uint64_t comms = 100;
    memset(partner, 0, sizeof partner);
    partner[0] = nonce;
    partner[1] = 7;
    *p = (struct pair){ .me = { .rank = 0, .size = 2, .router = new_router(0, 2, &p->bell) } };
    p->me.router->comm = ++comms;
    const struct fabric_callbacks callbacks = { NULL, process_of, address_of, name_of_partner, key };
    assert_int_equal(fabric_connect(&ours, p->me.router, &callbacks), TUTTI_OK);
    p->header = (struct header){
        .comm = comms, .name = name_of(3), .bytes = bytes, .id = 1, .from = 1, .to = 0, .kind = MESSAGE
    };
    p->partner = call_well(nonce);
    rank_recv(&p->me, &p->x, 1, 3, &p->piece, at, bytes);
}
static void pair_end(struct pair *p)
{
    rank_await(&p->me, &p->x, 1);
    router_destroy(p->me.router);
}
/* The partner announces a message, and awaits PULL. */
static void pair_announce(struct pair *p, size_t bytes)
{
    const struct tcp_frame offer = { .kind = OFFER, .id = 5, .extent = bytes };
    struct tcp_frame asked;
    send_all(p->partner, &offer, sizeof offer);
    send_all(p->partner, &p->header, sizeof p->header);
    do router_poll(p->me.router);
    while (recv(p->partner, &asked, sizeof asked, MSG_DONTWAIT) != (ssize_t)sizeof asked);
    assert_int_equal(asked.kind, PULL);
    assert_int_equal(asked.id, 5);
}
static void test_invalid_data_frames_write_no_memory(void **state)
{
    static const struct tcp_frame wrong[] = {
        { .kind = DATA, .id = 5, .bytes = BYTES + 1 },
        { .kind = DATA, .id = 5, .bytes = 8, .extent = BYTES },
        { .kind = DATA, .id = 5, .bytes = 8, .extent = 1 },
        { .kind = DATA, .id = 5, .bytes = 0 },
        { .kind = DATA, .id = 5, .bytes = UINT64_MAX, .extent = 0 },
        { .kind = DATA, .id = 6, .bytes = BYTES },
    };
    static unsigned char into[3 * BYTES], expected[3 * BYTES], noise[2 * BYTES];
    (void)state;
    memset(noise, 0x55, sizeof noise);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct pair p;
        memset(into, 0xee, sizeof into);
        memcpy(expected, into, sizeof into);
        pair_open(&p, (unsigned char)(40 + i), into + BYTES, BYTES);
        pair_announce(&p, BYTES);
        send_all(p.partner, &wrong[i], sizeof wrong[i]);
        send(p.partner, noise, sizeof noise, MSG_NOSIGNAL | MSG_DONTWAIT);
        pair_end(&p);
        assert_int_equal(p.x.state, TRANSFER_FAILED);
        assert_int_equal(p.x.status, TUTTI_PEER_LOST);
        assert_non_null(strstr(status_detail(), "its process has sent an invalid message"));
        assert_memory_equal(into, expected, sizeof into);
        close(p.partner);
    }
}
/* The partner sends the bytes in pieces of 1 to 7 bytes. */
static void pair_send_in_pieces(struct pair *p, const void *data, size_t bytes)
{
    for (size_t i = 0, n = 1; i < bytes; i += n, n = n % 7 + 1) {
        n = size_smaller(n, bytes - i);
        send_all(p->partner, (const unsigned char *)data + i, n);
        router_poll(p->me.router);
    }
}
static void test_frames_may_be_cut_anywhere(void **state)
{
    static unsigned char sent[BYTES], into[BYTES];
    struct pair p;
    (void)state;
    bytes_fill(sent, BYTES, 4);
    for (int announced = 0; announced < 2; announced++) {
        size_t bytes = announced ? BYTES : 5000, first = announced ? 700 : bytes;
        memset(into, 0, sizeof into);
        pair_open(&p, (unsigned char)(60 + announced), into, bytes);
        if (announced) pair_announce(&p, bytes);
        else p.header.id = 0;
        for (size_t at = 0; at < bytes; at += first, first = bytes - at) {
            const struct tcp_frame frame = { .kind = announced ? DATA : EAGER, .id = 5, .bytes = first, .extent = at };
            pair_send_in_pieces(&p, &frame, sizeof frame);
            if (!announced) pair_send_in_pieces(&p, &p.header, sizeof p.header);
            pair_send_in_pieces(&p, sent + at, first);
        }
        pair_end(&p);
        assert_int_equal(p.x.state, TRANSFER_DONE);
        assert_true(bytes_are(into, bytes, 4));
        close(p.partner);
    }
}

/* ---- messages in the name of another process ---- */
static void send_eager_frame(int s, const struct header *header, const void *data)
{
    const struct tcp_frame frame = { .kind = EAGER, .bytes = header->kind == MESSAGE ? header->bytes : 0 };
    send_all(s, &frame, sizeof frame);
    send_all(s, header, sizeof *header);
    send_all(s, data, (size_t)frame.bytes);
}
/* Checks that an eager message of the partner, with this sequence number, completes rank 0's receive. */
static void assert_received(struct pair *p, uint32_t sequence)
{
    unsigned char out[8] = { 5 };
    struct header header = p->header;
    header.id = 0;
    header.sequence = sequence;
    send_eager_frame(p->partner, &header, out);
    rank_await(&p->me, &p->x, 1);
    assert_int_equal(p->x.state, TRANSFER_DONE);
    assert_int_equal(*p->piece.at, 5);
}
static void test_a_withdrawn_message_is_not_received(void **state)
{
    const struct tcp_frame offer = { .kind = OFFER, .id = 5, .extent = BYTES };
    unsigned char in[8];
    static unsigned char into[BYTES];
    struct transfer late;
    struct piece piece;
    struct tcp_frame answer;
    struct pair p;
    (void)state;
    pair_open(&p, 80, in, sizeof in);
    struct header announced = p.header, withdrawn = p.header;
    announced.name = name_of(9);
    announced.bytes = BYTES;
    announced.id = withdrawn.id = 7;
    withdrawn.kind = WITHDRAWN;
    withdrawn.name = name_of(1234);
    send_all(p.partner, &offer, sizeof offer);
    send_all(p.partner, &announced, sizeof announced);
    send_eager_frame(p.partner, &withdrawn, NULL);
    assert_received(&p, 1);
    receive_all(p.partner, &answer, sizeof answer);
    assert_int_equal(answer.kind, RELEASE);
    rank_recv(&p.me, &late, 1, 9, &piece, into, BYTES);
    assert_int_equal(late.state, TRANSFER_POSTED);
    assert_true(router_cancel(p.me.router, &late));
    router_destroy(p.me.router);
    close(p.partner);
}
/* Another process sends a message in the name of the partner. It is refused, and only the connection of that process
   ends. */
static void test_a_process_may_send_only_for_its_own_ranks(void **state)
{
    unsigned char in[8], noise[8] = { 9 };
    struct pair p;
    (void)state;
    pair_open(&p, 82, in, sizeof in);
    int another = call_well(83);
    struct header header = p.header;
    header.id = 0;
    send_eager_frame(another, &header, noise);
    for (bool closed = false; !closed;) {
        char byte;
        router_poll(p.me.router);
        closed = recv(another, &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
    }
    close(another);
    assert_string_equal(endpoint_seen(&ours, (unsigned char[16]){ 83, 7 }).why,
        "its process has sent a message as another process");
    assert_int_equal(p.x.state, TRANSFER_POSTED);
    assert_received(&p, 0);
    router_destroy(p.me.router);
    close(p.partner);
}

/* ---- both at once ---- */
static struct endpoint *connect_to(struct fabric *from, const struct fabric *to, const struct tcp_address *at)
{
    struct endpoint *e;
    assert_int_equal(from->operations->connect(from, to->process, &key, (const unsigned char *)at, sizeof *at, &e),
        TUTTI_OK);
    return e;
}
static void await_open(struct fabric *fabric, const struct fabric *to)
{
    while (!endpoint_seen(fabric, to->process).is_open) nanosleep(&(struct timespec){ 0, 100000 }, NULL);
}
static void give_up(struct fabric *fabric, const struct fabric *to)
{
    pthread_mutex_lock(&fabric->lock);
    struct endpoint *e = endpoint_find(fabric, to->process);
    if (e) fabric->operations->disconnect(fabric, e);
    pthread_mutex_unlock(&fabric->lock);
}
static int count_whole(struct fabric *fabric, const struct fabric *to)
{
    int count = 0;
    pthread_mutex_lock(&fabric->lock);
    for (const struct endpoint *e = fabric->endpoints; e; e = e->next)
        count += memcmp(e->process, to->process, 16) == 0 && !endpoint_is_broken(e);
    pthread_mutex_unlock(&fabric->lock);
    return count;
}
/* Two processes connect to each other at once. One of the two connections stays, whichever attempt arrives first. After
   one side has closed it, both can connect again. */
static void test_one_connection_stays_if_both_connect_at_once(void **state)
{
    (void)state;
    for (int turn = 0; turn < 60; turn++) {
        pthread_mutex_lock(&ours.lock);
        pthread_mutex_lock(&other.lock);
        connect_to(&ours, &other, &address_of_other);
        connect_to(&other, &ours, &address);
        pthread_mutex_unlock(turn % 2 ? &other.lock : &ours.lock);
        if (turn % 3) nanosleep(&(struct timespec){ 0, 200000 * (turn % 3) }, NULL);
        pthread_mutex_unlock(turn % 2 ? &ours.lock : &other.lock);
        await_open(&ours, &other);
        await_open(&other, &ours);
        /* Late handshake messages of the other attempt must not break the connection. */
        nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
        assert_int_equal(count_whole(&ours, &other), 1);
        assert_int_equal(count_whole(&other, &ours), 1);
        give_up(turn % 2 ? &ours : &other, turn % 2 ? &other : &ours);
        while (count_whole(&ours, &other) || count_whole(&other, &ours))
            nanosleep(&(struct timespec){ 0, 100000 }, NULL);
    }
}
static void test_a_new_attempt_replaces_the_old_connection(void **state)
{
    (void)state;
    pthread_mutex_lock(&ours.lock);
    connect_to(&ours, &other, &address_of_other);
    pthread_mutex_unlock(&ours.lock);
    await_open(&other, &ours);
    for (int turn = 0; turn < 20; turn++) {
        await_open(&ours, &other);
        pthread_mutex_lock(&ours.lock);
        ours.operations->disconnect(&ours, endpoint_find(&ours, other.process));
        struct endpoint *e = connect_to(&ours, &other, &address_of_other);
        pthread_mutex_unlock(&ours.lock);
        for (bool open = false; !open;) {
            pthread_mutex_lock(&ours.lock);
            assert_false(endpoint_is_broken(e));
            open = e->is_open;
            pthread_mutex_unlock(&ours.lock);
        }
        assert_int_equal(count_whole(&other, &ours), 1);
    }
}
unit_function test_tcp_strangers;
int test_tcp_strangers(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strangers_are_not_answered),
        cmocka_unit_test(test_silent_connections_make_room_for_new_ones),
        cmocka_unit_test(test_a_hello_may_come_in_pieces),
        cmocka_unit_test(test_the_latest_attempt_of_a_process_counts),
        cmocka_unit_test(test_a_stranger_that_answers_is_refused),
        cmocka_unit_test(test_invalid_frames_close_the_connection),
        cmocka_unit_test(test_invalid_data_frames_write_no_memory),
        cmocka_unit_test(test_frames_may_be_cut_anywhere),
        cmocka_unit_test(test_a_withdrawn_message_is_not_received),
        cmocka_unit_test(test_a_process_may_send_only_for_its_own_ranks),
        cmocka_unit_test(test_one_connection_stays_if_both_connect_at_once),
        cmocka_unit_test(test_a_new_attempt_replaces_the_old_connection),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
