/* Addresses of processes on other hosts. */
#pragma once
#include <stdint.h>

/* Where a process listens, or one end of a connection. The size is fixed and there is no padding. */
struct sock_address {
    /* AF_INET, AF_INET6, or 0 for nowhere. The port is in host byte order. */
    uint16_t family, port;
    /* The scope of a link-local address, as the listening host numbers it. */
    uint32_t scope;
    unsigned char address[16];
};
enum { SOCK_ADDRESS_TEXT_BYTES = 64 };
/* Returns a number for the network of an address: equal for connections of one IPv4 host or one IPv6 network. An IPv6
   host may use any number of addresses of its network. */
uint64_t sock_address_network(const struct sock_address *address);
/* Prints the address and port, as in "10.0.0.1:4711", or "nowhere". Returns `out`. */
const char *sock_address_print(const struct sock_address *address, char out[SOCK_ADDRESS_TEXT_BYTES]);
