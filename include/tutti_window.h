/* tutti_window: one-sided writes. Each rank registers memory, and the other ranks write to it without a call of its
 * owner. A rank signals a peer when it has written, and the peer waits for the signal.
 *
 * A put is *direct* if both ranks are on one host and the target's memory is of tutti_mem_alloc: the caller copies the
 * bytes itself, and has written them when the put is over. Any other put is a message. The target's progress thread
 * receives it straight into the window, while the target computes. The put is over when the caller owns its buffer
 * again; the bytes may arrive later.
 *
 * Order: a rank that has waited for a signal sees all puts that the peer started before that signal. Puts send no
 * signal by themselves. Signals count: each wait takes one, and the ones that were not awaited stay. Between two
 * different peers there is no order. Two ranks that write the same bytes at the same time leave either value, or parts
 * of both.
 *
 * Requests, timeouts, errors and threads are as in tutti.h. Operations of a window run beside the collectives and
 * messages of its communicator, in the order of their calls. The library is not told when the program reads or writes
 * its own window, so signals must order these accesses and the puts of peers. */
#pragma once
#include "tutti.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct tutti_window tutti_window;
/* Registers count elements of memory. Collective over `comm`: all ranks must give the same count and type, or all get
   MISMATCH with two ranks that differ, and the communicator stays unchanged. The memory must stay until
   tutti_window_deregister has returned; meanwhile peers write it. count may be 0, for signals only. The window keeps a
   reference to `comm` (tutti_comm_retain). The caller frees the window by tutti_window_free. */
TUTTI_API tutti_status tutti_window_register(void *memory, size_t count, tutti_dtype dtype, tutti_comm *comm,
    tutti_window **out);
/* Ends the window. Collective: waits until this rank's operations are over and the puts and signals of all ranks have
   arrived. No peer uses the memory afterwards, also after an error. A peer of this host that is stopped within a put is
   awaited for 2 s, and then logged. Later calls on the window are refused. */
TUTTI_API tutti_status tutti_window_deregister(tutti_window *window);
/* Frees the window; NULL is allowed. A window that is still registered ends without the other ranks: puts under way are
   finished or dropped. The other ranks learn of it, on other hosts a moment later. From then on their puts, signals and
   maps are refused with INVALID_ARGUMENT, and so are their waits once they have taken the signals that this rank sent
   before; a deregister of theirs fails with MISMATCH. Never waits for a call of another rank. */
TUTTI_API tutti_status tutti_window_free(tutti_window *window);
/* Writes count elements from `from` to the window of rank `peer`, from element `offset` on. Refused with
   INVALID_ARGUMENT: another type than the window's, or elements beyond its end. `peer` may be the calling rank. */
TUTTI_API tutti_status tutti_window_put(tutti_window *window, const void *from, size_t count, tutti_dtype dtype,
    int peer, size_t offset, tutti_request *request);
/* Signals rank `peer`, after the puts to it that this rank has started. */
TUTTI_API tutti_status tutti_window_signal(tutti_window *window, int peer, tutti_request *request);
/* Waits for a signal of rank `peer` and takes it. A wait without a signal ends with TIMEOUT, and its text names the
   rank; a peer that dies or leaves ends it with PEER_LOST, and a peer that has freed its window alone with
   INVALID_ARGUMENT. */
TUTTI_API tutti_status tutti_window_wait_signal(tutti_window *window, int peer, tutti_request *request);
/* Returns the address of a rank's window in this process, if this rank writes it directly, else UNSUPPORTED. A read or
   write there is a read or write of the peer's memory. The address stays valid until the window is freed. When the peer
   has freed its memory, reads there may return zeros or other data of the peer. */
TUTTI_API tutti_status tutti_window_map(tutti_window *window, int peer, void **out);
/* Each retain adds a reference, and each release drops one; release allows NULL. While a reference is left, addresses
   of tutti_window_map stay valid after tutti_window_free, and other calls are refused. */
TUTTI_API tutti_status tutti_window_retain(tutti_window *window);
TUTTI_API tutti_status tutti_window_release(tutti_window *window);

#if defined(__cplusplus)
}
#endif
