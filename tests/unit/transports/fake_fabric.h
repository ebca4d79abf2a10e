/* A fake fabric without a network, whose messages a test delivers by function calls. It connects this process, which is
   rank 0 of a group of three processes, with the two others and with a process that is no member. One test file
   includes this header. */
#pragma once
#include "backend/base/descriptor.h"
#include "backend/base/memory.h"
#include "backend/base/status.h"
#include "backend/transports/fabric/fabric_transport.h"
#include "tests/support/unit.h"
#include "tests/unit/transports/ranks.h"
#include <sys/eventfd.h>

enum { RANKS = 3, STRANGER = RANKS, PROCESSES, COMM = 77 };

/* ---- the fake fabric ---- */
struct delivery {
    struct endpoint *from;
    const struct header *header;
    void *data;
    size_t bytes;
    bool announced, kept;
};
/* The message that the next progress of the fabric delivers, or NULL. */
static struct delivery *due;
/* The numbers of calls of release, fetch and disconnect since open_all. */
static int released, fetched, ended;
/* true: a fetch stays in flight until the test completes this op. */
static bool fetches_last;
static struct fabric_op *in_flight;
/* The descriptor of every announced message. It is never read. */
static char descriptors[1];

static tutti_status fabric_begin(struct fabric *f, const struct fabric_environment *place)
{
    (void)place;
    f->address_bytes = 1;
    f->event_descriptor = descriptor_move_above_stderr(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    return TUTTI_OK;
}
static void fabric_shut_down(struct fabric *f) { (void)f; }
static void fabric_free_endpoints(struct fabric *f)
{
    for (struct endpoint *e; (e = f->endpoints) != NULL; free(e)) f->endpoints = e->next;
    close(f->event_descriptor);
}
static tutti_status connect_to(struct fabric *f, const unsigned char process[16], const struct key_id *key,
    const unsigned char *address, size_t bytes, struct endpoint **out)
{
    (void)key, (void)address, (void)bytes;
    struct endpoint *e = memory_alloc_zeroed(1, sizeof *e);
    memcpy(e->process, process, sizeof e->process);
    e->is_open = true;
    e->next = f->endpoints;
    *out = f->endpoints = e;
    return TUTTI_OK;
}
static bool send_none(struct fabric *f, struct fabric_op *op, const void *data, bool announced)
{
    (void)f, (void)op, (void)data, (void)announced;
    return false;
}
static bool bytes_fetch(struct fabric *f, struct fabric_op *op, void *descriptor, void *buffer)
{
    (void)f, (void)descriptor, (void)buffer;
    fetched++;
    if (fetches_last) in_flight = op;
    return fetches_last;
}
static void descriptor_count_release(struct fabric *f, void *descriptor)
{
    (void)f, (void)descriptor;
    released++;
}
static bool fabric_deliver_due(struct fabric *f)
{
    struct delivery *d = due;
    due = NULL;
    if (d) d->kept = fabric_handle_message(f, d->from, d->header, d->data, d->bytes, d->announced);
    return d != NULL;
}
static bool fabric_may_sleep(struct fabric *f)
{
    (void)f;
    return true;
}
static void endpoint_count_end(struct fabric *f, struct endpoint *e)
{
    (void)f, (void)e;
    ended++;
}
static void endpoint_print_address(const struct endpoint *e, char *out, size_t bytes)
{
    snprintf(out, bytes, "address %d", e->process[0]);
}
static const struct fabric_operations operations = { .name = "none",
    .start = fabric_begin,
    .shutdown = fabric_shut_down,
    .finish = fabric_free_endpoints,
    .connect = connect_to,
    .send = send_none,
    .fetch = bytes_fetch,
    .release = descriptor_count_release,
    .progress = fabric_deliver_due,
    .arm = fabric_may_sleep,
    .disconnect = endpoint_count_end,
    .print_address = endpoint_print_address };
static struct fabric fabric = FABRIC(&operations);

/* ---- the processes ---- */
/* The nonces of the processes of ranks 0 to 2 and of the stranger, and the endpoints to them. */
static unsigned char processes[PROCESSES][16] = { { 1 }, { 2 }, { 3 }, { 9 } };
static struct endpoint *ends[PROCESSES];
static struct alarm_bell bell;
static struct rank me;

static const unsigned char *process_of(void *context, int rank)
{
    (void)context;
    return processes[rank];
}
static tutti_status address_of(void *context, const struct fabric *of, int rank, void *out, size_t *bytes)
{
    (void)context, (void)of, (void)rank, (void)out, (void)bytes;
    return TUTTI_IN_PROGRESS;
}
static void name_of_host(void *context, int rank, char *out, size_t bytes)
{
    (void)context;
    snprintf(out, bytes, "host %d", rank);
}
static void join_group_of(int size)
{
    const struct fabric_callbacks callbacks = { .process = process_of, .address = address_of, .name = name_of_host };
    me = (struct rank){ .rank = 0, .size = size, .router = new_router(0, size, &bell) };
    me.router->comm = COMM;
    assert_int_equal(fabric_connect(&fabric, me.router, &callbacks), TUTTI_OK);
}
static void join_group(void) { join_group_of(RANKS); }
static int open_all(void **state)
{
    const struct fabric_environment place = { .simulated = true };
    unsigned char address[FABRIC_ADDRESS_BYTES];
    size_t bytes;
    (void)state;
    assert_int_equal(fabric_open(&fabric, processes[0], &place, address, &bytes), TUTTI_OK);
    pthread_mutex_lock(&fabric.lock);
    for (int i = 0; i < PROCESSES; i++) connect_to(&fabric, processes[i], NULL, NULL, 0, &ends[i]);
    pthread_mutex_unlock(&fabric.lock);
    released = fetched = ended = 0;
    memset(&fabric.recently_closed, 0, sizeof fabric.recently_closed);
    return 0;
}
static int open_and_join(void **state)
{
    open_all(state);
    join_group();
    return 0;
}
static int leave_and_close(void **state)
{
    (void)state;
    router_destroy(me.router);
    fabric_close(&fabric);
    return 0;
}

/* ---- messages ---- */
/* true: a message arrives while the rank polls. false: the fabric saves it for the next poll. */
static bool polls;
/* Delivers a message by the endpoint to that process. Returns whether its descriptor is kept. */
static bool message_deliver(int process, struct header h, const void *data, size_t bytes)
{
    struct delivery d = { ends[process], &h, (void *)(uintptr_t)data, bytes, h.id && h.kind == MESSAGE, false };
    if (d.announced) d.data = descriptors;
    h.comm = COMM;
    pthread_mutex_lock(&fabric.lock);
    if (!polls) d.kept = fabric_handle_message(&fabric, d.from, d.header, d.data, d.bytes, d.announced);
    else due = &d;
    pthread_mutex_unlock(&fabric.lock);
    if (polls) router_poll(me.router);
    return d.kept;
}
/* The sequence numbers of the next messages. */
static uint32_t sequences[RANKS];
/* Returns the header of the rank's next eager message. */
static struct header short_of(int rank, uint64_t name, size_t bytes)
{
    return (struct header){ .name = name_of(name), .bytes = bytes, .from = rank, .sequence = sequences[rank]++ };
}
/* Returns the header of the rank's next announced message. */
static struct header long_of(int rank, uint64_t name, size_t bytes, uint64_t id)
{
    struct header h = short_of(rank, name, bytes);
    h.id = id;
    return h;
}
static bool rndv_announce(int rank, uint64_t name, size_t bytes, uint64_t id)
{
    return message_deliver(rank, long_of(rank, name, bytes, id), NULL, bytes);
}
static void rndv_withdraw(int rank, uint64_t name, uint64_t id)
{
    message_deliver(rank, (struct header){ .kind = WITHDRAWN, .name = name_of(name), .id = id, .from = rank }, NULL, 0);
}
static void poll_all(void)
{
    for (int n = 0; n < 5; n++) router_poll(me.router);
}
/* Checks that the connection of this process alone was closed, for this reason. */
static void assert_refused(int process, const char *why)
{
    poll_all();
    assert_true(ends[process]->is_faulty);
    assert_string_equal(ends[process]->why, why);
    assert_int_equal(ended, 1);
}
/* Checks that a message of this rank is received. */
static void assert_received(int rank, uint64_t name)
{
    unsigned char out[8] = { 5 }, in[8] = { 0 };
    struct transfer x;
    struct piece piece;
    rank_recv(&me, &x, rank, name, &piece, in, sizeof in);
    message_deliver(rank, short_of(rank, name, sizeof out), out, sizeof out);
    poll_all();
    assert_int_equal(x.state, TRANSFER_DONE);
    assert_int_equal(in[0], 5);
}
/* Runs a test twice: with messages that arrive while the rank does not poll, and while it polls. */
static void in_both_ways(void (*test)(void))
{
    void *none = NULL;
    for (int way = 0; way < 2; way++) {
        polls = way;
        memset(sequences, 0, sizeof sequences);
        open_and_join(&none);
        test();
        leave_and_close(&none);
    }
}
