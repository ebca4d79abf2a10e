/* The transport between ranks of one host, through the pair regions of their segment (README.md). Members are numbered
   by their index on the host, in the shared memory too. Arrivals are passed on with ranks. */
#pragma once
#include "backend/transports/router.h"

/* The callbacks into the segment. `from`, `to` and `member` are indices on the host. */
struct shm_callbacks {
    void *context;
    /* Returns shm_pair_bytes() of shared memory, which is zeroed at first. */
    unsigned char *(*pair)(void *context, int from, int to);
    /* Allocates the memory of a range of the segment before its first use. An error: the host has none left. */
    tutti_status (*reserve)(void *context, void *at, size_t bytes);
    /* Gives the memory of a reserved range back to the host. The range must be reserved again before its next use. */
    void (*give_back)(void *context, void *at, size_t bytes);
    /* Rings the bell of the member. */
    void (*ring)(void *context, int member);
    /* stream copies large runs around the cache into memory that a peer reads next, stream_far into tensors beyond the
       caches. NULL: memcpy. is_paced: `stream` is used only while it costs less than memcpy (store_modes.h). */
    void (*stream)(void *to, const void *from, size_t bytes);
    void (*stream_far)(void *to, const void *from, size_t bytes);
    bool is_paced;
    /* The next four give access to tensors that peers can reach. They are set together or all NULL.
       find writes the location by which peers reach a tensor. false: peers cannot reach it. */
    bool (*find)(void *context, const void *at, size_t bytes, struct remote *out);
    /* Writes the local address of a tensor at this location of a member, to send to it (is_send) or receive from it.
       The address is valid until the next call for this member and direction. IN_PROGRESS: the location is being
       mapped, and the caller asks again. */
    tutti_status (*reach)(void *context, int member, bool is_send, struct remote location, size_t bytes,
        unsigned char **out);
    /* The transport calls enter before it uses memory that was reached, and leave afterwards. false: it must not use
       the memory any more. */
    bool (*enter)(void *context);
    void (*leave)(void *context);
    /* The next three read tensors that peers cannot reach. They are set together or all NULL.
       opens returns true if a peer may read the tensor at `at`, and if that is faster than staging it. reads returns
       whether this rank can read memory of peers. read copies from an address in the member's process, which the
       member has sent; IN_PROGRESS: the read failed because the member may be gone. */
    bool (*opens)(void *context, const void *at, size_t bytes);
    bool (*reads)(void *context);
    tutti_status (*read)(void *context, int member, uint64_t at, void *to, size_t bytes);
};
/* Returns the bytes of shared memory for each ordered pair. */
size_t shm_pair_bytes(void);
/* Adds the transport to the router. It leads to these ranks (NULL: 0 to count - 1) and to this rank itself, whose index
   is `me`; member i is ranks[i]. `ranks` must stay valid as long as the router. UNSUPPORTED: the host has too many
   ranks. */
tutti_status shm_connect(struct router *router, const struct shm_callbacks *callbacks, int me, const int *ranks,
    int count);
