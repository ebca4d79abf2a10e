/* Numbers and texts that follow from an address. */
#include "backend/links/sock_address.h"
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

uint64_t sock_address_network(const struct sock_address *address)
{
    uint64_t network = 0;
    memcpy(&network, address->address, address->family == AF_INET6 ? 8 : 4);
    return network;
}
const char *sock_address_print(const struct sock_address *address, char out[SOCK_ADDRESS_TEXT_BYTES])
{
    char text[INET6_ADDRSTRLEN] = "nowhere";
    if (address->family) inet_ntop(address->family, address->address, text, sizeof text);
    snprintf(out, SOCK_ADDRESS_TEXT_BYTES,
        address->family == AF_INET6 ? "[%s]:%u"
            : address->family       ? "%s:%u"
                                    : "%s",
        text, (unsigned)address->port);
    return out;
}
