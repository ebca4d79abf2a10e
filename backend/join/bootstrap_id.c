/* Forms a group by a unique id. The name of a socket and a key follow from the id. Rank 0 listens on the socket, and
 * every other rank connects. Both prove that they know the id (processes/handshake.h), and the rank sends its record.
 * Rank 0 answers all ranks with one result, when all have come or one cannot join. If the group has formed, the table
 * of members follows: its file (host_table.h), or, if the table is small or the file cannot be sent, its records.
 *
 * Rank 0 has a place for each rank and a few more. A client loses its place if it sends no hello within two seconds,
 * or no record within two seconds after it. So does a silent client when all places are taken. Rank 0 first reads
 * what the client has sent, because rank 0 may have been stopped meanwhile. A client that has the result gives up
 * its place. */
#include "backend/base/clock.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/host/socket.h"
#include "backend/join/bootstrap.h"
#include "backend/join/join_result.h"
#include "backend/join/member_table.h"
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

/* The values that follow from a unique id: the name of rank 0's socket, which is the first 16 bytes of `name`, and the
   id of the group's key. */
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
/* The message with the file of the table. The token is that of rank 0. */
struct id_table { char magic[8]; unsigned char token[16]; };
static_assert(sizeof(struct id_table) % sizeof(struct member) != 0, "it differs from a message of records");
/* The answer of rank 0: a result and, if the group has formed, the table and its file (-1: none). */
struct join_reply { struct join_result result; const struct member *table; int descriptor; };
static void sleep_ms(int64_t ms) { nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL); }
/* Waits until the socket is ready for these events of poll. Returns false at the deadline. */
static bool socket_await_ready(int socket, short events, int64_t deadline_ms)
{
    struct pollfd one = { .fd = socket, .events = events };
    poll(&one, 1, (int)deadline_remaining_ms(deadline_ms));
    return clock_ms() < deadline_ms;
}
/* Sends a message, with a descriptor unless that is -1, and waits for room if needed. Returns 0 or -errno. */
static int socket_send_all(int socket, const void *message, size_t bytes, int descriptor, int64_t deadline_ms)
{
    int error;
    while ((error = socket_send(socket, message, bytes, descriptor)) == -EAGAIN)
        if (!socket_await_ready(socket, POLLOUT, deadline_ms)) return -ETIMEDOUT;
    return error;
}
/* Waits for a message and receives it, and its descriptor (socket_receive). Returns the number of bytes, 0 at the
   end of the connection, or -errno. */
static int socket_receive_one(int socket, void *message, size_t bytes, int *descriptor, int64_t deadline_ms)
{
    int got;
    while ((got = socket_receive(socket, message, bytes, descriptor)) == -EAGAIN)
        if (!socket_await_ready(socket, POLLIN, deadline_ms)) return -ETIMEDOUT;
    return got;
}
/* Returns the bytes of the message with the records from rank `first` on, of a table of `size` records. */
static size_t message_record_bytes(uint32_t size, uint32_t first)
{
    return (size - first < RECORDS_PER_MESSAGE ? size - first : RECORDS_PER_MESSAGE) * sizeof(struct member);
}

/* ---- rank 0 ---- */
/* A connection to rank 0. */
struct client {
    /* The rank is 0 until the client has sent its record. */
    int socket, rank;
    /* The limit of the time for the client's next message. */
    int64_t until_ms;
    /* The client has proved that it knows the id. */
    bool proved;
    struct handshake handshake;
};
/* Rank 0 while it collects the records. */
struct server {
    const struct member *mine;
    const struct id_names *names;
    /* The records that have come, until rank 0 has decided. */
    struct member *table;
    /* The number of clients, and of places for clients. */
    int listener, count, room;
    /* The number of ranks whose record has come, rank 0 included, and the largest group size in any record. */
    uint32_t joined, awaited;
    /* NULL until rank 0 has decided. Later clients only receive the decision. */
    const struct join_reply *decision;
    struct client *clients;
    /* One entry for each client, then one for the listener. */
    struct pollfd *polls;
};
/* Closes the connection of a client. The last client takes its place in the array. */
static void server_drop_client(struct server *server, int index)
{
    close(server->clients[index].socket);
    server->clients[index] = server->clients[--server->count];
}
/* Sends the file of the table. Returns false if it cannot be sent, for example because too many descriptors are on
   their way between processes of this user. */
static bool join_reply_send_file(int socket, const struct join_reply *reply, int64_t until_ms)
{
    struct id_table message;
    if (reply->descriptor < 0) return false;
    memcpy(message.magic, magic, sizeof magic);
    memcpy(message.token, reply->table->token, sizeof message.token);
    return socket_send_all(socket, &message, sizeof message, reply->descriptor, until_ms) == 0;
}
/* Sends the result to a client, and the table of members if the group has formed. An error is ignored. */
static void join_reply_send(int socket, const struct join_reply *reply, int64_t until_ms)
{
    const struct join_result *result = &reply->result;
    int error = socket_send_all(socket, result, sizeof *result, -1, until_ms);
    if (error || result->status != TUTTI_OK || join_reply_send_file(socket, reply, until_ms)) return;
    for (uint32_t first = 0; !error && first < result->size; first += RECORDS_PER_MESSAGE)
        error = socket_send_all(socket, &reply->table[first], message_record_bytes(result->size, first), -1, until_ms);
}
/* Sends the result to the ranks and closes their connections. */
static void server_send_replies(struct server *server, const struct join_reply *reply)
{
    /* One deadline for all clients limits the wait for stopped ones. */
    int64_t until_ms = clock_ms() + GRACE_MS;
    for (int i = server->count - 1; i >= 0; i--) {
        if (!server->clients[i].rank) continue;
        join_reply_send(server->clients[i].socket, reply, until_ms);
        server_drop_client(server, i);
    }
}
/* Enters a client's record into the table. Fails if the record does not match rank 0's or the rank is taken. */
static tutti_status server_add_rank(struct server *server, struct client *client,
    const struct id_introduction *introduction)
{
    const struct member *theirs = &introduction->member;
    struct member *record =
        (uint32_t)introduction->rank < server->mine->size ? &server->table[introduction->rank] : NULL;
    bool is_taken = record && member_has_come(record);
    client->rank = introduction->rank;
    server->joined += !is_taken;
    if (theirs->size > server->awaited) server->awaited = theirs->size;
    if (record && !is_taken) member_copy_record(record, theirs);
    if (server->decision) return TUTTI_OK;
    TRY(member_check_match(server->mine, introduction->rank, theirs));
    if (is_taken)
        return status_fail(TUTTI_INVALID_ARGUMENT, "two processes have joined %s as rank %d: processes %llu and %llu",
            server->mine->group, introduction->rank, (unsigned long long)record->identity.pid,
            (unsigned long long)theirs->identity.pid);
    return TUTTI_OK;
}
/* Fails because a rank has closed its connection before the result. */
static tutti_status server_fail_rank_left(const struct server *server, int rank)
{
    char ranks[256];
    members_list_absent(server->table, server->mine->size, ranks, sizeof ranks);
    return status_fail(TUTTI_PEER_LOST, "rank %d (process %llu) died or gave up while %s waited for %s of %u", rank,
        (unsigned long long)server->table[rank].identity.pid, server->mine->group, ranks, server->mine->size);
}
/* Returns true if a message of `bytes` bytes is the introduction of a rank. A rank out of range counts if its record
   has another group size. */
static bool server_accepts_introduction(const struct server *server, int bytes,
    const struct id_introduction *introduction)
{
    if (bytes != (int)sizeof *introduction || memcmp(introduction->magic, magic, sizeof magic) != 0) return false;
    if (introduction->rank <= 0 || !member_has_come(&introduction->member)) return false;
    return (uint32_t)introduction->rank < server->mine->size || introduction->member.size != server->mine->size;
}
/* Returns 1 if the client has now proved that it knows the id, 0 if not yet, or -errno. */
static int client_advance_handshake(const struct server *server, struct client *client)
{
    int got = handshake_receive_hello(&client->handshake, server->names->name, client->socket);
    if (got <= 0) return got;
    int error = handshake_send_answer(&client->handshake, HANDSHAKE_WELCOME, 0, client->socket);
    client->proved = !error;
    client->until_ms = clock_ms() + HELLO_MS;
    return error ? error : 1;
}
/* Handles the next message of a client. Drops the client if it is no rank, or with `is_last_chance` if it still has
   sent no message. Fails if a record does not match or a rank has left. */
static tutti_status server_receive_from_client(struct server *server, int index, bool is_last_chance)
{
    struct id_introduction introduction;
    struct client *client = &server->clients[index];
    if (!client->proved) {
        int proved = client_advance_handshake(server, client);
        if (proved < 0 || (proved == 0 && is_last_chance)) server_drop_client(server, index);
        if (proved <= 0) return TUTTI_OK;
        is_last_chance = false;
    }
    int got = socket_receive(client->socket, &introduction, sizeof introduction, NULL);
    if (got == -EAGAIN && !is_last_chance) return TUTTI_OK;
    /* A rank that has sent its record has no more to send, so this is the end of its connection. */
    if (client->rank) return server_fail_rank_left(server, client->rank);
    if (server_accepts_introduction(server, got, &introduction)) {
        TRY(server_add_rank(server, client, &introduction));
        if (!server->decision) return TUTTI_OK;
        join_reply_send(client->socket, server->decision, clock_ms() + GRACE_MS);
    }
    server_drop_client(server, index);
    return TUTTI_OK;
}
/* Drops a client that is not a rank if all places are taken. More places than ranks exist, so one can be found. */
static tutti_status server_make_room(struct server *server)
{
    for (int i = server->count - 1; i >= 0 && server->count == server->room; i--)
        if (!server->clients[i].rank) TRY(server_receive_from_client(server, i, true));
    return TUTTI_OK;
}
/* Accepts one connection and begins its handshake. */
static tutti_status server_accept_client(struct server *server)
{
    TRY(server_make_room(server));
    assert(server->count < server->room);
    int socket = socket_accept(server->listener);
    if (socket >= 0) {
        struct client *client = &server->clients[server->count];
        *client = (struct client){ .socket = socket, .until_ms = clock_ms() + HELLO_MS };
        if (handshake_send_opening(&client->handshake, magic, socket) == 0) server->count++;
        else close(socket);
        /* Without free descriptors the listener stays ready, so the loop pauses. */
    } else if (socket != -EAGAIN && socket != -EPERM) sleep_ms(1);
    return TUTTI_OK;
}
/* Polls all sockets until one is ready, a client's time is over, or the deadline passes. The result is in
   server->polls. */
static void server_poll(struct server *server, int64_t deadline_ms)
{
    int64_t until_ms = deadline_ms;
    for (int i = 0; i < server->count; i++) {
        server->polls[i] = (struct pollfd){ .fd = server->clients[i].socket, .events = POLLIN };
        if (!server->clients[i].rank && server->clients[i].until_ms < until_ms) until_ms = server->clients[i].until_ms;
    }
    server->polls[server->count] = (struct pollfd){ .fd = server->listener, .events = POLLIN };
    if (poll(server->polls, (nfds_t)server->count + 1, (int)deadline_remaining_ms(until_ms)) < 0)
        for (int i = 0; i <= server->count; i++) server->polls[i].revents = 0;
}
/* Accepts and reads clients until the records of all ranks have come. TIMEOUT names the missing ranks; after the
   decision the deadline is not an error. */
static tutti_status server_receive_all(struct server *server, int64_t deadline_ms)
{
    while (server->joined < server->awaited) {
        server_poll(server, deadline_ms);
        bool has_connection = server->polls[server->count].revents != 0;
        /* The loop runs backwards, because the last client takes the place of a dismissed one. */
        for (int i = server->count - 1; i >= 0; i--) {
            bool is_last_chance = !server->clients[i].rank && server->clients[i].until_ms <= clock_ms();
            if (server->polls[i].revents || is_last_chance) TRY(server_receive_from_client(server, i, is_last_chance));
        }
        if (has_connection) TRY(server_accept_client(server));
        if (server->joined < server->awaited && clock_ms() >= deadline_ms)
            return server->decision ? TUTTI_OK : members_fail_absent(server->mine, server->table);
    }
    return TUTTI_OK;
}
/* Sends the result to the connected ranks. An error also goes to the ranks that connect within GRACE_MS. */
static void server_send_decision(struct server *server, tutti_status status, struct join_reply *reply)
{
    join_result_decide(&reply->result, status, server->mine->size);
    server_send_replies(server, reply);
    server->decision = reply;
    if (server->listener >= 0 && status != TUTTI_OK && status != TUTTI_TIMEOUT)
        server_receive_all(server, clock_ms() + GRACE_MS);
}
/* Makes the table of a group that has formed, for this process and to be sent. */
static tutti_status server_make_table(struct server *server, int64_t deadline_ms, struct join_reply *reply,
    struct shared_table **out)
{
    const struct member_table_request request = {
        .host = { .first = server->mine, .mine = server->mine, .key = &server->names->key, .deadline_ms = deadline_ms }
    };
    struct member *members = server->table;
    members_make_printable(members, server->mine->size);
    /* All records have come. */
    server->table = NULL;
    TRY(member_table_create(&request, members, out, &reply->descriptor));
    reply->table = shared_table_data(*out);
    return TUTTI_OK;
}
/* Listens at the name of the id, and collects the records of all ranks. */
static tutti_status server_collect(struct server *server, int64_t deadline_ms)
{
    const char *group = server->mine->group;
    server->listener = server->clients && server->polls ? socket_listen("id", server->names->name) : -ENOMEM;
    if (server->listener == -EADDRINUSE)
        return status_fail(TUTTI_INVALID_ARGUMENT,
            "another process is rank 0 of %s, or its unique id is used twice at a time", group);
    if (server->listener < 0)
        return status_fail(TUTTI_SYSTEM, "rank 0 cannot listen for %s: %s", group, strerror(-server->listener));
    return server_receive_all(server, deadline_ms);
}
/* Rank 0's part of joining by a unique id: listens, collects the records, makes the table, decides, and answers all
   clients. */
static tutti_status id_run_rank0(const struct id_names *names, const struct member *mine, int64_t deadline_ms,
    struct shared_table **out)
{
    struct join_reply reply = { .descriptor = -1 };
    struct server server = {
        .mine = mine, .names = names, .table = members_create(mine), .joined = 1, .awaited = mine->size
    };
    if (!server.table) return TUTTI_NO_MEMORY;
    server.room = (int)mine->size + MOST_UNKNOWN;
    server.table[0] = *mine;
    server.clients = memory_alloc_zeroed((size_t)server.room, sizeof *server.clients);
    server.polls = memory_alloc_zeroed((size_t)server.room + 1, sizeof *server.polls);
    tutti_status status = server_collect(&server, deadline_ms);
    if (status == TUTTI_OK) status = server_make_table(&server, deadline_ms, &reply, out);
    server_send_decision(&server, status, &reply);
    while (server.count) server_drop_client(&server, 0);
    if (server.listener >= 0) close(server.listener);
    if (reply.descriptor >= 0) close(reply.descriptor);
    free(server.table);
    free(server.clients);
    free(server.polls);
    return status;
}

/* ---- the other ranks ---- */
/* Connects to rank 0's socket, which may not listen yet. Returns the connection, or -errno. */
static int id_connect_until(const struct id_names *names, int64_t deadline_ms)
{
    for (int64_t longest_ms = 1;; longest_ms = longest_ms * 2 < LONGEST_PAUSE_MS ? longest_ms * 2 : LONGEST_PAUSE_MS) {
        int socket = socket_connect("id", names->name);
        if (socket != -ECONNREFUSED && socket != -EAGAIN) return socket;
        if (clock_ms() >= deadline_ms) return -ETIMEDOUT;
        /* A varying pause spreads the attempts of the ranks. */
        sleep_ms(1 + clock_ns() % longest_ms);
    }
}
/* Fails with the meaning of an error of the connection to rank 0: a -errno, or 0 if it was closed. */
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
/* Receives the records of all members, of which the first message has arrived, and keeps them as the table. */
static tutti_status id_receive_records(int socket, const struct member *mine, const struct member *received,
    int64_t deadline_ms, struct shared_table **out)
{
    struct member *members = members_create(mine);
    if (!members) return TUTTI_NO_MEMORY;
    memcpy(members, received, message_record_bytes(mine->size, 0));
    for (uint32_t first = RECORDS_PER_MESSAGE; first < mine->size; first += RECORDS_PER_MESSAGE) {
        size_t bytes = message_record_bytes(mine->size, first);
        int got = socket_receive_one(socket, &members[first], bytes, NULL, deadline_ms);
        if (got == (int)bytes) continue;
        free(members);
        return id_explain_error(mine, got > 0 ? -EMSGSIZE : got);
    }
    members_make_printable(members, mine->size);
    return member_table_keep(members, out);
}
/* Receives the table of members, as a file or as records. If it cannot be kept, the other processes do not wait for
   this rank. */
static tutti_status id_receive_table(int socket, const struct member *mine, int64_t deadline_ms,
    struct shared_table **out)
{
    union { struct id_table file; struct member records[RECORDS_PER_MESSAGE]; } message;
    unsigned char token[sizeof message.file.token];
    int descriptor = -1, got = socket_receive_one(socket, &message, sizeof message, &descriptor, deadline_ms);
    bool is_file = got == (int)sizeof message.file && memcmp(message.file.magic, magic, sizeof magic) == 0;
    if (!is_file && descriptor >= 0) close(descriptor);
    if (!is_file && got != (int)message_record_bytes(mine->size, 0))
        return id_explain_error(mine, got > 0 ? -EMSGSIZE : got);
    memcpy(token, is_file ? message.file.token : message.records[0].token, sizeof token);
    tutti_status status = is_file ? member_table_keep_file(token, mine->size, descriptor, out)
                                  : id_receive_records(socket, mine, message.records, deadline_ms, out);
    if (status != TUTTI_OK) peers_abort_join(token);
    return status;
}
/* Receives rank 0's result and the table of members. */
static tutti_status id_receive_result(int socket, const struct member *mine, int64_t deadline_ms,
    struct shared_table **out)
{
    struct join_result result;
    int got = socket_receive_one(socket, &result, sizeof result, NULL, deadline_ms);
    if (got != (int)sizeof result) return id_explain_error(mine, got > 0 ? -EMSGSIZE : got);
    TRY(join_result_apply(&result, mine));
    return id_receive_table(socket, mine, deadline_ms, out);
}
/* Makes both ends prove that they know the id. Returns 0 or -errno. */
static int id_run_handshake(const struct id_names *names, const struct member *mine, int socket, int64_t deadline_ms)
{
    struct handshake handshake;
    int got;
    handshake_begin(&handshake, magic);
    while ((got = handshake_receive_opening(&handshake, socket)) == 0)
        if (!socket_await_ready(socket, POLLIN, deadline_ms)) return -ETIMEDOUT;
    if (got > 0) got = handshake_send_hello(&handshake, &mine->identity, names->name, &names->key, 0, socket);
    if (got < 0) return got;
    while ((got = handshake_receive_answer(&handshake, socket)) == 0)
        if (!socket_await_ready(socket, POLLIN, deadline_ms)) return -ETIMEDOUT;
    return got < 0 ? got : 0;
}
/* A follower's part of joining by a unique id: connects to rank 0 and sends its record. */
static tutti_status id_join_rank0(const struct id_names *names, int rank, const struct member *mine,
    int64_t deadline_ms, struct shared_table **out)
{
    struct id_introduction introduction = { .rank = rank, .member = *mine };
    memcpy(introduction.magic, magic, sizeof magic);
    int socket = id_connect_until(names, deadline_ms);
    if (socket == -ETIMEDOUT)
        return status_fail(TUTTI_TIMEOUT,
            "rank 0 of %u has not joined %s within %lld ms; with a unique id all ranks must be on one host", mine->size,
            mine->group, (long long)mine->timeout_ms);
    if (socket < 0) return id_explain_error(mine, socket);
    int error = id_run_handshake(names, mine, socket, deadline_ms);
    if (!error) error = socket_send_all(socket, &introduction, sizeof introduction, -1, deadline_ms);
    deadline_ms = deadline_add_ms(deadline_ms, GRACE_MS);
    tutti_status status = error ? id_explain_error(mine, error) : id_receive_result(socket, mine, deadline_ms, out);
    close(socket);
    return status;
}
tutti_status bootstrap_id(const tutti_unique_id *id, int rank, const struct member *mine, int64_t deadline_ms,
    struct shared_table **table, struct key_id *key)
{
    struct id_names names;
    struct member own = *mine;
    unsigned char group_key[KEY_BYTES];
    unique_id_derive(id, names.name, group_key);
    TRY(group_key_add(group_key, &names.key));
    /* The socket reaches only ranks of one host, so its name can be the host's token. */
    memcpy(own.host_token, names.name, sizeof own.host_token);
    *table = NULL;
    tutti_status status = rank == 0 ? id_run_rank0(&names, &own, deadline_ms, table)
                                    : id_join_rank0(&names, rank, &own, deadline_ms, table);
    if (status == TUTTI_OK) status = members_check_own(shared_table_data(*table), rank, &own);
    *key = names.key;
    if (status == TUTTI_OK) return status;
    shared_table_leave(*table);
    *table = NULL;
    return status;
}
