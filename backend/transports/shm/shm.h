/* The transport between ranks of one host, through the pair regions of their segment (README.md). Its members are
   numbered by their index on the host, and so is everything in that memory; only what comes out of it bears ranks. */
#pragma once
#include "backend/transports/router.h"

struct shm_callbacks { /* the parts of a segment it needs; `from`, `to` and `member` are indices on the host */
    void *context;
    unsigned char *(*pair)(void *context, int from, int to);        /* pair_bytes of shared memory, zeroed at first */
    tutti_status (*reserve)(void *context, void *at, size_t bytes); /* makes memory real before it is touched */
    void (*ring)(void *context, int member);                        /* rings that rank's bell */
    /* How large runs are copied into memory that a peer reads next; and into tensors beyond caches. NULL: memcpy.
       paced: the first only where it costs less than memcpy. */
    void (*stream)(void *to, const void *from, size_t bytes);
    void (*stream_far)(void *to, const void *from, size_t bytes);
    bool paced;
    /* Tensors where peers can reach them. All four, or NULL: there are none. */
    bool (*find)(void *context, const void *at, size_t bytes, struct remote *out); /* false: not reachable */
    /* The address here of a member's place, which is sent to or received from, until the next call for that member and
       direction. IN_PROGRESS: being mapped, ask again. */
    tutti_status (*reach)(void *context, int member, bool sends, struct remote place, size_t bytes,
        unsigned char **out);
    bool (*enter)(void *context); /* before memory that was reached is touched; false: it must not be any more */
    void (*leave)(void *context); /* after it */
    /* What peers cannot reach, but read. All three, or NULL. opens: whether a peer may read what is sent from there,
       and had better. reads: whether this rank can; then `read`, from the address that a member says: IN_PROGRESS: not
       now, it may be gone. */
    bool (*opens)(void *context, const void *at, size_t bytes);
    bool (*reads)(void *context);
    tutti_status (*read)(void *context, int member, uint64_t at, void *to, size_t bytes);
};
size_t shm_pair_bytes(void); /* what it needs for each ordered pair */
/* Leads to these ranks (NULL: 0 to count - 1), member i being ranks[i], and to this rank itself, who is `me`. */
tutti_status shm_connect(struct router *router, const struct shm_callbacks *callbacks, int me, const int *ranks,
    int count);
