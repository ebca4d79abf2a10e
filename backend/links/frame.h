/* The bytes of an open link. A frame is a header and a packet (processes/packet.h) with the data behind it. A stream
 * has the buffers of one connection. Its link owns it, and registry.lock guards it.
 *
 * Each frame acknowledges the bytes that its sender has read so far, so both ends know how many are in flight. At most
 * one window is in flight, which is far less than a kernel buffers for a process that does not read. So TCP's window
 * stays open even to a stopped process; a closed one would count as silence (TCP_USER_TIMEOUT). */
#pragma once
#include "backend/links/links.h"
#include "backend/links/tls.h"
#include "backend/processes/packet.h"

/* Limits of the bytes in flight: control messages may fill CTRL_WINDOW, other packets PACKET_WINDOW, and
   acknowledgements STREAM_WINDOW. A process acknowledges after each ACK_BYTES that it has read. Room is left for these
   acknowledgements, so two processes that both wait for room go on. STREAM_IN_BYTES holds the longest frame. */
enum { CTRL_WINDOW = 8192, PACKET_WINDOW = 12288, STREAM_WINDOW = 16384, ACK_BYTES = 2048, STREAM_IN_BYTES = 4096 };
/* The header of a frame. `length` counts the bytes that follow it. `received` is the number of bytes that the sender of
   the frame has read from the other end so far, modulo 2^32. */
struct frame { uint32_t length, received; };
/* The messages of a link. */
struct packet_and_address { struct packet packet; unsigned char process_address[PROCESS_ADDRESS_BYTES]; };
union link_message {
    struct packet packet;
    struct packet_and_ctrl_msg entry;
    struct packet_and_address process_address;
};
struct frame_stream {
    /* NULL if the link is not encrypted. */
    struct tls *tls;                                    /* owned */
    /* The bytes put on the stream so far, and how many of them the other end has acknowledged, both modulo 2^32. */
    uint32_t put, taken;
    /* The bytes of messages taken from the stream so far, and how many of them this end has acknowledged. */
    uint32_t got, acknowledged;
    /* The number of bytes in `in` that are not taken, and in `out` that are not sent. */
    size_t in_bytes, out_bytes;
    unsigned char in[STREAM_IN_BYTES], out[STREAM_WINDOW];
};
/* Queues a message of `bytes` bytes as a frame. Returns 0, or -EAGAIN if more than `most_in_flight` bytes would be sent
   or queued without an acknowledgement, or the buffer is full. */
int frame_stream_put(struct frame_stream *stream, const void *message, size_t bytes, size_t most_in_flight);
/* Sends as many queued bytes as the socket takes. Returns 0 or -errno. */
int frame_stream_push(struct frame_stream *stream, int socket);
/* Returns true if unsent bytes wait for room in the socket. */
bool frame_stream_waits_for_socket(const struct frame_stream *stream);
/* Returns true if bytes are unsent, or the TLS handshake still waits for the other end. */
bool frame_stream_has_unsent(const struct frame_stream *stream);
/* Frees the stream and its encryption. NULL is allowed. */
void frame_stream_free(struct frame_stream *stream);
/* Reads once from the socket into the stream. Returns the number of bytes, 0 at the end of the connection, or -errno:
   -EAGAIN means that no byte has arrived. */
int frame_stream_pull(struct frame_stream *stream, int socket);
/* Takes the next whole message out of the stream. Returns its bytes, 0 if it is incomplete, or -EPROTO for an invalid
   frame. */
int frame_stream_next_message(struct frame_stream *stream, union link_message *out);
