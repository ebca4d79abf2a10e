/* The first rank of a process that needs the table makes it, and the others wait for that rank. If it fails, or its
   caller cancels the join, the next one tries. */
#include "backend/join/member_table.h"
#include "backend/base/clock.h"
#include "backend/base/status.h"
#include "backend/join/join_result.h"
#include "backend/join/records.h"
#include <stdlib.h>
#include <unistd.h>

/* A wait checks after each slice whether the join was cancelled. */
enum { SLICE_MS = 50 };

/* ---- one process ---- */
/* Returns true if another rank of this process has made the table, and false if this rank must make it. Waits while
   another one makes it: it does not wait for other processes, so it is soon done. */
static bool member_table_is_ready(struct shared_table *table)
{
    enum shared_table_turn turn;
    while ((turn = shared_table_await(table, clock_ms() + SLICE_MS)) == SHARED_TABLE_BUSY) {}
    return turn == SHARED_TABLE_READY;
}
tutti_status member_table_keep(struct member *members, struct shared_table **out)
{
    tutti_status status = shared_table_enter(members[0].token, out);
    if (status == TUTTI_OK && !member_table_is_ready(*out)) shared_table_set(*out, members);
    else free(members);
    return status;
}
/* Makes the file the data of the table. Otherwise it gives up. */
static tutti_status member_table_set_file(struct shared_table *table, uint32_t size, int descriptor)
{
    const struct member *members = NULL;
    tutti_status status = descriptor < 0
        ? status_fail(TUTTI_SYSTEM,
              "the table of members arrived without its file: too many open files in this "
              "process (see ulimit -n)")
        : host_table_map(size, descriptor, &members);
    if (status != TUTTI_OK) {
        shared_table_give_up(table);
        return status;
    }
    shared_table_set_mapped(table, members, size * sizeof *members);
    return TUTTI_OK;
}
/* Fails unless the table is of that group and has that size. */
static tutti_status member_table_check(const struct shared_table *table, const unsigned char token[16], uint32_t size)
{
    const struct member *first = shared_table_data(table);
    if (first->size == size && memcmp(first->token, token, sizeof first->token) == 0) return TUTTI_OK;
    return status_fail(TUTTI_MISMATCH, "the table of members that has arrived is of another group");
}
tutti_status member_table_keep_file(const unsigned char token[16], uint32_t size, int descriptor,
    struct shared_table **out)
{
    struct shared_table *table;
    tutti_status status = shared_table_enter(token, &table);
    bool is_ready = status == TUTTI_OK && member_table_is_ready(table);
    if (status == TUTTI_OK && !is_ready) status = member_table_set_file(table, size, descriptor);
    else if (descriptor >= 0) close(descriptor);
    if (status == TUTTI_OK) status = member_table_check(table, token, size);
    if (status == TUTTI_OK) *out = table;
    else shared_table_leave(table);
    return status;
}

/* ---- through a store ---- */
struct member_table_request member_table_request_make(const tutti_config *config, const struct member *first,
    const struct member *mine, const struct key_id *key, int64_t deadline_ms)
{
    return (struct member_table_request){ .store = &config->store,
        .host = { .first = first,
            .mine = mine,
            .key = key,
            .rank = config->rank,
            .deadline_ms = deadline_ms,
            .is_cancelled = config->is_cancelled,
            .cancel_context = config->store.context } };
}
tutti_status member_table_create(const struct member_table_request *request, struct member *members,
    struct shared_table **out, int *descriptor)
{
    *descriptor = -1;
    tutti_status status = shared_table_enter(members[0].token, out);
    if (status == TUTTI_OK && !member_table_is_ready(*out)) host_table_set(&request->host, members, *out, descriptor);
    else free(members);
    return status;
}
/* Reads the table from the store into memory of its own. */
static tutti_status member_table_read(const struct member_table_request *request, struct member **out)
{
    const struct host_table *host = &request->host;
    struct member *members = members_create(host->mine);
    if (!members) return TUTTI_NO_MEMORY;
    const struct store_pieces pieces = { host->mine->size, STORE_PIECE_BYTES };
    tutti_status status = store_get_table(request->store, host->first, &pieces, members);
    if (status == TUTTI_TIMEOUT)
        status = status_fail(TUTTI_SYSTEM,
            "the key-value store has lost the table of members of %s, which rank 0 has stored for rank %d: check "
            "whether the store drops keys, or another program deletes them",
            host->mine->group, host->rank);
    if (status != TUTTI_OK) {
        free(members);
        return status;
    }
    members_make_printable(members, host->mine->size);
    *out = members;
    return TUTTI_OK;
}
/* Sets the data of the table, which this rank makes. Otherwise it gives up. */
static tutti_status member_table_make(const struct member_table_request *request, struct shared_table *table)
{
    const struct host_table *host = &request->host;
    const struct member *received = NULL;
    struct member *members = NULL;
    int descriptor = -1;
    if (host_table_get_role(host) == HOST_TABLE_RECEIVE) {
        tutti_status status = host_table_receive(host, &received);
        if (status == TUTTI_OK) shared_table_set_mapped(table, received, host->mine->size * sizeof *received);
        if (status == TUTTI_ABORTED) shared_table_give_up(table);
        if (status == TUTTI_OK || status == TUTTI_ABORTED) return status;
    }
    tutti_status status = member_table_read(request, &members);
    if (status != TUTTI_OK) {
        shared_table_give_up(table);
        return status;
    }
    host_table_set(host, members, table, &descriptor);
    return host_table_send(host, shared_table_data(table), descriptor);
}
/* Waits for the rank of this process that makes the table, or makes it. */
static tutti_status member_table_await(const struct member_table_request *request, struct shared_table *table)
{
    const struct host_table *host = &request->host;
    for (;;) {
        enum shared_table_turn turn = shared_table_await(table, clock_ms() + SLICE_MS);
        if (turn == SHARED_TABLE_READY) return TUTTI_OK;
        if (turn == SHARED_TABLE_YOURS) return member_table_make(request, table);
        TRY(join_check_cancelled(host->is_cancelled, host->cancel_context, host->rank, host->mine->group));
        if (clock_ms() >= host->deadline_ms)
            return status_fail(TUTTI_TIMEOUT,
                "another rank of the process of rank %d of %s has not read the table of members in time", host->rank,
                host->mine->group);
    }
}
tutti_status member_table_get(const struct member_table_request *request, struct shared_table **out)
{
    TRY(shared_table_enter(request->host.first->token, out));
    tutti_status status = member_table_await(request, *out);
    if (status == TUTTI_OK) status = members_check_own(shared_table_data(*out), request->host.rank, request->host.mine);
    if (status == TUTTI_OK) return status;
    shared_table_leave(*out);
    *out = NULL;
    return status;
}
