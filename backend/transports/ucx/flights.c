/* What UCX is at, and the memory for it: rooms are kept by powers of two, so that in the long run nothing is
   allocated. */
#include "backend/base/memory.h"
#include "backend/transports/pieces.h"
#include "backend/transports/ucx/worker.h"
#include <stdlib.h>

enum { SMALLEST_ROOM = 256 };

static int class_of(size_t room)
{
    int class = 0;
    while (class < FLIGHT_CLASSES && (size_t)SMALLEST_ROOM << class < room) class++;
    return class;
}
struct flight *flight_new(size_t room)
{
    int class = class_of(room);
    bool kept = class < FLIGHT_CLASSES;
    struct flight *f = kept ? worker.spare[class] : NULL;
    size_t before = size_round_up(sizeof *f, 64);
    if (f) worker.spare[class] = f->next;
    else if (!(f = memory_aligned(before + (kept ? (size_t)SMALLEST_ROOM << class : room)))) return NULL;
    *f = (struct flight){ .class = class, .room = (unsigned char *)f + before };
    return f;
}
void flight_free(struct flight *f)
{
    if (f->class == FLIGHT_CLASSES) {
        free(f);
        return;
    }
    f->next = worker.spare[f->class];
    worker.spare[f->class] = f;
}
void flight_enlist(struct flight *f, struct flight **list)
{
    f->next = *list;
    if (f->next) f->next->at = &f->next;
    f->at = list;
    *list = f;
}
void flight_remove(struct flight *f)
{
    if (!f->at) return;
    *f->at = f->next;
    if (f->next) f->next->at = f->at;
    f->at = NULL;
}

/* ---- taking off and landing ---- */
static void land(void *request, struct flight *f, ucs_status_t status)
{
    ucx.ucp_request_free(request);
    f->status = status;
    if (status != UCS_OK && f->endpoint) endpoint_note_broken(f->endpoint, status);
    flight_remove(f);
    if (f->owner) {
        port_land(f->owner, f);
        return;
    }
    if (f->endpoint) endpoint_said(f);
    flight_free(f);
}
static void on_sent(void *request, ucs_status_t status, void *flight) { land(request, flight, status); }
static void on_fetched(void *request, ucs_status_t status, size_t bytes, void *flight)
{
    (void)bytes; /* as announced */
    land(request, flight, status);
}
/* false: it is over already, with flight->status. true: its callback says when, or has: UCX calls it before it returns
   where it finds that the sender's connection is no more. */
static bool is_under_way(struct flight *f, ucs_status_ptr_t request)
{
    if (UCS_PTR_IS_PTR(request)) return true;
    f->status = UCS_PTR_STATUS(request);
    if (f->status != UCS_OK && f->endpoint) endpoint_note_broken(f->endpoint, f->status);
    return false;
}
bool flight_send(struct flight *f, const void *data, unsigned flags)
{
    const ucp_request_param_t parameters = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA
            | UCP_OP_ATTR_FIELD_FLAGS,
        .flags = flags,
        .cb.send = on_sent,
        .user_data = f };
    const void *from = data ? data : f->room;
    return is_under_way(f,
        ucx.ucp_am_send_nbx(f->endpoint->ep, UCX_MESSAGE_ID, &f->header, sizeof f->header, from, f->bytes,
            &parameters));
}
bool flight_fetch(struct flight *f, void *descriptor, void *buffer)
{
    const ucp_request_param_t parameters = { .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = on_fetched,
        .user_data = f };
    void *to = buffer ? buffer : f->room;
    return is_under_way(f, ucx.ucp_am_recv_data_nbx(worker.ucp, descriptor, to, f->bytes, &parameters));
}
