/* On which network interface, and at which address of it, other hosts reach this process. */
#pragma once
#include "backend/processes/links.h"

enum { INTERFACE_NAME_BYTES = 16 };
struct interface {                                      /* one address of one; several follow each other */
    char name[INTERFACE_NAME_BYTES];
    bool up;                                            /* and plugged in */
    struct contact contact;                             /* its port is 0 */
};
bool contact_is_loopback(const struct contact *contact);       /* nobody but its own host reaches it */
/* Of those in the table the first that `names` allows, in the order in which it names them, as TUTTI_SOCKET_IFNAME
   does: "eth,ib0" how names begin, "=eth0" whole names, "^docker,lo" all but these, of which none is loopback. It
   must be up. Addresses of a link alone are taken only where there is no other. NULL: there is none. */
const struct interface *interface_choose(const struct interface *table, int count, const char *names);
/* `names` chooses if it is not empty: INVALID_ARGUMENT lists what there is. Else the interface from which
   `store_host` (or NULL) is reached, or if that is not known, or a loopback one, the first that interface_choose
   finds. *out: family 0 if there is none. */
tutti_status interface_find(const char *names, const char *store_host, struct contact *out);
/* The one that has that address; empty: none has. */
void interface_name(const struct contact *contact, char out[INTERFACE_NAME_BYTES]);
