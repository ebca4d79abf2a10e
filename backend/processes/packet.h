/* The packets that processes exchange after the handshake, on one host and over links. */
#pragma once
#include "backend/processes/peers.h"

enum { PROTOCOL = 9, CHANNEL_BYTES = 1024, CHANNEL_TYPES = 8 };
/* The kinds of packets. Only between processes of one host: DESCRIPTOR carries a file descriptor under a token, WANTED
 * requests a block of the receiver's arena, and BLOCK answers with its descriptor. Only over links: HEARTBEAT shows
 * that the sender is alive, ADDRESS_REQUEST asks for the receiver's process address, and ADDRESS carries it. GOODBYE
 * closes a connection in good order, JOIN_ABORTED reports a rank that cannot join, and CTRL_MSG carries a control
 * message. */
enum packet_kind {
    DESCRIPTOR = 1,
    GOODBYE,
    WANTED,
    BLOCK,
    JOIN_ABORTED,
    CTRL_MSG,
    HEARTBEAT,
    ADDRESS_REQUEST,
    ADDRESS,
};
/* A packet. A control message follows a CTRL_MSG packet, and a process address an ADDRESS packet. */
struct packet {
    char magic[8];
    uint32_t version, kind;
    /* The nonce of the receiver, and the token of the group, descriptor or block that the packet is about. */
    unsigned char to[16], token[16];
    /* The sender. In a JOIN_ABORTED packet it is the process that could not join. */
    struct identity from;
};
/* One rank's end of a channel: the token of its communicator, and the rank. */
struct channel_address { unsigned char token[16]; int32_t rank; };
bool channel_address_equal(const struct channel_address *a, const struct channel_address *b);
/* A control message. Only the first `length` of its bytes are sent. */
struct ctrl_msg {
    struct channel_address to;
    /* The rank of the sender in the same communicator. */
    int32_t from;
    uint16_t type;
    /* `hops` is the number of processes that have passed the message on; `flags` has bits of enum ctrl_msg_flag. */
    uint8_t hops, flags;
    uint32_t length;
    unsigned char bytes[CHANNEL_BYTES];
};
/* FINAL_MSG marks the final message of a rank. ANSWER marks a final message that a closed channel sends in reply.
   OPTIONAL_MSG marks a message that needs no answer. Neither a final nor an optional message connects a link. */
enum ctrl_msg_flag { FINAL_MSG = 1, ANSWER = 2, OPTIONAL_MSG = 4, CTRL_MSG_FLAGS = 7 };
struct packet_and_ctrl_msg { struct packet packet; struct ctrl_msg msg; };

/* Returns a packet from this process to the process with that nonce. */
struct packet packet_make_from_us(const unsigned char to[16], enum packet_kind kind);
/* Returns the bytes of a packet with a control message of that length. */
size_t ctrl_msg_packet_bytes(uint32_t length);
/* Returns true if a received packet is valid and addressed to this process. `bytes` is its length without the data
   behind it. */
bool packet_is_for_us(int bytes, const struct packet *packet);
/* Returns true if a received packet of `bytes` bytes has a valid control message and is addressed to this process. */
bool ctrl_msg_is_for_us(int bytes, const struct packet_and_ctrl_msg *message);
