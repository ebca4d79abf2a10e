/* Fuzzes the frames of an open link, which arrive in portions of any size, while frames are also sent. */
#include "backend/links/frame.h"
#include "tests/fuzz/input.h"
#include <stddef.h>

enum { MOST_FRAMES = 256 };

/* Checks what the parser of frames promises to the functions that handle a message. */
static void message_check(const union link_message *m, int bytes)
{
    FUZZ_CHECK((size_t)bytes >= sizeof m->packet && (size_t)bytes <= sizeof *m);
    if (m->packet.kind == CTRL_MSG)
        FUZZ_CHECK(m->entry.msg.length <= CHANNEL_BYTES && m->entry.msg.type < CHANNEL_TYPES
            && (size_t)bytes == offsetof(struct packet_and_ctrl_msg, msg.bytes) + m->entry.msg.length);
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct frame_stream stream;
    struct input in = { data, size };
    union link_message message;
    int bytes = 0;
    memset(&stream, 0, sizeof stream);
    for (int i = 0; i < MOST_FRAMES && in.left && bytes >= 0; i++) {
        size_t portion = input_byte(&in) * 16u + 1u, room = sizeof stream.in - stream.in_bytes;
        if (input_byte(&in) == 0) frame_stream_put(&stream, &stream.in, portion % sizeof(struct packet), PACKET_WINDOW);
        /* All bytes have been sent. */
        if (stream.out_bytes && portion % 2) stream.out_bytes = 0;
        stream.in_bytes += input_take(&in, stream.in + stream.in_bytes, portion < room ? portion : room);
        while ((bytes = frame_stream_next_message(&stream, &message)) > 0) message_check(&message, bytes);
        /* The buffer always has room for the rest of a frame. */
        FUZZ_CHECK(bytes < 0 || stream.in_bytes < sizeof stream.in);
    }
    return 0;
}
