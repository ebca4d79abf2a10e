/* A rank of a communicator whose messages come by a fabric of the fuzzer: its router, its posted receives and sends,
   and headers of messages from other ranks. Each posted transfer has memory of its own, so that the sanitizer finds an
   access beyond it. */
#pragma once
#include "backend/transports/fabric/fabric_transport.h"
#include "tests/fuzz/input.h"
#include <stdlib.h>

/* One of the processes has no rank. */
enum { RANKS = 3, PROCESSES = 4, POSTED = 8, MOST_BYTES = 1 << 17, COMM = 1 };
struct fuzz_rank {
    struct router *router;
    struct transfer posted[POSTED];
    struct piece pieces[POSTED][2];
    unsigned char *memory[POSTED];
    /* The number of messages that each rank has sent to this one. */
    uint32_t sent[RANKS];
    /* The id of the last announced message. */
    uint64_t last_id;
};
static const unsigned char fuzz_process[PROCESSES][16] = { { 1 }, { 2 }, { 3 }, { 4 } };

/* These three implement fabric_callbacks. */
static const unsigned char *fuzz_process_of(void *context, int rank)
{
    (void)context;
    return fuzz_process[rank];
}
static tutti_status fuzz_address_of(void *context, const struct fabric *fabric, int rank, void *out, size_t *bytes)
{
    (void)context;
    (void)rank;
    memset(out, 0, FABRIC_ADDRESS_BYTES);
    *bytes = fabric->address_bytes;
    return TUTTI_OK;
}
static void fuzz_name_of(void *context, int rank, char *out, size_t bytes)
{
    (void)context;
    (void)rank;
    strncpy(out, "a host", bytes);
}
/* The key of the group that all processes share. */
static inline struct key_id fuzz_key(void)
{
    static const unsigned char key[KEY_BYTES] = "the key of a group";
    struct key_id id;
    FUZZ_CHECK(group_key_add(key, &id) == TUTTI_OK);
    return id;
}
/* Connects the router to the fabric, in addition to the fabrics that it has. */
static inline void rank_connect(struct fuzz_rank *r, struct fabric *fabric)
{
    const struct fabric_callbacks callbacks = {
        .process = fuzz_process_of, .address = fuzz_address_of, .name = fuzz_name_of, .key = fuzz_key()
    };
    memcpy(fabric->process, fuzz_process[0], sizeof fabric->process);
    FUZZ_CHECK(fabric_connect(fabric, r->router, &callbacks) == TUTTI_OK);
}
/* Creates the router of rank 0, and connects it to the fabric. */
static inline void rank_init(struct fuzz_rank *r, struct fabric *fabric)
{
    *r = (struct fuzz_rank){ .last_id = 0 };
    FUZZ_CHECK(router_create(0, RANKS, COMM, (struct bell){ NULL, NULL }, &r->router) == TUTTI_OK);
    rank_connect(r, fabric);
}
/* Returns the size of a message. There are few sizes, so that some messages are equal; large ones are rare, because
   they take time. */
static inline uint64_t rank_bytes(struct input *in)
{
    static const uint64_t sizes[] = { 0, 1, 8, 64, 100 }, large[] = { 4096, 65536, 65537, 100000 };
    uint8_t choice = input_byte(in);
    return choice < 250 ? sizes[choice % 5] : large[choice % 4];
}
/* Returns one of 8 message names, with one of two types. */
static inline struct message_name rank_name(struct input *in)
{
    uint64_t operation = input_byte(in) % 2, choice = input_byte(in);
    return (struct message_name){ operation, choice / 128 << MESSAGE_TYPE_SHIFT | choice % 4 };
}
/* Posts a send or a receive of one or two pieces, unless POSTED transfers are posted. */
static inline void rank_post(struct fuzz_rank *r, struct input *in, bool is_send)
{
    int i = 0;
    while (i < POSTED && r->posted[i].state == TRANSFER_POSTED) i++;
    if (i == POSTED) return;
    struct transfer *x = &r->posted[i];
    size_t bytes = (size_t)rank_bytes(in), first = input_byte(in) % 4 ? bytes : bytes / 2;
    free(r->memory[i]);
    r->memory[i] = calloc(1, bytes ? bytes : 1);
    r->pieces[i][0] = (struct piece){ r->memory[i], first, first };
    r->pieces[i][1] = (struct piece){ r->memory[i] + first, bytes - first, bytes - first };
    *x = (struct transfer){ .name = rank_name(in), .is_send = is_send, .pieces = r->pieces[i] };
    x->piece_count = bytes > first ? 2 : 1;
    x->peer = 1 + input_byte(in) % (RANKS - 1);
    if (!is_send && (uint32_t)x->name.message == 3) x->peer = TRANSFER_ANY_PEER;
    router_post(r->router, x);
}
/* Cancels one of the posted transfers, or none. */
static inline void rank_cancel(struct fuzz_rank *r, struct input *in)
{
    struct transfer *x = &r->posted[input_byte(in) % POSTED];
    if (x->state == TRANSFER_POSTED) router_cancel(r->router, x);
}
/* Returns the header of a message to this rank. It is valid, except that in one of eight cases one field has another
   value. A MESSAGE with an id is announced. */
static inline struct header rank_header(struct fuzz_rank *r, struct input *in)
{
    static const uint32_t kinds[] = { MESSAGE, MESSAGE, MESSAGE, MESSAGE, MESSAGE, CREDIT, WITHDRAWN, REFUSED };
    struct header h = {
        .comm = COMM, .name = rank_name(in), .bytes = rank_bytes(in), .kind = kinds[input_byte(in) % 8]
    };
    uint8_t flags = input_byte(in);
    bool announced = h.kind == MESSAGE && (flags % 2 || h.bytes > EAGER_BYTES);
    h.from = 1 + flags / 2 % (RANKS - 1);
    if (h.kind == MESSAGE) h.sequence = r->sent[h.from]++;
    if (announced) h.id = ++r->last_id;
    else if (h.kind != MESSAGE) h.id = flags / 4 % 8;
    if (flags < 224) return h;
    uint64_t other = input_byte(in) % 4 ? (uint64_t)(int8_t)input_byte(in) : input_number(in);
    switch (flags % 8) {
    case 0: h.comm = other; break;
    case 1: h.from = (int32_t)other; break;
    case 2: h.to = (int32_t)other; break;
    case 3: h.sequence = (uint32_t)other; break;
    case 4: h.id = other; break;
    case 5: h.bytes = other; break;
    case 6: h.returned = other << 8; break;
    default: h.kind = (uint32_t)other; break;
    }
    return h;
}
/* Destroys the router, and frees the memory of the transfers. */
static inline void rank_finish(struct fuzz_rank *r)
{
    router_destroy(r->router);
    for (int i = 0; i < POSTED; i++) free(r->memory[i]);
}
