/* A process address joins the addresses of all networks of the process, each preceded by its length. A process keeps
   its address, so its networks stay open from the first group that needs them to the last group of any kind. */
#include "backend/engine/networks.h"
#include "backend/base/settings.h"
#include "backend/engine/comm.h"
#include "backend/transports/fabrics.h"
#include <stdio.h>
#include <string.h>

static unsigned of_process(void) { return fabrics_parse(settings_get()->transport, NULL); }
/* Returns the next fabric from that number on, and NULL after the last one. */
static struct fabric *next_fabric(int *number)
{
    unsigned set = of_process();
    while (fabric_at(*number) && !(set >> *number & 1)) ++*number;
    return fabric_at((*number)++);
}

/* ---- addresses ---- */
struct addresses { size_t bytes; unsigned char content[FABRIC_ADDRESS_BYTES]; };
static tutti_status address_add(struct addresses *all, const unsigned char *address, size_t bytes)
{
    uint16_t length = (uint16_t)bytes;
    if (all->bytes + sizeof length + bytes > sizeof all->content)
        return status_fail(TUTTI_UNSUPPORTED,
            "the addresses of all networks take more than %d bytes: name fewer networks in TUTTI_TRANSPORT, or "
            "fewer devices in UCX_NET_DEVICES",
            FABRIC_ADDRESS_BYTES);
    memcpy(all->content + all->bytes, &length, sizeof length);
    memcpy(all->content + all->bytes + sizeof length, address, bytes);
    all->bytes += sizeof length + bytes;
    return TUTTI_OK;
}
static tutti_status address_take(const struct addresses *all, const struct fabric *fabric, unsigned char *out,
    size_t *bytes)
{
    size_t at = 0;
    int number = 0;
    uint16_t length;
    for (const struct fabric *f; (f = next_fabric(&number)) != NULL; at += length) {
        if (all->bytes < at + sizeof length) break;
        memcpy(&length, all->content + at, sizeof length);
        at += sizeof length;
        if (all->bytes < at + length) break;
        if (f != fabric) continue;
        memcpy(out, all->content + at, length);
        *bytes = length;
        return TUTTI_OK;
    }
    return status_fail(TUTTI_INTERNAL, "the address of another process has no part for %s", fabric->operations->name);
}

/* ---- callbacks of the fabrics ---- */
static const struct group *group_of(const void *context) { return &((const tutti_comm *)context)->group; }
static const unsigned char *process_of(void *context, int rank)
{
    return group_of(context)->members[rank].identity.nonce;
}
static tutti_status address_of(void *context, const struct fabric *fabric, int rank, void *out, size_t *bytes)
{
    struct addresses all = { .bytes = 0 };
    tutti_status status = link_process_address(group_of(context)->peers[rank], all.content, &all.bytes);
    return status == TUTTI_OK ? address_take(&all, fabric, out, bytes) : status;
}
static void name_of(void *context, int rank, char *out, size_t bytes)
{
    const struct member *m = &group_of(context)->members[rank];
    char address[CONTACT_TEXT_BYTES];
    snprintf(out, bytes, "%.40s (%s)", m->identity.host, contact_print(&m->contact, address));
}

/* ---- opening ---- */
static void close_all(void)
{
    int number = 0;
    for (struct fabric *f; (f = next_fabric(&number)) != NULL;) fabric_close(f);
}
static tutti_status open_one(struct fabric *fabric, const struct group *g, struct addresses *all)
{
    unsigned char address[FABRIC_ADDRESS_BYTES];
    size_t bytes = sizeof address;
    struct fabric_place place = { .device = g->interface[0] ? g->interface : NULL,
        .simulated = g->members[0].simulates != 0 };
    TRY(fabric_open(fabric, g->members[g->rank].identity.nonce, &place, address, &bytes));
    tutti_status status = address_add(all, address, bytes);
    if (status != TUTTI_OK) fabric_close(fabric);
    return status;
}
static tutti_status open_all(const struct group *g, struct addresses *all)
{
    int number = 0;
    for (struct fabric *f; (f = next_fabric(&number)) != NULL;) {
        tutti_status status = open_one(f, g, all);
        if (status == TUTTI_OK) continue;
        int opened = 0;
        for (struct fabric *o; (o = next_fabric(&opened)) != f;) fabric_close(o);
        return status;
    }
    if (!peers_at_end(close_all)) close_all();
    return TUTTI_OK;
}
tutti_status networks_connect(tutti_comm *comm)
{
    struct fabric_callbacks callbacks = {
        .context = comm, .process = process_of, .address = address_of, .name = name_of, .key = comm->group.key
    };
    struct addresses all = { .bytes = 0 };
    int number = 0;
    TRY(open_all(&comm->group, &all));
    TRY(links_publish(all.content, all.bytes));
    for (struct fabric *f; (f = next_fabric(&number)) != NULL;) TRY(fabric_connect(f, comm->router, &callbacks));
    return TUTTI_OK;
}
