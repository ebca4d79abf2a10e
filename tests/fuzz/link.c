/* What comes over an open link: bytes in portions of any size, of which frames are taken; and what is put on it. */
#include "backend/links/wire.h"
#include "tests/fuzz/input.h"
#include <stddef.h>

enum { MOST_FRAMES = 256 };

/* What the checks of a frame promise to whoever handles it. */
static void message_check(const union link_message *m, int bytes)
{
    FUZZ_CHECK((size_t)bytes >= sizeof m->packet && (size_t)bytes <= sizeof *m);
    if (m->packet.kind == CTRL_MSG)
        FUZZ_CHECK(m->entry.msg.length <= CHANNEL_BYTES && m->entry.msg.type < CHANNEL_TYPES
            && (size_t)bytes == offsetof(struct packet_and_ctrl_msg, msg.bytes) + m->entry.msg.length);
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct wire wire;
    struct input in = { data, size };
    union link_message message;
    int bytes = 0;
    memset(&wire, 0, sizeof wire);
    for (int i = 0; i < MOST_FRAMES && in.left && bytes >= 0; i++) {
        size_t portion = input_byte(&in) * 16u + 1u, room = sizeof wire.in - wire.in_bytes;
        if (input_byte(&in) == 0) wire_put(&wire, &wire.in, portion % sizeof(struct packet), PACKET_WINDOW);
        if (wire.out_bytes && portion % 2) wire.out_bytes = 0;         /* it has been sent */
        wire.in_bytes += input_take(&in, wire.in + wire.in_bytes, portion < room ? portion : room);
        while ((bytes = wire_next_message(&wire, &message)) > 0) message_check(&message, bytes);
        FUZZ_CHECK(bytes < 0 || wire.in_bytes < sizeof wire.in);        /* a frame that fits can always be whole */
    }
    return 0;
}
