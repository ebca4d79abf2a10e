/* The ports at which this process listens for processes of other hosts: any free port, or those of TUTTI_PORTS. */
#pragma once
#include "include/tutti.h"
#include <stdbool.h>

/* The first and the last port of a range; 0 and 0 stand for any port. */
struct port_range { uint16_t first, last; };
/* Reads a range as in "30000-30100", or an empty text, which stands for any port. Returns false if it is neither. */
bool port_range_parse(const char *text, struct port_range *out);
/* Checks TUTTI_PORTS. INVALID_ARGUMENT: the text gives the value and the right form. */
tutti_status ports_check_setting(void);

/* Opens a socket that listens at `port` (0: any). Returns the socket, or -errno; -EADDRINUSE: the port is taken. */
typedef int listen_at_port(void *context, uint16_t port);
/* Calls `listen_at` for the ports of TUTTI_PORTS in their order, and skips those that are taken. Returns the socket,
   or -errno; -EADDRINUSE: all ports of the range are taken. */
int ports_listen_at_first_free(listen_at_port *listen_at, void *context);
enum { PORTS_TEXT_BYTES = 256 };
/* Prints the reason why ports_listen_at_first_free failed, and what to do if the range is used up. `error` is a
   -errno. Returns `out`. */
const char *ports_print_listen_error(int error, char out[PORTS_TEXT_BYTES]);
