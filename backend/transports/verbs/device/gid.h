/* Chooses the address of a port. Its GID table has one entry for each kind and each address of each network interface;
   the packets of this job use one of them. */
#pragma once
#include "backend/transports/verbs/device/library.h"
#include <net/if.h>

enum { GID_TEXT_BYTES = 72, GIDS_TEXT_BYTES = 400 };
struct gid {
    union ibv_gid raw;
    /* The index of the entry in the port's table. */
    int index;
    enum ibv_gid_type kind;
    /* The interface is empty with InfiniBand, or if it is unknown. */
    char interface[IF_NAMESIZE];
};
struct gid_table { int count; struct gid *entries; };

/* Reads the GID table of a port, in the order of the indices and without unset entries. `length` is the length of the
   port's table. `sysfs` is the folder to read as /sys: its files describe the entries if the library has no
   ibv_query_gid_table. The caller frees the table with gid_table_finish. */
tutti_status gid_table_init(struct ibv_context *context, uint8_t port, int length, const char *sysfs,
    struct gid_table *out);
/* Frees the entries of the table. */
void gid_table_finish(struct gid_table *table);
/* A network interface and its addresses, as GIDs. */
enum { GID_ADDRESSES = 16 };
struct gid_interface { const char *name; int count; union ibv_gid address[GID_ADDRESSES]; };
/* Returns the addresses of the network interface `name`, which must stay valid; an unknown interface has none. */
struct gid_interface gid_interface_read(const char *name);
/* Returns the best RoCE v2 entry, or NULL if no entry is usable. Entries with an address of `interface` come first,
   then those for which the device reports the name of `interface`. Addresses come first because a container may know
   the interface by another name. A NULL interface accepts any entry. Among equal ones, link-local addresses come after
   others, then addresses of another family than `family` (0: no preference), then higher indices. */
const struct gid *gid_table_choose(const struct gid_table *table, const struct gid_interface *interface, int family);
/* Returns the entry with this index of the port's table, or NULL if it is unset. */
const struct gid *gid_table_find_index(const struct gid_table *table, int index);
/* Writes an entry such as "10.0.0.2 on eth0" to `out`, and returns `out`. */
const char *gid_print(const struct gid *gid, char out[GID_TEXT_BYTES]);
/* Writes all entries that fit to `out`, such as "1 RoCE v2 10.0.0.2 on eth0, …", or "none". Returns `out`. */
const char *gid_table_print(const struct gid_table *table, char out[GIDS_TEXT_BYTES]);
