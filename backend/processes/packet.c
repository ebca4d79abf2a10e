/* Every received length is checked before its use. */
#include "backend/processes/packet.h"
#include "backend/processes/registry.h"
#include <assert.h>
#include <stddef.h>
#include <string.h>

static const char magic[8] = "tutti-p";
static_assert(sizeof(struct identity) == 64 && sizeof(struct packet) == 112
        && offsetof(struct packet_and_ctrl_msg, msg) == 112 && offsetof(struct ctrl_msg, bytes) == 32,
    "no padding");

bool channel_address_equal(const struct channel_address *a, const struct channel_address *b)
{
    return a->rank == b->rank && memcmp(a->token, b->token, sizeof a->token) == 0;
}
struct packet packet_make_from_us(const unsigned char to[16], enum packet_kind kind)
{
    struct packet packet = { .version = PROTOCOL, .kind = kind, .from = registry.self };
    memcpy(packet.magic, magic, sizeof magic);
    memcpy(packet.to, to, sizeof packet.to);
    return packet;
}
size_t ctrl_msg_packet_bytes(uint32_t length)
{
    return sizeof(struct packet) + offsetof(struct ctrl_msg, bytes) + length;
}
bool ctrl_msg_is_for_us(int bytes, const struct packet_and_ctrl_msg *message)
{
    return bytes >= (int)ctrl_msg_packet_bytes(0) && message->packet.kind == CTRL_MSG
        && packet_is_for_us(sizeof message->packet, &message->packet) && message->msg.length <= CHANNEL_BYTES
        && bytes == (int)ctrl_msg_packet_bytes(message->msg.length) && message->msg.type < CHANNEL_TYPES
        && message->msg.flags <= CTRL_MSG_FLAGS;
}
bool packet_is_for_us(int bytes, const struct packet *packet)
{
    return bytes == (int)sizeof *packet && memcmp(packet->magic, magic, sizeof magic) == 0
        && packet->version == PROTOCOL && nonce_equal(packet->to, registry.self.nonce);
}
