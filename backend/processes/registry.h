/* What peers.c and views.c (which others call) and watch.c (its thread) share. Everything here is touched with
 * registry.lock held, and the lock is never held across anything that waits. */
#pragma once
#include "backend/processes/channel.h"
#include "backend/processes/handshake.h"
#include <pthread.h>

enum { MOST_PENDING = 32, KEPT = 1024, KEPT_OPEN = 256, GIVEN_UPS = 16, PROTOCOL = 9 };
enum kind {
    DESCRIPTOR = 1,
    GOODBYE,
    WANTED,
    BLOCK,
    GIVEN_UP,
    CTRL_MSG,
    HEARTBEAT,
    ADDRESS_REQUEST,
    ADDRESS,      /* over links only */
};
struct packet { /* after the handshake; behind a CTRL_MSG or ADDRESS comes one */
    char magic[8];
    uint32_t version, kind;
    unsigned char to[16], token[16];
    struct identity from;                               /* of GIVEN_UP: who did */
};
struct address { unsigned char token[16]; int32_t rank; };     /* of a channel */
struct ctrl_msg {                                        /* travels without the end of `bytes` */
    struct address to;
    int32_t from;
    uint16_t word;
    uint8_t hops, flags;                                /* of those who have passed it on; enum ctrl_msg_flag */
    uint32_t length;
    unsigned char bytes[CHANNEL_BYTES];
};
enum ctrl_msg_flag { LAST_WORD = 1, ANSWER = 2, CTRL_MSG_FLAGS = 3 }; /* of a rank to another; to one that came late */
struct packet_and_ctrl_msg { struct packet packet; struct ctrl_msg msg; };
/* via: the nonce of the process whose connection it came by; that of this process, of its own. */
struct ctrl_entry { struct ctrl_entry *next; struct ctrl_msg msg; unsigned char via[16]; };
struct ctrl_queue { struct ctrl_entry *first, *last; int count; };
enum state { CONNECTING, OPEN, REFUSED, LEFT, LOST };
struct peer {
    struct identity identity;
    struct key_id key;                                  /* by which the two know each other */
    struct link *link;                                  /* NULL: of this host. A process may have one of each kind */
    enum state state;
    int error;                                          /* -errno by which the handshake failed, or 0 */
    int descriptor;                                     /* -1: none yet, or no more */
    bool expects_theirs;                                /* CONNECTING: they call us */
    struct handshake *handshake;                        /* CONNECTING: of our call; else NULL */
    int users, ways; /* ways: of channels that are closed, which use it while it is */
    struct peer_watch *watches;
    struct view *views;                                 /* of its arena */
    struct ctrl_queue unsent;                              /* that its socket does not take at present */
    bool owes_given_ups;                                /* the same of these; it is told all of them again */
    struct peer *next;
};
/* A process that has connected, and not yet proved that it belongs to a group of this one. */
struct pending { int descriptor; int64_t until_ms; struct handshake handshake; };
struct kept { int descriptor; unsigned char token[16]; };      /* -1: it was sent, but there was no room for it */
struct given_up { unsigned char token[16]; struct identity by; };      /* a group that a process could not join */

struct registry {
    pthread_mutex_t lock;
    pthread_cond_t changed;                             /* a state, a kept descriptor, the end of a call */
    int users;
    void (*at_end)(void);                               /* see peers_at_end; or NULL */
    bool stop, stopping, out_of_descriptors;
    struct identity self;
    int listener, poller, waker;
    pthread_t thread;
    struct peer *peers;
    struct pending pending[MOST_PENDING];               /* oldest first */
    struct kept kept[KEPT];                             /* oldest first; KEPT_OPEN of them have a descriptor */
    int pending_count, kept_count;
    struct given_up given_up[GIVEN_UPS];                /* the latest */
    unsigned given_up_count;                            /* ever */
    const struct peer_watch *calling;
    uint64_t turned_away, dropped;
};
extern struct registry registry;

static inline bool peer_is_over(const struct peer *peer) { return peer->state == LEFT || peer->state == LOST; }
bool nonce_equal(const unsigned char a[16], const unsigned char b[16]);
void descriptor_close(int *descriptor);                /* -1 is fine, and what it is afterwards */

void registry_wait(int64_t until_ms);                  /* for `changed` */
void registry_wake(void);                              /* the watch thread */
int registry_poll(int descriptor);                     /* from now on; 0 or -errno */
void registry_poll_writing(int descriptor, bool on);    /* whether it can be written to, too */
void registry_hang_up(int *descriptor);                /* no longer, and closes it */
struct packet registry_packet(const unsigned char to[16], enum kind kind);
/* Sends a packet over the connection or the link of a peer; token may be NULL, gift (a descriptor) -1, and is over a
   link. 0 or -errno; -EAGAIN: not now. */
int peer_tell(struct peer *peer, enum kind kind, const unsigned char *token, int gift);
int peer_send_ctrl_msg(struct peer *peer, const struct ctrl_msg *msg);
void peer_await_room(struct peer *peer, bool on);       /* whether peer_flush is to be called when there is */
int peer_begin_handshake(struct peer *peer, const char purpose[8]);      /* of our call: 0, or -ENOMEM */
bool packet_is_for_us(int bytes, const struct packet *packet);         /* `bytes` without what comes behind it */
bool ctrl_msg_is_for_us(int bytes, const struct packet_and_ctrl_msg *message);

struct peer *registry_find(const unsigned char nonce[16]);             /* of this host, that can be used or will be */
/* CONNECTING; NULL: no memory. */
struct peer *registry_add(const struct identity *identity, const struct key_id *key);
void registry_forget(struct peer *peer);               /* nobody uses it, and it is hung up */
bool registry_take_kept(const unsigned char token[16], int *out);      /* false: it has not come */
struct pending registry_take_pending(int index);
/* The first to say so is kept; what was sent for that group is not wanted any more. */
bool registry_record_given_up(const unsigned char token[16], const struct identity *by);       /* true: the first */
const struct given_up *registry_find_given_up(const unsigned char token[16]);          /* or NULL */
/* Tells all who do not hear of it from the one it was heard of (NULL: this process): over links, and all of this host
   what came over a link. */
void registry_pass_on(const unsigned char token[16], const struct peer *heard_of);
void peer_tell_given_ups(struct peer *peer);            /* all of them; it may be about to join one */

/* views.c, for the watch thread: a peer wants a block of ours; has sent one, with a descriptor (taken over) or -1 */
void views_answer(struct peer *peer, const unsigned char token[16]);
void views_receive(struct peer *peer, const unsigned char token[16], int gift);
void views_forget(struct peer *peer);                   /* unmaps them all; nobody holds one */

/* channel.c, for the watch thread: a control message has come; users are called, without the lock; until when; its
   socket takes something; the end */
void channels_receive(const struct ctrl_msg *msg, const struct peer *by);
void channels_deliver(void);
void channels_tick(void);
int channels_poll_timeout_ms(void);                     /* ms; -1: no limit */
void peer_flush(struct peer *peer);
void ctrl_queue_free(struct ctrl_queue *list);
void channels_lose(const struct peer *peer);            /* it is about to be forgotten */
void channels_forget(void);                             /* nobody has one open */
void channels_after_fork(void);                         /* in the child: those of the parent are not its own */

/* claims.c, for the watch thread: somebody asks who has claimed a token. false: that is another descriptor */
bool claims_answer(int descriptor);
void claims_forget(void);                               /* nobody has one */
void claims_after_fork(void);                           /* in the child: those of the parent are not its own */

/* link.c and callers.c, for the watch thread and peers.c */
void link_ready(struct peer *peer);                     /* its socket is; may end it */
bool links_handle(int descriptor);                      /* that is one of theirs; false: it is not */
void links_tick(void);
int links_poll_timeout_ms(void);                        /* ms; -1: no limit */
int link_say(struct peer *peer, const struct packet *packet, size_t bytes); /* with what is behind it; 0 or -errno */
void link_want(struct peer *peer);                      /* it has control messages; calls it unless it is open */
bool link_push(struct peer *peer);                      /* sends what it can; true: there is more */
void link_forget(struct peer *peer);
void links_close(void);                                 /* nobody has one */
void links_after_fork(void);

/* watch.c */
void *registry_watch(void *unused);                    /* the watch thread */
void registry_turn_away(int descriptor, const char *why);              /* hangs up, and says so the first time */
void peer_open(struct peer *peer);
void peer_end(struct peer *peer, enum state state);     /* frees it if nobody uses it */
void peer_hear_given_up(struct peer *peer, const struct packet *packet);
