/* A process checks its settings, and listens, before it knows whether the group has several hosts. Only groups whose
   hosts use links check addresses and make links. */
#include "backend/join/contacts.h"
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/settings.h"
#include "backend/join/interface.h"
#include "backend/join/mapping.h"
#include "backend/links/ports.h"
#include "backend/links/tls.h"
#include "backend/transports/fabrics.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

enum { SLICE_MS = 1000 };

/* ---- the transport ---- */
/* Is a candidate_at of settings_find_nearest: returns the name of a transport, or NULL after the last. */
static const char *transport_name_at(void *context, int index)
{
    (void)context;
    return fabric_name(index);
}
bool transport_is_given(void) { return *settings_get()->transport; }
tutti_status transport_check(void)
{
    char unknown[FABRIC_TEXT_BYTES], names[64] = "";
    unsigned set = fabrics_parse_names(settings_get()->transport, unknown);
    TRY(encryption_check());
    TRY(ports_check_setting());
    if (set && encryption_is_required() && set != 1u << fabric_number_by_name("tcp"))
        return status_fail(TUTTI_UNSUPPORTED,
            "TUTTI_ENCRYPTION=required, but TUTTI_TRANSPORT=%.100s: only tcp can be encrypted",
            settings_get()->transport);
    if (set) return TUTTI_OK;
    for (int i = 0; fabric_name(i); i++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "", fabric_name(i));
    const char *nearest = settings_find_nearest(unknown, transport_name_at, NULL);
    return status_fail(TUTTI_INVALID_ARGUMENT,
        "TUTTI_TRANSPORT=%.100s: unknown transport \"%s\"%s%s%s; known are %s, or several of them separated by commas",
        settings_get()->transport, unknown, nearest ? ", did you mean " : "", nearest ? nearest : "",
        nearest ? "?" : "", names);
}

/* ---- offering ---- */
tutti_status member_offer_address(const char *store_host, struct member *mine)
{
    const char *names = settings_get()->socket_ifname;
    struct sock_address address = { .family = AF_INET, .address = { 127, 0, 0, 1 } };
    if (!mine->simulates || *names) TRY(interface_find_address(names, store_host, &address));
    mine->contact = address;
    bool listens = !mine->simulates || mine->simulates & SIMULATES_LINKS;
    return address.family && listens ? links_listen(&address, &mine->contact) : TUTTI_OK;
}
const char *member_print(const struct group *group, int rank, char out[MEMBER_TEXT_BYTES])
{
    const struct member *m = &group->members[rank];
    char address[SOCK_ADDRESS_TEXT_BYTES];
    snprintf(out, MEMBER_TEXT_BYTES, "rank %d (process %llu on %.40s, %s)", rank, (unsigned long long)m->identity.pid,
        m->identity.host, sock_address_print(&m->contact, address));
    return out;
}
/* Returns the first rank of some host that is not the host of `rank`. */
static int rank_on_other_host(const struct group *group, int rank)
{
    return layout_rank(group->layout, layout_host(group->layout, rank) == 0, 0);
}
tutti_status members_check_addresses(const struct group *group)
{
    char here[MEMBER_TEXT_BYTES], there[MEMBER_TEXT_BYTES];
    for (int r = 0; r < group->size; r++) {
        const struct member *m = &group->members[r];
        bool has_no_address = !m->contact.family || !m->contact.port;
        if (!has_no_address && (m->simulates || !sock_address_is_loopback(&m->contact))) continue;
        return status_fail(TUTTI_INVALID_ARGUMENT,
            "%s cannot be reached from other hosts, but %s of %s is on another one: %s; name a network interface "
            "that leads there with TUTTI_SOCKET_IFNAME",
            member_print(group, r, here), member_print(group, rank_on_other_host(group, r), there), group->name,
            has_no_address ? "it offers no address" : "it offers a loopback address");
    }
    return TUTTI_OK;
}

/* ---- linking ---- */
/* Writes that this rank has no link to `rank`. The reason is this thread's last error. */
static void rank_format_no_link(const struct group *group, int rank, char out[STATUS_DETAIL_BYTES])
{
    char why[STATUS_DETAIL_BYTES / 2], here[MEMBER_TEXT_BYTES], there[MEMBER_TEXT_BYTES];
    snprintf(why, sizeof why, "%.500s", status_detail());
    snprintf(out, STATUS_DETAIL_BYTES, "%s of %s has no link to %s: %s", member_print(group, group->rank, here),
        group->name, member_print(group, rank, there), why);
}
/* Fails with `status` because this rank has no link to `rank`. The reason is this thread's last error. */
static tutti_status rank_fail_no_link(const tutti_comm *comm, int rank, tutti_status status)
{
    char text[STATUS_DETAIL_BYTES];
    rank_format_no_link(&comm->group, rank, text);
    return status_fail(status, "%s", text);
}
/* Warns once that a link takes long: a firewall that drops packets gives no answer before the timeout. */
static void rank_warn_no_link(const struct group *group, int rank, int64_t *warn_ms)
{
    char text[STATUS_DETAIL_BYTES];
    if (clock_ms() < *warn_ms) return;
    *warn_ms = INT64_MAX;
    rank_format_no_link(group, rank, text);
    LOG(WARN, "after %d s %s", JOIN_WARN_MS / 1000, text);
}
/* Waits for the link to a rank of another host, and checks for aborted joins and failures meanwhile. */
static tutti_status rank_await_link(tutti_comm *comm, int rank, int64_t deadline_ms)
{
    struct peer *peer = comm->group.peers[rank];
    int64_t warn_ms = clock_ms() + JOIN_WARN_MS;
    for (;;) {
        int64_t slice_ms = clock_ms() + SLICE_MS;
        bool is_last_slice = slice_ms >= deadline_ms;
        tutti_status status = link_await(peer, is_last_slice ? deadline_ms : slice_ms);
        if (status == TUTTI_OK) return status;
        if (is_last_slice || status != TUTTI_TIMEOUT) return rank_fail_no_link(comm, rank, status);
        rank_warn_no_link(&comm->group, rank, &warn_ms);
        TRY(shm_group_check_join(&comm->group));
        if (comm_poll_reason_to_fail(comm)) TRY(comm_fail_if_due(comm));
    }
}
tutti_status hosts_connect_links(tutti_comm *comm, int64_t deadline_ms)
{
    const struct group *group = &comm->group;
    const int hosts = group->layout->hosts;
    for (int64_t ahead = 1; ahead < hosts; ahead *= 2) {
        int rank = layout_rank(group->layout, (int)((group->host + ahead) % hosts), 0);
        if (group->peers[rank]) TRY(rank_await_link(comm, rank, deadline_ms));
    }
    return TUTTI_OK;
}
