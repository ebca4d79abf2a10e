/* The address of a port: of the many entries in its table (one for each kind and each address of each network
   interface) the one that packets of this job go by. */
#pragma once
#include "backend/transports/verbs/library.h"
#include <net/if.h>

enum { GID_TEXT_BYTES = 72, GIDS_TEXT_BYTES = 400 };
struct gid {
    union ibv_gid raw;
    int index;
    enum ibv_gid_type kind;
    char interface[IF_NAMESIZE]; /* empty: InfiniBand, or not known */
};
struct gid_table { int count; struct gid *rows; };

/* What a port has, in the order of the indices; entries that are not set are left out. `length`: of its table, `sysfs`:
   where the kernel says which is which, for libraries that do not. Free it with gid_table_finish. */
tutti_status gid_table_init(struct ibv_context *context, uint8_t port, int length, const char *sysfs,
    struct gid_table *out);
void gid_table_finish(struct gid_table *table);
/* A network interface and its addresses, as GIDs. */
enum { GID_ADDRESSES = 16 };
struct gid_interface { const char *name; int count; union ibv_gid address[GID_ADDRESSES]; };
struct gid_interface gid_interface_of(const char *name);       /* no address, if there is no such interface */
/* Of RoCE version 2, with an address of that interface, or at least of it as the device tells (which in a container may
   know other names); of any if that is NULL. Addresses of the family wanted (AF_INET, AF_INET6, 0: no matter) come
   before others, those of a link alone last, then the lowest index. NULL: there is none. */
const struct gid *gid_choose(const struct gid_table *table, const struct gid_interface *interface, int family);
const struct gid *gid_at(const struct gid_table *table, int index); /* NULL: that entry is not set */
const char *gid_print(const struct gid *gid, char out[GID_TEXT_BYTES]); /* "10.0.0.2 on eth0" */
/* "1 RoCE v2 10.0.0.2 on eth0, …", as much as there is room for */
const char *gid_table_print(const struct gid_table *table, char out[GIDS_TEXT_BYTES]);
