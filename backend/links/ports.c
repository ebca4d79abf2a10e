/* All ranks try the ports of a range in the same order. Two processes that try one port at once cannot both listen
   there, because the kernel refuses the second one's bind or listen. */
#include "backend/links/ports.h"
#include "backend/base/settings.h"
#include "backend/base/status.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DIGITS = 5 };

/* ---- the setting ---- */
/* Reads a port from 1 to 65535. Returns the text after it, or NULL. */
static const char *port_number_parse(const char *text, uint16_t *out)
{
    size_t digits = strspn(text, "0123456789");
    unsigned long port = digits && digits <= MOST_DIGITS ? strtoul(text, NULL, 10) : 0;
    *out = (uint16_t)port;
    return port >= 1 && port <= UINT16_MAX ? text + digits : NULL;
}
bool port_range_parse(const char *text, struct port_range *out)
{
    *out = (struct port_range){ 0, 0 };
    if (!*text) return true;
    struct port_range range;
    const char *rest = port_number_parse(text, &range.first);
    if (rest) rest = *rest == '-' ? port_number_parse(rest + 1, &range.last) : NULL;
    if (!rest || *rest || range.last < range.first) return false;
    *out = range;
    return true;
}
tutti_status ports_check_setting(void)
{
    struct port_range range;
    if (port_range_parse(settings_get()->ports, &range)) return TUTTI_OK;
    return status_fail(TUTTI_INVALID_ARGUMENT,
        "TUTTI_PORTS=%.100s: not a range of ports; give the first and the last one, as in 30000-30100",
        settings_get()->ports);
}

/* ---- listening ---- */
/* Returns the range of TUTTI_PORTS, which ports_check_setting has accepted. */
static struct port_range ports_get_allowed_range(void)
{
    struct port_range range;
    port_range_parse(settings_get()->ports, &range);
    return range;
}
int ports_listen_at_first_free(listen_at_port *listen_at, void *context)
{
    struct port_range range = ports_get_allowed_range();
    int socket = listen_at(context, range.first);
    for (int port = range.first + 1; port <= range.last && socket == -EADDRINUSE; port++)
        socket = listen_at(context, (uint16_t)port);
    return socket;
}
const char *ports_print_listen_error(int error, char out[PORTS_TEXT_BYTES])
{
    struct port_range range = ports_get_allowed_range();
    if (error != -EADDRINUSE || !range.first) {
        snprintf(out, PORTS_TEXT_BYTES, "%s", strerror(-error));
        return out;
    }
    snprintf(out, PORTS_TEXT_BYTES,
        "TUTTI_PORTS=%d-%d is used up on this host (ports taken: %d). Set a larger range: each process takes one port "
        "for its links, and at least one more for messages over TCP",
        range.first, range.last, range.last - range.first + 1);
    return out;
}
