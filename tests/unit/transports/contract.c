/* The contract of a transport, in bodies that run on every rank. */
#include "tests/unit/transports/contract.h"
#include "backend/base/status.h"
#include "backend/transports/shm/pair.h"
#include <string.h>

/* The largest eager message and the largest credit of any transport, in bytes. */
enum { MOST_EAGER = 65536, MOST_CREDIT = 262144 };
static int next_of(const struct rank *me) { return (me->rank + 1) % me->size; }
static int before(const struct rank *me) { return (me->rank + me->size - 1) % me->size; }
unsigned char *buffer(size_t bytes)
{
    unsigned char *at = malloc(bytes + 1);
    memset(at, 0xee, bytes + 1);
    return at;
}

/* ---- order ---- */
enum { ORDERED = 150 };
static size_t mixed_size(int k) { return k % 7 == 3 ? 9000 + (size_t)k : (size_t)(k * 37 % 300); }
/* Small and large messages of one name travel in different ways. The k-th send still meets the k-th receive. */
static void order_within_a_name(struct rank *me)
{
    struct transfer out[ORDERED], in[ORDERED];
    struct piece pieces[2][ORDERED];
    unsigned char *sent = buffer(ORDERED * 10000), *got = buffer(ORDERED * 10000);
    for (int k = 0; k < ORDERED; k++) {
        bytes_fill(sent + k * 10000, mixed_size(k), (uint64_t)(k + me->rank));
        rank_send(me, &out[k], next_of(me), 5, &pieces[0][k], sent + k * 10000, mixed_size(k));
        if (k >= 40)
            rank_recv(me, &in[k - 40], before(me), 5, &pieces[1][k - 40], got + (k - 40) * 10000, mixed_size(k - 40));
        router_poll(me->router);
    }
    for (int k = ORDERED - 40; k < ORDERED; k++)
        rank_recv(me, &in[k], before(me), 5, &pieces[1][k], got + k * 10000, mixed_size(k));
    rank_await(me, in, ORDERED);
    rank_await(me, out, ORDERED);
    for (int k = 0; k < ORDERED; k++) {
        REQUIRE(in[k].state == TRANSFER_DONE && out[k].state == TRANSFER_DONE && in[k].source == before(me));
        REQUIRE(bytes_are(got + k * 10000, mixed_size(k), (uint64_t)(k + before(me))));
    }
    free(sent);
    free(got);
}
/* Each rank sends messages of name A: several rings of small ones, and a large one. No rank receives them before a
   message of name B has arrived. */
static void names_are_independent(struct rank *me)
{
    enum { UNWANTED = 300, LARGE = 200000 };
    struct transfer a[UNWANTED + 1], in[UNWANTED + 1], b, wanted;
    struct piece pieces[2][UNWANTED + 1], of_b, of_wanted;
    unsigned char *sent = buffer(LARGE), *got = buffer(LARGE), msg[300] = { 0 };
    bytes_fill(sent, LARGE, 1);
    for (int i = 0; i < UNWANTED; i++) rank_send(me, &a[i], next_of(me), 0xa, &pieces[0][i], sent, 300);
    rank_send(me, &a[UNWANTED], next_of(me), 0xa, &pieces[0][UNWANTED], sent, LARGE);
    rank_send(me, &b, next_of(me), 0xb, &of_b, sent, LARGE);
    rank_recv(me, &wanted, before(me), 0xb, &of_wanted, got, LARGE);
    rank_await(me, &wanted, 1);
    REQUIRE(wanted.state == TRANSFER_DONE && bytes_are(got, LARGE, 1));
    REQUIRE(a[UNWANTED].state == TRANSFER_POSTED);
    rank_meet(me);
    for (int i = 0; i < UNWANTED; i++) {
        rank_recv(me, &in[i], before(me), 0xa, &pieces[1][i], msg, sizeof msg);
        rank_await(me, &in[i], 1);
        REQUIRE(in[i].state == TRANSFER_DONE && bytes_are(msg, sizeof msg, 1));
    }
    rank_recv(me, &in[UNWANTED], before(me), 0xa, &pieces[1][UNWANTED], got, LARGE);
    rank_await(me, in, UNWANTED + 1);
    rank_await(me, a, UNWANTED + 1);
    rank_await(me, &b, 1);
    free(sent);
    free(got);
}

/* ---- sizes ---- */
static const size_t sizes[] = { 0, 1, 8, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 64, 1000, EAGER_LIMIT - 1,
    EAGER_LIMIT, EAGER_LIMIT + 1, SLOT_BYTES - 1, SLOT_BYTES, SLOT_BYTES + 1, 2 * SLOT_BYTES,
    PIPE_SLOTS * SLOT_BYTES - 1, PIPE_SLOTS * SLOT_BYTES + 1, 9 * SLOT_BYTES + 77, 5 << 20 };
enum { SIZES = sizeof sizes / sizeof *sizes };
static void exchange(struct rank *me, size_t n, bool receive_first)
{
    struct transfer out, in;
    struct piece of_out, of_in;
    unsigned char *sent = buffer(n), *got = buffer(n);
    bytes_fill(sent, n, n + (uint64_t)me->rank);
    if (receive_first) {
        rank_recv(me, &in, before(me), n, &of_in, got, n);
        rank_meet(me);
        rank_send(me, &out, next_of(me), n, &of_out, sent, n);
    } else {
        rank_send(me, &out, next_of(me), n, &of_out, sent, n);
        rank_meet(me);
        rank_recv(me, &in, before(me), n, &of_in, got, n);
    }
    rank_await(me, &in, 1);
    rank_await(me, &out, 1);
    REQUIRE(in.state == TRANSFER_DONE && out.state == TRANSFER_DONE && in.source == before(me));
    REQUIRE(bytes_are(got, n, n + (uint64_t)before(me)) && got[n] == 0xee);
    free(sent);
    free(got);
}
static void every_size_posted_before(struct rank *me)
{
    for (int i = 0; i < SIZES; i++) exchange(me, sizes[i], true);
}
static void every_size_posted_after(struct rank *me)
{
    for (int i = 0; i < SIZES; i++) exchange(me, sizes[i], false);
}

/* ---- any peer ---- */
static void any_peer(struct rank *me)
{
    enum { EACH = 30 };
    unsigned char *data = buffer(EACH * 16 * 6000);
    struct transfer x[EACH * 16];
    struct piece pieces[EACH * 16];
    int n = me->rank ? EACH : EACH * (me->size - 1), seen[16] = { 0 };
    for (int k = 0; k < n; k++) {
        size_t bytes = k % 2 ? 6000 : 20;
        unsigned char *at = data + k * 6000;
        if (me->rank) bytes_fill(at, bytes, (uint64_t)(me->rank * EACH + k));
        if (me->rank) rank_send(me, &x[k], 0, (uint64_t)(k % 2), &pieces[k], at, bytes);
        else rank_recv(me, &x[k], TRANSFER_ANY_PEER, (uint64_t)(k % 2), &pieces[k], at, bytes);
        router_poll(me->router);
    }
    rank_await(me, x, n);
    for (int parity = 0; parity < 2 && me->rank == 0; parity++) {
        for (int r = 0; r < me->size; r++) seen[r] = parity;
        /* Messages of one peer arrive in the order in which it sent them. */
        for (int k = parity; k < n; k += 2) {
            int source = x[k].source;
            REQUIRE(x[k].state == TRANSFER_DONE && source > 0 && source < me->size);
            REQUIRE(bytes_are(data + k * 6000, parity ? 6000 : 20, (uint64_t)(source * EACH + seen[source])));
            seen[source] += 2;
        }
    }
    free(data);
}

/* ---- many ---- */
enum { MANY = 1000 };
static size_t many_size(int k) { return (size_t)k * 2654435761u % (k % 50 == 0 ? 100000 : 700); }
static void shuffle(int *order, unsigned seed)
{
    for (int i = 0; i < MANY; i++) order[i] = i;
    for (int i = MANY - 1; i > 0; i--) {
        seed = seed * 1664525 + 1013904223;
        int j = (int)((seed >> 8) % (unsigned)(i + 1)), other = order[i];
        order[i] = order[j];
        order[j] = other;
    }
}
static void many_at_once_in_any_order(struct rank *me)
{
    struct transfer *out = calloc(2 * MANY, sizeof *out), *in = out + MANY;
    struct piece *pieces = calloc(2 * MANY, sizeof *pieces);
    unsigned char **data = calloc(2 * MANY, sizeof *data);
    int sends[MANY], receives[MANY];
    shuffle(sends, (unsigned)me->rank);
    shuffle(receives, 77 + (unsigned)me->rank);
    for (int k = 0; k < MANY; k++) {
        data[k] = buffer(many_size(k));
        data[MANY + k] = buffer(many_size(k));
        bytes_fill(data[k], many_size(k), (uint64_t)(k + me->rank));
    }
    for (int i = 0; i < MANY; i++) {
        int s = sends[i], r = receives[i];
        rank_send(me, &out[s], next_of(me), (uint64_t)s << 20, &pieces[s], data[s], many_size(s));
        rank_recv(me, &in[r], before(me), (uint64_t)r << 20, &pieces[MANY + r], data[MANY + r], many_size(r));
    }
    rank_await(me, out, 2 * MANY);
    for (int k = 0; k < MANY; k++) {
        REQUIRE(out[k].state == TRANSFER_DONE && in[k].state == TRANSFER_DONE);
        REQUIRE(bytes_are(data[MANY + k], many_size(k), (uint64_t)(k + before(me))));
    }
    for (int k = 0; k < 2 * MANY; k++) free(data[k]);
    free(data);
    free(pieces);
    free(out);
}

/* ---- pieces ---- */
/* The sender has four chunks, each padded after 3/4. The receiver has a piece of one chunk and a piece of three, both
   padded in the last half chunk. Bytes that both ends have are copied, and memory at the padding is not written. */
static void padded(struct rank *me, size_t chunk)
{
    size_t real = chunk / 4 * 3, half = chunk / 2;
    unsigned char *sent = buffer(4 * chunk), *got = buffer(4 * chunk);
    struct piece from[4], to[2] = { { got, half, chunk }, { got + chunk, 2 * chunk + half, 3 * chunk } };
    for (int i = 0; i < 4; i++) {
        from[i] = (struct piece){ sent + (size_t)i * chunk, real, chunk };
        bytes_fill(from[i].at, real, (uint64_t)i);
    }
    struct transfer x[2] = {
        { .name = { 0, chunk }, .peer = next_of(me), .is_send = true, .pieces = from, .piece_count = 4 },
        { .name = { 0, chunk }, .peer = before(me), .pieces = to, .piece_count = 2 },
    };
    router_post(me->router, &x[0]);
    router_post(me->router, &x[1]);
    rank_await(me, x, 2);
    REQUIRE(x[0].state == TRANSFER_DONE && x[1].state == TRANSFER_DONE);
    for (size_t i = 0; i < 4; i++) REQUIRE(bytes_are(got + i * chunk, i % 3 ? real : half, i));
    for (size_t i = half; i < chunk; i++) REQUIRE(got[i] == 0xee && got[3 * chunk + i] == 0xee);
    free(sent);
    free(got);
}
static void padding_is_skipped_on_both_sides(struct rank *me)
{
    static const size_t chunks[] = { 8, 400, 1024, 20000, 300000 };
    for (int i = 0; i < 5; i++) padded(me, chunks[i]);
}
/* The sender has 700 pieces of 0 to 776 bytes, the receiver has two. */
static void pieces_are_cut_differently(struct rank *me)
{
    enum { PIECES = 700 };
    struct piece from[PIECES], whole[2];
    size_t n = 0;
    unsigned char *sent = buffer(PIECES * 800), *got = buffer(PIECES * 800);
    for (int i = 0; i < PIECES; i++) {
        size_t bytes = (size_t)(i * i) % 777;
        from[i] = (struct piece){ sent + n, bytes, bytes };
        n += bytes;
    }
    whole[0] = (struct piece){ got, 1001, 1001 };
    whole[1] = (struct piece){ got + 1001, n - 1001, n - 1001 };
    bytes_fill(sent, n, 3);
    struct transfer x[2] = {
        { .name = { 0, 1 }, .peer = next_of(me), .is_send = true, .pieces = from, .piece_count = PIECES },
        { .name = { 0, 1 }, .peer = before(me), .pieces = whole, .piece_count = 2 },
    };
    router_post(me->router, &x[0]);
    router_post(me->router, &x[1]);
    rank_await(me, x, 2);
    REQUIRE(bytes_are(got, n, 3) && got[n] == 0xee);
    free(sent);
    free(got);
}

/* ---- mismatch ---- */
/* The receive fails, and reports the sender's bytes. The send fails too, and reports the receiver's bytes, unless it
   was eager and had completed before. */
static void bytes_that_differ(struct rank *me)
{
    static const size_t pairs[][2] = { { 10, 11 }, { 11, 0 }, { 0, 5 }, { 3000, 10 }, { 100000, 10 }, { 10, 100000 },
        { 100001, 100000 } };
    unsigned char *sent = buffer(200000), *got = buffer(200000);
    for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
        for (int late = 0; late < 2; late++) {
            struct transfer out, in;
            struct piece of_out, of_in;
            if (late) rank_send(me, &out, next_of(me), k, &of_out, sent, pairs[k][0]);
            if (late) rank_meet(me);
            rank_recv(me, &in, before(me), k, &of_in, got, pairs[k][1]);
            if (!late) rank_meet(me);
            if (!late) rank_send(me, &out, next_of(me), k, &of_out, sent, pairs[k][0]);
            rank_await(me, &in, 1);
            rank_await(me, &out, 1);
            REQUIRE(in.state == TRANSFER_FAILED && in.status == TUTTI_MISMATCH && in.peer_bytes == pairs[k][0]
                && in.source == before(me));
            REQUIRE(out.state == TRANSFER_DONE ? pairs[k][0] <= MOST_EAGER
                                               : out.status == TUTTI_MISMATCH && out.peer_bytes == pairs[k][1]);
            REQUIRE(got[0] == 0xee);
        }
    free(sent);
    free(got);
    exchange(me, 100000, true);
}
/* Messages of every size meet a receive of another type, which reports the sender's type; the send reports that of the
   receive, unless it has completed before. */
static void types_that_differ(struct rank *me)
{
    unsigned char *sent = buffer(200000), *got = buffer(200000);
    static const size_t lengths[] = { 0, 8, 3000, 100000, 200000 };
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (int late = 0; late < 2; late++) {
            struct piece from = piece_whole(sent, lengths[k]), to = piece_whole(got, lengths[k]);
            struct transfer out = { .name = message_name_of_user((uint32_t)k, TUTTI_INT32), .peer = next_of(me) };
            struct transfer in = { .name = message_name_of_user((uint32_t)k, TUTTI_FLOAT32), .peer = before(me) };
            out.is_send = true;
            out.pieces = &from;
            in.pieces = &to;
            out.piece_count = in.piece_count = 1;
            router_post(me->router, late ? &out : &in);
            rank_meet(me);
            router_post(me->router, late ? &in : &out);
            rank_await(me, &in, 1);
            rank_await(me, &out, 1);
            REQUIRE(in.state == TRANSFER_FAILED && in.status == TUTTI_MISMATCH && in.peer_dtype == TUTTI_INT32);
            REQUIRE(in.peer_bytes == lengths[k] && in.source == before(me));
            REQUIRE(out.state == TRANSFER_DONE ? lengths[k] <= MOST_EAGER
                                               : out.status == TUTTI_MISMATCH && out.peer_dtype == TUTTI_FLOAT32);
            REQUIRE(got[0] == 0xee);
        }
    free(sent);
    free(got);
    exchange(me, 100000, true);
}

/* ---- oneself ---- */
static void to_oneself(struct rank *me)
{
    for (int i = 0; i < SIZES; i++)
        for (int late = 0; late < 2; late++) {
            struct transfer out, in;
            struct piece of_out, of_in;
            unsigned char *sent = buffer(sizes[i]), *got = buffer(sizes[i]);
            bytes_fill(sent, sizes[i], (uint64_t)i);
            if (late) rank_recv(me, &in, TRANSFER_ANY_PEER, 9, &of_in, got, sizes[i]);
            rank_send(me, &out, me->rank, 9, &of_out, sent, sizes[i]);
            if (!late) rank_recv(me, &in, me->rank, 9, &of_in, got, sizes[i]);
            rank_await(me, &out, 1);
            rank_await(me, &in, 1);
            REQUIRE(in.state == TRANSFER_DONE && in.source == me->rank && bytes_are(got, sizes[i], (uint64_t)i));
            free(sent);
            free(got);
        }
}

/* ---- cancelling ---- */
static void cancel(struct rank *me, struct transfer *x)
{
    while (x->state == TRANSFER_POSTED && !router_cancel(me->router, x)) router_poll(me->router);
    REQUIRE(x->state != TRANSFER_POSTED);
}
static void a_cancelled_receive_takes_nothing(struct rank *me)
{
    struct transfer in[3];
    struct piece pieces[3];
    unsigned char got[3][8];
    memset(got, 0xee, sizeof got);
    for (int i = 0; i < 3; i++)
        rank_recv(me, &in[i], i == 2 ? TRANSFER_ANY_PEER : before(me), 8, &pieces[i], got[i], 8);
    cancel(me, &in[0]);
    cancel(me, &in[2]);
    rank_meet(me);
    struct transfer out;
    struct piece of_out;
    rank_send(me, &out, next_of(me), 8, &of_out, "abcdefgh", 8);
    rank_await(me, &in[1], 1);
    rank_await(me, &out, 1);
    REQUIRE(in[1].state == TRANSFER_DONE && memcmp(got[1], "abcdefgh", 8) == 0);
    REQUIRE(got[0][0] == 0xee && got[2][0] == 0xee);
}
static void a_cancelled_send_is_not_received(struct rank *me)
{
    struct transfer out, in;
    struct piece of_out, of_in;
    unsigned char *sent = buffer(100000), *got = buffer(100000);
    rank_send(me, &out, next_of(me), 8, &of_out, sent, 100000);
    while (!rank_keeps(me, before(me), 8)) rank_poll(me);
    rank_meet(me);
    cancel(me, &out);
    /* The receiver keeps the message until the withdrawal has arrived. */
    while (rank_keeps(me, before(me), 8)) rank_poll(me);
    rank_recv(me, &in, before(me), 8, &of_in, got, 90000);
    rank_meet(me);
    REQUIRE(in.state == TRANSFER_POSTED);
    rank_meet(me);
    bytes_fill(sent, 90000, 4);
    rank_send(me, &out, next_of(me), 8, &of_out, sent, 90000);
    rank_await(me, &in, 1);
    rank_await(me, &out, 1);
    REQUIRE(in.state == TRANSFER_DONE && bytes_are(got, 90000, 4));
    free(sent);
    free(got);
}
/* After 0 to 7 polls each rank cancels a large send and a large receive, even and odd ranks in different order. The
   next messages arrive whole. */
static void cancelling_midway_harms_no_later_message(struct rank *me)
{
    enum { LARGE = 3 << 20 };
    unsigned char *sent = buffer(LARGE), *got = buffer(LARGE);
    bytes_fill(sent, LARGE, 6);
    for (int polls = 0; polls < 8; polls++) {
        struct transfer out, in;
        struct piece of_out, of_in;
        rank_send(me, &out, next_of(me), 3, &of_out, sent, LARGE);
        rank_recv(me, &in, before(me), 3, &of_in, got, LARGE);
        for (int i = 0; i < polls; i++) router_poll(me->router);
        cancel(me, polls % 2 == me->rank % 2 ? &out : &in);
        struct transfer *rest = polls % 2 == me->rank % 2 ? &in : &out;
        rank_meet(me);
        cancel(me, rest);
        rank_meet(me);
        exchange(me, 400000, polls & 2);
    }
    free(sent);
    free(got);
}

/* ---- credit ---- */
/* While no rank receives a flood of messages, only as many of its sends complete as the credit allows. The others wait
   at their sender, and a message of another name passes them. Then all arrive in order. */
static void a_flood_is_bounded(struct rank *me)
{
    enum { FLOOD = 800, BYTES = 500, MOST = MOST_CREDIT / BYTES };
    struct transfer *out = calloc(2 * FLOOD, sizeof *out), *in = out + FLOOD, passing[2];
    struct piece *pieces = calloc(2 * FLOOD, sizeof *pieces), piece[2];
    unsigned char *sent = buffer(FLOOD * BYTES), *got = buffer(FLOOD * BYTES), msg[2] = { 1, 0 };
    int over = 0;
    for (int k = 0; k < FLOOD; k++) {
        bytes_fill(sent + k * BYTES, BYTES, (uint64_t)(k + me->rank));
        rank_send(me, &out[k], next_of(me), 1, &pieces[k], sent + k * BYTES, BYTES);
        router_poll(me->router);
    }
    rank_send(me, &passing[0], next_of(me), 2, &piece[0], &msg[0], 1);
    rank_recv(me, &passing[1], before(me), 2, &piece[1], &msg[1], 1);
    rank_await(me, passing, 2);
    REQUIRE(msg[1] == 1);
    for (int k = 0; k < FLOOD; k++) over += out[k].state == TRANSFER_DONE;
    REQUIRE(over <= MOST);
    rank_meet(me);
    for (int k = 0; k < FLOOD; k++) rank_recv(me, &in[k], before(me), 1, &pieces[FLOOD + k], got + k * BYTES, BYTES);
    rank_await(me, out, 2 * FLOOD);
    for (int k = 0; k < FLOOD; k++) REQUIRE(bytes_are(got + k * BYTES, BYTES, (uint64_t)(k + before(me))));
    free(sent);
    free(got);
    free(pieces);
    free(out);
}

/* ---- a peer that is gone ---- */
/* Transfers with the last rank that rank 0 has posted before the loss, at any stage, or posts afterwards, fail with a
   reason. A receive from any peer still takes a message of another rank. */
void the_last_rank_goes(struct rank *me)
{
    enum { LARGE = 200000 };
    struct transfer x[6], other;
    struct piece pieces[6], of_other;
    unsigned char *data = buffer(6 * LARGE), last = (unsigned char)me->rank, first = 0xee;
    int gone = me->size - 1;
    if (me->rank == 0) {
        /* The last rank posts no other end of x[0] and x[1]. */
        rank_send(me, &x[0], gone, 1, &pieces[0], data, LARGE);
        rank_recv(me, &x[1], gone, 2, &pieces[1], data + LARGE, LARGE);
        rank_send(me, &x[2], gone, 3, &pieces[2], data + 2 * LARGE, LARGE);
        rank_recv(me, &x[3], gone, 4, &pieces[3], data + 3 * LARGE, LARGE);
        rank_recv(me, &other, TRANSFER_ANY_PEER, 5, &of_other, &first, 1);
    } else if (me->rank == gone) {
        rank_recv(me, &x[0], 0, 3, &pieces[0], data, LARGE);
        rank_send(me, &x[1], 0, 4, &pieces[1], data + LARGE, LARGE);
        /* Rank 0 posts the receive of this message only after the loss. */
        rank_send(me, &x[2], 0, 6, &pieces[2], data + 2 * LARGE, LARGE);
        for (int n = 0; n < 5; n++) router_poll(me->router);
    }
    rank_meet(me);
    if (me->rank == 0) {
        router_lose_peer(me->router, gone, status_fail(TUTTI_PEER_LOST, "rank %d has left", gone));
        rank_send(me, &x[4], gone, 1, &pieces[4], data, 8);
        rank_recv(me, &x[5], gone, 6, &pieces[5], data, LARGE);
        for (int k = 0; k < 6; k++) {
            /* x[2] and x[3] may have completed before the loss. x[0] completes if the last rank releases the announced
               message when it loses rank 0. */
            if (x[k].state == TRANSFER_DONE && (k == 0 || k == 2 || k == 3)) continue;
            bool failed = x[k].state == TRANSFER_FAILED && x[k].status == TUTTI_PEER_LOST;
            /* The last rank may have withdrawn its send to x[3] before. */
            failed |= k == 3 && x[k].status == TUTTI_ABORTED;
            if (!failed) fprintf(stderr, "transfer %d: state %d, status %d\n", k, (int)x[k].state, (int)x[k].status);
            REQUIRE(failed);
        }
        REQUIRE(strstr(me->router->reason, "has left"));
    } else if (me->rank == gone)
        for (int k = 0; k < 3; k++)
            if (x[k].state == TRANSFER_POSTED) router_lose_peer(me->router, 0, TUTTI_PEER_LOST);
    rank_meet(me);
    if (me->rank == 1) rank_send(me, &other, 0, 5, &of_other, &last, 1);
    if (me->rank < 2) rank_await(me, &other, 1);
    if (me->rank == 0) REQUIRE(other.state == TRANSFER_DONE && other.source == 1 && first == 1);
    free(data);
}

/* ---- all of it ---- */
static body *const bodies[] = {
    order_within_a_name,
    names_are_independent,
    every_size_posted_before,
    every_size_posted_after,
    any_peer,
    many_at_once_in_any_order,
    padding_is_skipped_on_both_sides,
    pieces_are_cut_differently,
    bytes_that_differ,
    types_that_differ,
    to_oneself,
    a_cancelled_receive_takes_nothing,
    a_cancelled_send_is_not_received,
    cancelling_midway_harms_no_later_message,
    a_flood_is_bounded,
};
void the_contract(struct rank *me)
{
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        bodies[i](me);
        rank_meet(me);
    }
}
