/* The public functions of windows: checks their arguments, and makes operations of them. */
#include "backend/base/dtype.h"
#include "backend/base/memory.h"
#include "backend/engine/error_text.h"
#include "c_api/call.h"
#include "include/tutti_window.h"

/* Refuses NULL and a window that was deregistered. Otherwise returns OK or the error of its communicator. */
static tutti_status window_check(const tutti_window *w)
{
    if (!w) return status_refuse(TUTTI_INVALID_ARGUMENT, "the window is NULL");
    TRY(call_check_comm(w->comm));
    if (atomic_load_explicit(&w->attached, memory_order_relaxed)) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT, "rank %d of %s uses a window that was deregistered; register it again",
        w->rank, w->comm->group.name);
}
/* ---- the life of a window ---- */
tutti_status tutti_window_register(void *memory, size_t count, tutti_dtype dtype, tutti_comm *comm, tutti_window **out)
{
    struct operation o;
    if (!out) return status_refuse(TUTTI_INVALID_ARGUMENT, "a window: the pointer to the result is NULL");
    TRY(call_prepare_operation(comm, WINDOW_OPERATION, count, 1, dtype, 0, NULL, &o));
    TRY(call_check_buffer(memory, o.part_bytes, "window"));
    return comm_register_window(comm, memory, o.part_bytes, dtype, out);
}
tutti_status tutti_window_deregister(tutti_window *w)
{
    tutti_status status = window_check(w);
    if (status == TUTTI_OK) return comm_deregister_window(w);
    /* A failed communicator gives the memory back all the same. */
    if (w && !comm_is_inherited_by_fork(w->comm)) windows_detach(w->comm, w, WINDOW_DETACH);
    return status;
}
tutti_status tutti_window_free(tutti_window *w)
{
    if (!w || comm_is_inherited_by_fork(w->comm)) return TUTTI_OK;
    windows_detach(w->comm, w, WINDOW_FREE);
    return tutti_window_release(w);
}
tutti_status tutti_window_retain(tutti_window *w)
{
    if (!w) return status_refuse(TUTTI_INVALID_ARGUMENT, "the window is NULL");
    atomic_fetch_add(&w->references, 1);
    return TUTTI_OK;
}
tutti_status tutti_window_release(tutti_window *w)
{
    if (w && !comm_is_inherited_by_fork(w->comm) && atomic_fetch_sub(&w->references, 1) == 1) comm_release_window(w);
    return TUTTI_OK;
}

/* ---- its operations ---- */
/* Checks the window, the request and the peer, and initialises an operation of `count` elements. `of` has the kind and
   the peer. */
static tutti_status window_prepare(tutti_window *w, size_t count, struct window_operation of, tutti_request *request,
    struct operation *out)
{
    if (request) request->refused = !w;
    if (!w) return status_refuse(TUTTI_INVALID_ARGUMENT, "the window is NULL");
    TRY(call_prepare_operation(w->comm, WINDOW_OPERATION, count, 1, w->dtype, 0, request, out));
    TRY(window_check(w));
    TRY(call_check_rank(w->comm, of.peer, "peer"));
    out->input = NULL;
    out->message.window = of;
    out->message.window.of = w;
    return TUTTI_OK;
}
/* Refuses a put of another type than the window's, or beyond its end. count and offset are in elements. */
static tutti_status window_check_put(const tutti_window *w, size_t count, tutti_dtype dtype, size_t offset)
{
    size_t room = w->bytes / dtype_bytes(w->dtype);
    if (dtype != w->dtype)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "a put of %s elements into a window of %s elements; convert them",
            dtype_bytes(dtype) ? dtype_name(dtype) : "unknown", dtype_name(w->dtype));
    if (offset <= room && count <= room - offset) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT,
        "a put of %zu elements at element %zu passes the end of the window, which has %zu", count, offset, room);
}
tutti_status tutti_window_put(tutti_window *w, const void *from, size_t count, tutti_dtype dtype, int peer,
    size_t offset, tutti_request *request)
{
    struct operation o;
    TRY(window_prepare(w, count, (struct window_operation){ .kind = WINDOW_PUT, .peer = peer }, request, &o));
    TRY(window_check_put(w, count, dtype, offset));
    TRY(call_check_buffer(from, o.part_bytes, "put"));
    o.input = from;
    o.message.window.offset = offset * dtype_bytes(dtype);
    return call_run_operation(&o, request);
}
tutti_status tutti_window_signal(tutti_window *w, int peer, tutti_request *request)
{
    struct operation o;
    TRY(window_prepare(w, 0, (struct window_operation){ .kind = WINDOW_SIGNAL, .peer = peer }, request, &o));
    return call_run_operation(&o, request);
}
tutti_status tutti_window_wait_signal(tutti_window *w, int peer, tutti_request *request)
{
    struct operation o;
    TRY(window_prepare(w, 0, (struct window_operation){ .kind = WINDOW_AWAIT, .peer = peer }, request, &o));
    return call_run_operation(&o, request);
}
tutti_status tutti_window_map(tutti_window *w, int peer, void **out)
{
    TRY(window_check(w));
    TRY(call_check_rank(w->comm, peer, "peer"));
    if (!out) return status_refuse(TUTTI_INVALID_ARGUMENT, "a window: the pointer to the result is NULL");
    if (!w->peers[peer].direct)
        return status_refuse(TUTTI_UNSUPPORTED, "rank %d of %s cannot map the window of rank %d: %s", w->rank,
            w->comm->group.name, peer,
            w->peers[peer].row ? "its memory is private, allocate it with tutti_mem_alloc (in Python torch_tutti.empty)"
                               : "the rank is on another host; use puts and signals");
    if (window_peer_has_freed(w, peer))
        return status_mark_refusal(window_fail_freed(&w->comm->group, w, peer, "cannot map it"));
    *out = w->peers[peer].memory;
    return TUTTI_OK;
}
