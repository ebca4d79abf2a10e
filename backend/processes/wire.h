/* What travels over an open link: frames, each a header and one of the packets of registry.h with what comes behind it.
 * A wire is the buffers of one connection, and knows nothing of sockets but how to empty and fill them.
 *
 * Each frame says how much of the other's bytes its sender has read so far, so both know what is on its way. Of that
 * there is never more than a window, far less than what a kernel takes for a process that does not read: the window of
 * TCP stays open even to a process that is stopped, as a closed one would count as silence (TCP_USER_TIMEOUT). */
#pragma once
#include "backend/processes/links.h"
#include "backend/processes/registry.h"
#include "backend/processes/tls.h"

/* Letters may fill so much of the window, packets that are said once so much, and what only says how much was read all
   of it: one such for each TELL_BYTES, so two processes that both wait for room always hear of it. */
enum { CTRL_WINDOW = 8192, PACKET_WINDOW = 12288, WIRE_WINDOW = 16384, TELL_BYTES = 2048, WIRE_IN_BYTES = 4096 };
struct frame { uint32_t length, heard; }; /* of what follows; bytes of the other read so far, modulo 2^32 */
struct packet_and_address { struct packet packet; unsigned char process_address[PROCESS_ADDRESS_BYTES]; };
union link_message {
    struct packet packet;
    struct packet_and_ctrl_msg entry;
    struct packet_and_address process_address;
};
struct wire {
    struct tls *tls;                                    /* NULL: it is not encrypted */
    uint32_t put, taken;                                /* bytes ever put on it; of those, read by the other */
    uint32_t got, told;                                 /* bytes ever read here; of those, the other knows of */
    size_t in_bytes, out_bytes;
    unsigned char in[WIRE_IN_BYTES], out[WIRE_WINDOW];
};
/* 0, or -EAGAIN: it would be more than `most` bytes on their way, or more than there is room for. */
int wire_put(struct wire *wire, const void *message, size_t bytes, size_t most);
int wire_push(struct wire *wire, int socket);           /* sends what it takes; 0 or -errno */
bool wire_waits(const struct wire *wire);               /* for the socket to take more */
bool wire_has_unsent(const struct wire *wire); /* or for the other end, so that something can be said at once */
void wire_free(struct wire *wire);                      /* NULL, too */
int wire_pull(struct wire *wire, int socket);           /* bytes that came, 0 at the end, or -errno */
/* The next whole message: its bytes; 0: not here yet; -EPROTO: this is not what a link says. */
int wire_next(struct wire *wire, union link_message *out);
