/* A process address joins the addresses of all networks of the process, each preceded by its length. A process keeps
   its address, so its networks stay open from the first group that needs them to the last group of any kind. */
#include "backend/engine/networks.h"
#include "backend/base/settings.h"
#include "backend/control/lifetime.h"
#include "backend/engine/comm.h"
#include "backend/links/links.h"
#include "backend/transports/fabrics.h"
#include <stdio.h>
#include <string.h>

/* Returns the set of fabrics that TUTTI_TRANSPORT names: bit n stands for fabric_by_number(n). */
static unsigned networks_get_set(void) { return fabrics_parse_names(settings_get()->transport, NULL); }
/* Returns the first chosen fabric from number *number on, and advances *number past it. Returns NULL after the last
   one. */
static struct fabric *networks_next(int *number)
{
    unsigned set = networks_get_set();
    while (fabric_by_number(*number) && !(set >> *number & 1)) ++*number;
    return fabric_by_number((*number)++);
}

/* ---- addresses ---- */
/* The addresses of all networks of a process, each preceded by its length. */
struct addresses { size_t bytes; unsigned char content[FABRIC_ADDRESS_BYTES]; };
/* Adds a network's address, preceded by its length, to those that this process publishes. */
static tutti_status addresses_append(struct addresses *all, const unsigned char *address, size_t bytes)
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
/* Finds the address for `fabric` among those that another process has published. */
static tutti_status addresses_extract(const struct addresses *all, const struct fabric *fabric, unsigned char *out,
    size_t *bytes)
{
    size_t at = 0;
    int number = 0;
    uint16_t length;
    for (const struct fabric *f; (f = networks_next(&number)) != NULL; at += length) {
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
static const struct group *networks_get_group(const void *context) { return &((const tutti_comm *)context)->group; }
static const unsigned char *networks_get_nonce(void *context, int rank)
{
    return networks_get_group(context)->members[rank].identity.nonce;
}
/* Returns the address at which the process of a rank is reached on a fabric. */
static tutti_status networks_get_address(void *context, const struct fabric *fabric, int rank, void *out, size_t *bytes)
{
    struct addresses all = { .bytes = 0 };
    tutti_status status = link_get_process_address(networks_get_group(context)->peers[rank], all.content, &all.bytes);
    return status == TUTTI_OK ? addresses_extract(&all, fabric, out, bytes) : status;
}
/* Writes the host name of a rank and its address. */
static void networks_format_name(void *context, int rank, char *out, size_t bytes)
{
    const struct member *m = &networks_get_group(context)->members[rank];
    char address[SOCK_ADDRESS_TEXT_BYTES];
    snprintf(out, bytes, "%.40s (%s)", m->identity.host, sock_address_print(&m->contact, address));
}

/* ---- opening ---- */
static void networks_close_all(void)
{
    int number = 0;
    for (struct fabric *fabric; (fabric = networks_next(&number)) != NULL;) fabric_close(fabric);
}
/* Opens a network and adds its address to `all`. */
static tutti_status networks_open_fabric(struct fabric *fabric, const struct group *group, struct addresses *all)
{
    unsigned char address[FABRIC_ADDRESS_BYTES];
    size_t bytes = sizeof address;
    struct fabric_environment place = { .device = group->interface[0] ? group->interface : NULL,
        .simulated = group->members[0].simulates != 0 };
    TRY(fabric_open(fabric, group->members[group->rank].identity.nonce, &place, address, &bytes));
    tutti_status status = addresses_append(all, address, bytes);
    if (status != TUTTI_OK) fabric_close(fabric);
    return status;
}
/* Opens all chosen networks, or none: after an error those that are open are closed. */
static tutti_status networks_open_all(const struct group *group, struct addresses *all)
{
    int number = 0;
    for (struct fabric *fabric; (fabric = networks_next(&number)) != NULL;) {
        tutti_status status = networks_open_fabric(fabric, group, all);
        if (status == TUTTI_OK) continue;
        int opened = 0;
        for (struct fabric *o; (o = networks_next(&opened)) != fabric;) fabric_close(o);
        return status;
    }
    if (!peers_set_at_end(networks_close_all)) networks_close_all();
    return TUTTI_OK;
}
tutti_status networks_connect(tutti_comm *comm)
{
    struct fabric_callbacks callbacks = { .context = comm,
        .process = networks_get_nonce,
        .address = networks_get_address,
        .name = networks_format_name,
        .key = comm->group.key };
    struct addresses all = { .bytes = 0 };
    int number = 0;
    TRY(networks_open_all(&comm->group, &all));
    TRY(links_publish_address(all.content, all.bytes));
    for (struct fabric *fabric; (fabric = networks_next(&number)) != NULL;)
        TRY(fabric_connect(fabric, comm->router, &callbacks));
    return TUTTI_OK;
}
