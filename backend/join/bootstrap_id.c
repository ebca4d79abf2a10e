/* Forms a group by a unique id. The name of a socket and a key follow from the id. Rank 0 listens on the socket, and
 * every other rank connects. Both prove that they know the id (processes/handshake.h), and the rank sends its record.
 * Rank 0 answers all ranks with one result, when all have come or one cannot join.
 *
 * Rank 0 has a place for each rank and a few more. A client that sends no record within two seconds loses its place. So
 * does a silent client when all places are taken. Rank 0 first reads what the client has sent, because rank 0 may have
 * been stopped meanwhile. A client that has received the result gives up its place. */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/host/socket.h"
#include "backend/join/bootstrap.h"
#include "backend/join/join_result.h"
#include "backend/processes/handshake.h"
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { HELLO_MS = 2000, MOST_UNKNOWN = 16, RECORDS_PER_MESSAGE = 64, LONGEST_PAUSE_MS = 50 };
static const char magic[8] = "tutti-i";

/* Where the ranks meet. The name of the socket is the first 16 bytes of `name`. */
struct id_names { unsigned char name[SHA256_BYTES]; struct key_id key; };
void unique_id_derive(const tutti_unique_id *id, unsigned char name[SHA256_BYTES], unsigned char key[KEY_BYTES])
{
    hmac_sha256(id->bytes, sizeof id->bytes, "tutti id name", 13, name);
    hmac_sha256(id->bytes, sizeof id->bytes, "tutti id key", 12, key);
}

/* ---- messages ---- */
/* The first message of a rank after the handshake. */
struct id_introduction {
    char magic[8];
    int32_t rank;
    uint32_t unused;
    struct member member;
};
static void sleep_ms(int64_t ms) { nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL); }
/* Returns false at the deadline. */
static bool socket_await_ready(int socket, short events, int64_t deadline_ms)
{
    struct pollfd one = { .fd = socket, .events = events };
    poll(&one, 1, (int)deadline_remaining_ms(deadline_ms));
    return clock_ms() < deadline_ms;
}
/* Returns 0 or -errno. */
static int socket_send_all(int socket, const void *message, size_t bytes, int64_t deadline_ms)
{
    int error;
    while ((error = socket_send(socket, message, bytes, -1)) == -EAGAIN)
        if (!socket_await_ready(socket, POLLOUT, deadline_ms)) return -ETIMEDOUT;
    return error;
}
/* Returns the number of bytes, or -errno. */
static int socket_receive_one(int socket, void *message, size_t bytes, int64_t deadline_ms)
{
    int got;
    while ((got = socket_receive(socket, message, bytes, NULL)) == -EAGAIN)
        if (!socket_await_ready(socket, POLLIN, deadline_ms)) return -ETIMEDOUT;
    return got;
}
static size_t message_record_bytes(uint32_t size, uint32_t first)
{
    return (size - first < RECORDS_PER_MESSAGE ? size - first : RECORDS_PER_MESSAGE) * sizeof(struct member);
}

/* ---- rank 0 ---- */
struct client {
    /* The rank is 0 until the client has sent its record. */
    int socket, rank;
    int64_t until_ms;
    /* The client has proved that it knows the id. */
    bool proved;
    struct handshake handshake;
};
struct server {
    const struct member *mine;
    const struct id_names *point;
    struct member *table;
    int listener, count, room;
    /* `awaited` is the largest group size in any record. */
    uint32_t joined, awaited;
    /* NULL until rank 0 has decided. Later clients only receive the decision. */
    const struct join_reply *decided;
    struct client *clients;
    /* One entry for each client, then one for the listener. */
    struct pollfd *polls;
};
static void server_drop_client(struct server *r, int index)
{
    close(r->clients[index].socket);
    r->clients[index] = r->clients[--r->count];
}
static void join_reply_send(int socket, const struct join_reply *reply, int64_t until_ms)
{
    const struct join_result *result = &reply->result;
    int error = socket_send_all(socket, result, sizeof *result, until_ms);
    for (uint32_t q = 0; result->status == TUTTI_OK && !error && q < result->size; q += RECORDS_PER_MESSAGE)
        error = socket_send_all(socket, &reply->table[q], message_record_bytes(result->size, q), until_ms);
}
/* Sends the result to the ranks and closes their connections. */
static void server_send_replies(struct server *r, const struct join_reply *reply)
{
    /* One deadline for all clients limits the wait for stopped ones. */
    int64_t until_ms = clock_ms() + GRACE_MS;
    for (int i = r->count - 1; i >= 0; i--) {
        if (!r->clients[i].rank) continue;
        join_reply_send(r->clients[i].socket, reply, until_ms);
        server_drop_client(r, i);
    }
}
static tutti_status server_add_rank(struct server *r, struct client *client, const struct id_introduction *said)
{
    const struct member *theirs = &said->member;
    struct member *seat = (uint32_t)said->rank < r->mine->size ? &r->table[said->rank] : NULL;
    bool taken = seat && member_has_come(seat);
    client->rank = said->rank;
    r->joined += !taken;
    if (theirs->size > r->awaited) r->awaited = theirs->size;
    if (seat && !taken) member_copy_record(seat, theirs);
    if (r->decided) return TUTTI_OK;
    TRY(member_check_match(r->mine, said->rank, theirs));
    if (taken)
        return status_fail(TUTTI_INVALID_ARGUMENT, "two processes have joined %s as rank %d: processes %llu and %llu",
            r->mine->group, said->rank, (unsigned long long)seat->identity.pid,
            (unsigned long long)theirs->identity.pid);
    return TUTTI_OK;
}
static tutti_status server_fail_rank_left(const struct server *r, int rank)
{
    char ranks[256];
    members_list_absent(r->table, r->mine->size, ranks, sizeof ranks);
    return status_fail(TUTTI_PEER_LOST, "rank %d (process %llu) died or gave up while %s waited for %s of %u", rank,
        (unsigned long long)r->table[rank].identity.pid, r->mine->group, ranks, r->mine->size);
}
/* Returns true for the record of a rank. A rank out of range counts if its record has another group size. */
static bool server_accepts_introduction(const struct server *r, int bytes, const struct id_introduction *said)
{
    if (bytes != (int)sizeof *said || memcmp(said->magic, magic, sizeof magic) != 0) return false;
    if (said->rank <= 0 || !member_has_come(&said->member)) return false;
    return (uint32_t)said->rank < r->mine->size || said->member.size != r->mine->size;
}
/* Returns 1 if the client has now proved that it knows the id, 0 if not yet, or -errno. */
static int client_advance_handshake(const struct server *r, struct client *client)
{
    int got = handshake_receive_hello(&client->handshake, r->point->name, client->socket);
    if (got <= 0) return got;
    int error = handshake_send_answer(&client->handshake, HANDSHAKE_WELCOME, 0, client->socket);
    client->proved = !error;
    client->until_ms = clock_ms() + HELLO_MS;
    return error ? error : 1;
}
/* Reads from a client. `last` drops a client that still has sent no message. */
static tutti_status server_receive_from_client(struct server *r, int index, bool last)
{
    struct id_introduction said;
    struct client *client = &r->clients[index];
    if (!client->proved) {
        int proved = client_advance_handshake(r, client);
        if (proved < 0 || (proved == 0 && last)) server_drop_client(r, index);
        if (proved <= 0) return TUTTI_OK;
        last = false;
    }
    int got = socket_receive(client->socket, &said, sizeof said, NULL);
    if (got == -EAGAIN && !last) return TUTTI_OK;
    /* A rank that has sent its record has no more to send, so this is the end of its connection. */
    if (client->rank) return server_fail_rank_left(r, client->rank);
    if (server_accepts_introduction(r, got, &said)) {
        TRY(server_add_rank(r, client, &said));
        if (!r->decided) return TUTTI_OK;
        join_reply_send(client->socket, r->decided, clock_ms() + GRACE_MS);
    }
    server_drop_client(r, index);
    return TUTTI_OK;
}
/* Drops a client that is not a rank if all places are taken. There are more places than ranks, so one can be found. */
static tutti_status server_make_room(struct server *r)
{
    for (int i = r->count - 1; i >= 0 && r->count == r->room; i--)
        if (!r->clients[i].rank) TRY(server_receive_from_client(r, i, true));
    return TUTTI_OK;
}
static tutti_status server_accept_client(struct server *r)
{
    TRY(server_make_room(r));
    assert(r->count < r->room);
    int socket = socket_accept(r->listener);
    if (socket >= 0) {
        struct client *client = &r->clients[r->count];
        *client = (struct client){ .socket = socket, .until_ms = clock_ms() + HELLO_MS };
        if (handshake_send_opening(&client->handshake, magic, socket) == 0) r->count++;
        else close(socket);
        /* Without free descriptors the listener stays ready, so the loop pauses. */
    } else if (socket != -EAGAIN && socket != -EPERM) sleep_ms(1);
    return TUTTI_OK;
}
static void server_poll(struct server *r, int64_t deadline_ms)
{
    int64_t until_ms = deadline_ms;
    for (int i = 0; i < r->count; i++) {
        r->polls[i] = (struct pollfd){ .fd = r->clients[i].socket, .events = POLLIN };
        if (!r->clients[i].rank && r->clients[i].until_ms < until_ms) until_ms = r->clients[i].until_ms;
    }
    r->polls[r->count] = (struct pollfd){ .fd = r->listener, .events = POLLIN };
    if (poll(r->polls, (nfds_t)r->count + 1, (int)deadline_remaining_ms(until_ms)) < 0)
        for (int i = 0; i <= r->count; i++) r->polls[i].revents = 0;
}
static tutti_status server_receive_all(struct server *r, int64_t deadline_ms)
{
    while (r->joined < r->awaited) {
        server_poll(r, deadline_ms);
        bool more = r->polls[r->count].revents != 0;
        /* The loop runs backwards, because the last client takes the place of a dismissed one. */
        for (int i = r->count - 1; i >= 0; i--) {
            bool last = !r->clients[i].rank && r->clients[i].until_ms <= clock_ms();
            if (r->polls[i].revents || last) TRY(server_receive_from_client(r, i, last));
        }
        if (more) TRY(server_accept_client(r));
        if (r->joined < r->awaited && clock_ms() >= deadline_ms)
            return r->decided ? TUTTI_OK : members_fail_absent(r->mine, r->table);
    }
    return TUTTI_OK;
}
/* Sends the result to the connected ranks. An error also goes to the ranks that connect within GRACE_MS. */
static void server_send_decision(struct server *r, tutti_status status, struct join_reply *reply)
{
    join_reply_decide(reply, status, r->mine->size);
    server_send_replies(r, reply);
    r->decided = reply;
    if (r->listener >= 0 && status != TUTTI_OK && status != TUTTI_TIMEOUT) server_receive_all(r, clock_ms() + GRACE_MS);
}
static tutti_status id_run_rank0(const struct id_names *point, const struct member *mine, int64_t deadline_ms,
    struct join_reply *reply)
{
    struct server r = { .mine = mine, .point = point, .table = reply->table, .joined = 1, .awaited = mine->size };
    r.room = (int)mine->size + MOST_UNKNOWN;
    reply->table[0] = *mine;
    r.clients = memory_alloc_zeroed((size_t)r.room, sizeof *r.clients);
    r.polls = memory_alloc_zeroed((size_t)r.room + 1, sizeof *r.polls);
    r.listener = r.clients && r.polls ? socket_listen("id", point->name) : -ENOMEM;
    tutti_status status;
    if (r.listener == -EADDRINUSE)
        status = status_fail(TUTTI_INVALID_ARGUMENT,
            "another process is rank 0 of %s, or its unique id is used twice at a time", mine->group);
    else if (r.listener < 0)
        status = status_fail(TUTTI_SYSTEM, "rank 0 cannot listen for %s: %s", mine->group, strerror(-r.listener));
    else status = server_receive_all(&r, deadline_ms);
    server_send_decision(&r, status, reply);
    while (r.count) server_drop_client(&r, 0);
    if (r.listener >= 0) close(r.listener);
    free(r.clients);
    free(r.polls);
    return status;
}

/* ---- the other ranks ---- */
/* Returns a socket, or -errno. */
static int id_connect_until(const struct id_names *point, int64_t deadline_ms)
{
    for (int64_t longest_ms = 1;; longest_ms = longest_ms * 2 < LONGEST_PAUSE_MS ? longest_ms * 2 : LONGEST_PAUSE_MS) {
        int socket = socket_connect("id", point->name);
        if (socket != -ECONNREFUSED && socket != -EAGAIN) return socket;
        if (clock_ms() >= deadline_ms) return -ETIMEDOUT;
        /* A varying pause spreads the attempts of the ranks. */
        sleep_ms(1 + clock_ns() % longest_ms);
    }
}
static tutti_status id_explain_error(const struct member *mine, int error)
{
    const char *group = mine->group;
    unsigned size = mine->size;
    if (error == 0 || error == -EPIPE || error == -EMSGSIZE || error == -ECONNRESET || error == -EPROTO)
        return status_fail(TUTTI_PEER_LOST,
            "rank 0 of %u closed its connection while %s was formed: it has died, or it runs another version of tutti",
            size, group);
    if (error == -ETIMEDOUT)
        return status_fail(TUTTI_TIMEOUT,
            "rank 0 of %u has joined %s, but within %lld ms has not announced the other ranks: it joined late and "
            "still waits, or it is stopped",
            size, group, (long long)mine->timeout_ms);
    return status_fail(TUTTI_SYSTEM, "rank 0 of %u of %s cannot be reached: %s", size, group,
        error == -EPERM ? "it runs as another user" : strerror(-error));
}
static tutti_status id_receive_result(int socket, const struct member *mine, int64_t deadline_ms,
    struct join_reply *found)
{
    int got = socket_receive_one(socket, &found->result, sizeof found->result, deadline_ms);
    if (got != (int)sizeof found->result) return id_explain_error(mine, got > 0 ? -EMSGSIZE : got);
    TRY(join_result_apply(&found->result, mine));
    for (uint32_t q = 0; q < mine->size; q += RECORDS_PER_MESSAGE) {
        size_t bytes = message_record_bytes(mine->size, q);
        got = socket_receive_one(socket, &found->table[q], bytes, deadline_ms);
        if (got != (int)bytes) return id_explain_error(mine, got > 0 ? -EMSGSIZE : got);
    }
    return TUTTI_OK;
}
/* Makes both ends prove that they know the id. Returns 0 or -errno. */
static int id_run_handshake(const struct id_names *point, const struct member *mine, int socket, int64_t deadline_ms)
{
    struct handshake h;
    int got;
    handshake_begin(&h, magic);
    while ((got = handshake_receive_opening(&h, socket)) == 0)
        if (!socket_await_ready(socket, POLLIN, deadline_ms)) return -ETIMEDOUT;
    if (got > 0) got = handshake_send_hello(&h, &mine->identity, point->name, &point->key, 0, socket);
    if (got < 0) return got;
    while ((got = handshake_receive_answer(&h, socket)) == 0)
        if (!socket_await_ready(socket, POLLIN, deadline_ms)) return -ETIMEDOUT;
    return got < 0 ? got : 0;
}
static tutti_status id_join_rank0(const struct id_names *point, int rank, const struct member *mine,
    int64_t deadline_ms, struct join_reply *found)
{
    struct id_introduction say = { .rank = rank, .member = *mine };
    memcpy(say.magic, magic, sizeof magic);
    int socket = id_connect_until(point, deadline_ms);
    if (socket == -ETIMEDOUT)
        return status_fail(TUTTI_TIMEOUT,
            "rank 0 of %u has not joined %s within %lld ms; with a unique id all ranks must be on one host", mine->size,
            mine->group, (long long)mine->timeout_ms);
    if (socket < 0) return id_explain_error(mine, socket);
    int error = id_run_handshake(point, mine, socket, deadline_ms);
    if (!error) error = socket_send_all(socket, &say, sizeof say, deadline_ms);
    deadline_ms = deadline_add_ms(deadline_ms, GRACE_MS);
    tutti_status status = error ? id_explain_error(mine, error) : id_receive_result(socket, mine, deadline_ms, found);
    close(socket);
    return status;
}
tutti_status bootstrap_id(const tutti_unique_id *id, int rank, const struct member *mine, int64_t deadline_ms,
    struct member *table, struct key_id *key)
{
    struct id_names point;
    struct member placed = *mine;
    unsigned char drawn[KEY_BYTES];
    unique_id_derive(id, point.name, drawn);
    TRY(group_key_add(drawn, &point.key));
    /* The socket reaches only ranks of one host, so its name can be the host's token. */
    memcpy(placed.host_token, point.name, sizeof placed.host_token);
    struct join_reply *reply = join_reply_create(mine);
    if (!reply) return TUTTI_NO_MEMORY;
    tutti_status status = rank == 0 ? id_run_rank0(&point, &placed, deadline_ms, reply)
                                    : id_join_rank0(&point, rank, &placed, deadline_ms, reply);
    if (status == TUTTI_OK) status = join_reply_accept(reply, rank, &placed, table);
    *key = point.key;
    free(reply);
    return status;
}
