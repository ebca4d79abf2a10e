/* What links.c, which others call, and link.c, calls.c and callers.c, which the watch thread does, know of a process on
 * another host. Everything here is touched with registry.lock held. Nothing below waits, and what may end a link says
 * so: a peer that nobody uses is forgotten when it ends. */
#pragma once
#include "backend/processes/handshake.h"
#include "backend/processes/wire.h"

struct process_address { size_t bytes; unsigned char content[PROCESS_ADDRESS_BYTES]; };
struct link {
    struct contact at, from;                            /* where it listens, if known; from where it was called last */
    enum { IDLE, CALLING, CONNECTED, GREETING } stage;  /* CONNECTING: of our own call. GREETING: it has our hello */
    int64_t since_ms, again_ms, until_ms;               /* wanted since, 0: not; our next call; the end of this one */
    int64_t said_ms;                                    /* OPEN: something was sent */
    int waiters;                                        /* in link_await */
    int error;                                          /* -errno of the last call, or of the end; 0: none */
    int refusals;                                       /* in a row: nobody listens there any more */
    bool was_open, is_full;                             /* is_full: its socket takes nothing at present */
    bool has_asked, wants_address;                         /* we have for its process address, ever; are to */
    bool was_asked, owes_address;                          /* it has for ours, ever; is to get it */
    struct wire *wire;                                  /* since it is open */
    struct process_address *process_address;                                  /* its own, when it has come */
};
struct caller {                                         /* a process that has called and has no link yet */
    int descriptor;
    int64_t until_ms;
    bool proved;                                        /* it belongs to a group of this process, and was welcomed */
    struct contact from;
    struct handshake handshake;
};
enum { MOST_CALLERS = 128 };
struct links {                                          /* of this process */
    int listener, caller_count;
    struct contact at;                                  /* family 0: it does not listen */
    struct process_address *process_address;
    int64_t due_ms;                                     /* something is to be done then, or nothing yet */
    struct caller callers[MOST_CALLERS];                /* oldest first */
};
extern struct links links;
void links_due(int64_t at_ms);

/* ---- link.c ---- */
struct peer *link_find(const unsigned char nonce[16]);                 /* one that can be used or will be */
struct peer *link_add(const struct identity *identity, const struct key_id *key);      /* CONNECTING; NULL: no memory */
/* The handshake is over, on peer->descriptor; `called`: by the other. May end it: false. */
bool link_open(struct peer *peer, const struct handshake *handshake, bool called);
void link_end(struct peer *peer, int error);            /* LOST */
void link_catch_up(struct peer *peer);                    /* OPEN: says what is still to be said, as far as that goes */

/* ---- calls.c: our own calls ---- */
void call_ready(struct peer *peer);                     /* its socket is; may end it */
void call_tick(struct peer *peer, int64_t now_ms);      /* the same */
/* ---- callers.c: others' ---- */
void callers_tick(int64_t now_ms);
bool callers_include(const unsigned char nonce[16]);    /* it was welcomed, and its link will soon be open */
