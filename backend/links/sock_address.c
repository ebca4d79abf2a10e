/* Numbers and texts that follow from an address. */
#include "backend/links/sock_address.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

uint64_t sock_address_network(const struct sock_address *c)
{
    uint64_t network = 0;
    memcpy(&network, c->address, c->family == AF_INET6 ? 8 : 4);
    return network;
}
const char *sock_address_print(const struct sock_address *c, char out[CONTACT_TEXT_BYTES])
{
    char text[INET6_ADDRSTRLEN] = "nowhere";
    if (c->family) inet_ntop(c->family, c->address, text, sizeof text);
    snprintf(out, CONTACT_TEXT_BYTES,
        c->family == AF_INET6 ? "[%s]:%u"
            : c->family       ? "%s:%u"
                              : "%s",
        text, (unsigned)c->port);
    return out;
}
