/* A window: memory of each rank that the other ranks write without a call of its owner. This file has the memory, the
 * counters of signals and the messages of one rank's window. The engine runs the operations (engine/windows.h).
 *
 * A rank writes the memory of a peer *directly* if both are on one host and the memory is in the peer's arena. All
 * other ranks send it messages: a header, and after it the bytes of a put. The target checks each header before it
 * posts a receive for the bytes, so bytes go straight into the window and never beyond it. The transport holds back
 * bytes that have no receive yet, so a target needs no memory for puts of any size.
 *
 * A rank uses one way to a peer for puts and signals alike, and each way keeps their order. So a rank that has seen a
 * signal also sees the puts before it.
 *
 * Only the driver of the communicator calls these functions, except window_create, window_map_peer, window_retain and
 * window_release. */
#pragma once
#include "backend/memory/arena.h"
#include "backend/transports/router.h"

struct peer;
/* Counts the signals of one rank to another, and wraps. No thread sleeps on it, because it may be unmapped. */
struct signal_counter { _Alignas(64) _Atomic uint32_t count; };
/* The part of one rank in the memory that the ranks of a host share. */
struct window_row {
    /* 1: this rank takes its memory back, and no rank may begin to write it. */
    _Alignas(64) _Atomic uint32_t taken_back;
    /* 1 + the rank whose memory this rank is writing now, or 0. */
    _Atomic uint32_t copying;
    /* 1: this rank has freed its window alone, and puts and signals nothing any more. */
    _Atomic uint32_t freed;
    /* The signals that this rank has got from each rank of the group. */
    struct signal_counter signals[];
};
/* Memory of another rank as this process maps it. */
struct window_mapping {
    /* Held only until the mapping is made. */
    struct view *view;
    /* Pages of this window's own mapping; NULL for memory of this process. */
    void *base;
    size_t bytes;
};
enum header_kind { HEADER_PUT = 1, HEADER_SIGNAL = 2 };
/* The message before the bytes of a put, or a signal. It travels as bytes and has no padding. `index`: the number of
   headers that the rank has sent before it. */
struct window_header { uint64_t kind, offset, bytes, index; };
/* The message by which a rank reports that it has freed its window alone. The first `sent` of its headers arrive with
   their bytes; it has cancelled the others. It has handled `handled` headers of the other rank and ignores later
   ones. */
struct window_revocation { uint64_t sent, handled; };
/* The revocations between this rank and a peer. */
struct window_revocations {
    struct window_revocation mine, theirs;
    struct piece pieces[2];
    struct transfer send, receive;
    /* `theirs` has arrived. */
    _Atomic bool has_freed;
};
/* The name of a message has the number of its window from bit WINDOW_SHIFT on. Below, the bytes of a put have bit
   WINDOW_BYTES_SHIFT and the number of the put, headers have 0, and revocations 1. */
enum { WINDOW_SHIFT = 33, WINDOW_BYTES_SHIFT = 32 };
enum inbound_stage { INBOUND_CLOSED, INBOUND_HEADER, INBOUND_BYTES };
/* The receives of messages from one rank. One message at a time is received, so they are handled in their order.
   CLOSED: no receive is posted. HEADER, BYTES: a receive of a header, or of a put's bytes, is posted. */
struct inbound {
    enum inbound_stage stage;
    struct window_header header;
    struct piece piece;
    struct transfer transfer;
    /* The number of headers that have been handled with their bytes, and of puts among the received headers. */
    uint64_t handled;
    uint32_t puts;
};
/* The state that a window has for one peer. */
struct window_peer {
    /* The peer's row if it is on this host, else NULL. */
    struct window_row *row;
    /* direct: this rank writes the peer's memory directly, at the address `memory` in this process. */
    bool direct;
    unsigned char *memory;
    struct window_mapping mapping;
    /* The messages that the peer sends to this rank. NULL: it writes directly. */
    struct inbound *inbound;
    /* The number of headers sent to the peer, of puts among them, and of the peer's signals that were taken. */
    uint64_t sent;
    uint32_t puts, awaited;
    /* NULL: both ranks write each other directly, and each reads `freed` in the other's row. */
    struct window_revocations *revocations;
};
struct tutti_window {
    tutti_comm *comm;
    int rank, size;
    tutti_dtype dtype;
    unsigned char *memory;
    size_t bytes;
    /* Equal on all ranks, and used once in a communicator. */
    uint32_t number;
    /* The memory with the rows of this host's ranks. */
    void *shared;
    struct window_row *row;
    /* [size], owned. */
    struct window_peer *peers;
    /* Receives may be posted. The driver owns it. */
    bool listening;
    /* The references of the program together count as one holder, and each operation of the driver as another. */
    _Atomic uint32_t holders, references;
    /* The window is in the communicator's list. Later operations are refused. */
    _Atomic bool attached;
    /* A thread deregisters the window. */
    _Atomic bool deregistering;
    /* The next window in a list of the communicator. */
    struct tutti_window *next;
};
/* Describes the memory of one rank to all others when they make a window. The size is fixed, without padding. */
struct window_offer {
    uint64_t bytes;
    /* The memory in the arena; block 0: peers cannot map it. */
    struct location at;
    /* `number`: the number of this rank's last window. */
    uint32_t dtype, number;
};
/* Returns the bytes of a row in a group of `size` ranks. */
static inline size_t window_row_bytes(int size)
{
    return sizeof(struct window_row) + (size_t)size * sizeof(struct signal_counter);
}

/* ---- window.c ---- */
/* Makes the window of one rank, with one holder. NO_MEMORY. */
tutti_status window_create(int rank, int size, void *memory, size_t bytes, tutti_dtype dtype,
    struct tutti_window **out);
/* Fills in this rank's offer. */
void window_describe_memory(const struct tutti_window *window, struct window_offer *out);
/* Returns true if ranks of the same host write the offered memory directly. */
bool window_offer_is_direct(const struct window_offer *offer);
static inline void window_retain(struct tutti_window *window) { atomic_fetch_add(&window->holders, 1); }
/* The last release unmaps and frees the window. */
void window_release(struct tutti_window *window);

/* ---- mapping.c ---- */
/* Maps the memory that a rank of this host has offered, if it is direct. `process` is NULL for a rank of this process.
   IN_PROGRESS: the mapping has been requested; call again. The mapping is the window's own, and stays when the owner
   has freed the memory or is gone. Memory that its owner has freed may read as zeros. */
tutti_status window_map_peer(struct tutti_window *window, int rank, const struct window_offer *offer,
    struct peer *process);
/* Unmaps the peer's memory, if it is mapped. */
void window_unmap_peer(struct window_peer *peer);

/* ---- direct.c ---- */
/* Copies the next part of `bytes` bytes from `from` to the peer's memory at byte `offset`, and adds its length to
   *copied_bytes, which starts at 0. OK: all bytes are copied. IN_PROGRESS: the caller calls again. PEER_LOST, without a
   text: the peer has taken its memory back. */
tutti_status window_copy_part(struct tutti_window *window, int peer, uint64_t offset, const void *from, size_t bytes,
    size_t *copied_bytes);
/* Counts a signal for a peer that this rank writes directly; the caller rings the peer's bell. PEER_LOST as above. */
tutti_status window_signal_directly(struct tutti_window *window, int peer);
/* Counts a signal that has come from rank `from`. */
void window_count_signal(struct tutti_window *window, int from);
/* Takes a signal that has come from rank `from`. Returns false if there is no signal to take. */
bool window_take_signal(struct tutti_window *window, int from);
/* Returns true if a signal of rank `from` can be taken. */
bool window_has_signal(const struct tutti_window *window, int from);
/* Takes this rank's memory back: from now on peers begin no direct write to it. */
void window_take_back(struct tutti_window *window);
/* Returns true if that rank of this host is writing this rank's memory. */
bool window_peer_is_copying(const struct tutti_window *window, int peer);

/* ---- inbound.c ---- */
/* Returns the name of all messages with headers. */
struct message_name window_header_name(const struct tutti_window *window);
/* Returns the name of the message with the bytes of put number `put`, counted from 0 for each pair of ranks. */
struct message_name window_bytes_name(const struct tutti_window *window, uint32_t put);
/* Posts receives for the first message of each rank that sends messages, and for revocations. */
void window_open_inbound(struct tutti_window *window, struct router *router);
/* Handles the messages that have arrived; *progressed becomes true if there are some. MISMATCH: a rank has sent an
   invalid message, and the text names the rank. */
tutti_status window_handle_inbound(struct tutti_window *window, struct router *router, bool *progressed);
/* Cancels the receives of headers and bytes. Returns false if a transport still uses the memory; the caller polls the
   router and calls again. */
bool window_close_inbound(struct tutti_window *window, struct router *router);
/* Returns true if expected[r] headers of each rank r that sends messages have been handled. */
bool window_has_handled(const struct tutti_window *window, const uint64_t *expected);

/* ---- revocation.c ---- */
/* Posts the receives of all revocations. */
void window_receive_revocations(struct tutti_window *window, struct router *router);
/* Reports to the ranks of this host that this rank has freed its window alone; the caller rings their bells. */
void window_publish_freed(struct tutti_window *window);
/* Sends a revocation to a peer that does not read `freed`. `sent` is as in struct window_revocation. */
void window_send_revocation(struct tutti_window *window, struct router *router, int to, uint64_t sent);
/* Takes the revocations that have arrived; *progressed becomes true if there are some. */
void window_handle_revocations(struct tutti_window *window, bool *progressed);
/* Returns true if a revocation has not left yet. */
bool window_is_sending_revocations(const struct tutti_window *window);
/* Returns true if no revocation is being sent or awaited. */
bool window_revocations_are_over(const struct tutti_window *window);
/* Cancels the revocations. Returns false if a transport still uses their memory; the caller polls the router and calls
   again. */
bool window_cancel_revocations(struct tutti_window *window, struct router *router);
/* Returns true if the peer is known to have freed its window alone. Any thread may call it. */
bool window_peer_has_freed(const struct tutti_window *window, int peer);
/* Returns true if the peer has freed its window alone and will not handle message number `index`, counted from 0. */
bool window_peer_ignores_message(const struct tutti_window *window, int peer, uint64_t index);
/* Returns true if the peer has freed its window alone, and all its signals have been counted. */
bool window_peer_signals_no_more(const struct tutti_window *window, int peer);
/* Returns a rank that is known to have freed its window alone, or -1. */
int window_find_freed_peer(const struct tutti_window *window);
