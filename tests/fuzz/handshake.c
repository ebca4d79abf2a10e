/* Fuzzes the handshake of two processes that know a key, while an attacker between them changes and inserts bytes. A
   process for which the handshake succeeds must have received the messages of the other one unchanged. */
#include "backend/processes/handshake.h"
#include "tests/fuzz/pipes.h"

enum { STEPS = 24 };
enum step {
    CALLER_GOES_ON,
    CALLED_GOES_ON,
    CHANGED_TO_CALLER,
    CHANGED_TO_CALLED,
    ADDED_TO_CALLER,
    ADDED_TO_CALLED,
    KINDS
};
enum stage { BEGINS, AWAITS_HELLO, AWAITS_ANSWER, OVER };
struct end { struct handshake handshake; enum stage stage; int socket; };

static const struct identity caller_identity = { { 1 }, 17, "the caller" };
static const unsigned char called_process[16] = { 2 };
static struct key_id key;

int LLVMFuzzerInitialize(int *count, char ***arguments)
{
    static const unsigned char bytes[KEY_BYTES] = "the key of the group";
    (void)count;
    (void)arguments;
    FUZZ_CHECK(group_key_add(bytes, &key) == TUTTI_OK);
    return 0;
}
static void check_hello(const struct handshake *caller, const struct handshake *called)
{
    struct handshake_hello received = called->hello, sent = caller->hello;
    sent.from.host[sizeof sent.from.host - 1] = 0;
    FUZZ_CHECK(caller->has_sent_hello && memcmp(&received, &sent, sizeof sent) == 0);
    FUZZ_CHECK(memcmp(&caller->opening, &called->opening, sizeof called->opening) == 0);
}
static void caller_go_on(struct end *caller, const struct end *called)
{
    struct handshake *h = &caller->handshake;
    int got = 0;
    if (caller->stage == BEGINS) got = handshake_receive_opening(h, caller->socket);
    if (got > 0) got = handshake_send_hello(h, &caller_identity, called_process, &key, 7, caller->socket);
    if (caller->stage == BEGINS && got == 0 && h->has_sent_hello) caller->stage = AWAITS_ANSWER;
    else if (caller->stage == AWAITS_ANSWER) {
        got = handshake_receive_answer(h, caller->socket);
        if (got == 1 || got == -EALREADY)
            FUZZ_CHECK(memcmp(&h->answer, &called->handshake.answer, sizeof h->answer) == 0);
        if (got == 1) got = handshake_send_confirm(h, caller->socket);
        if (got == 0 && h->answer.head.kind == HANDSHAKE_WELCOME && !h->received) caller->stage = OVER;
    }
    if (got < 0) caller->stage = OVER;
}
static void called_go_on(struct end *called, const struct end *caller, struct input *in)
{
    static const enum handshake_kind kinds[] = { HANDSHAKE_WELCOME, HANDSHAKE_WELCOME, HANDSHAKE_SUPERFLUOUS,
        HANDSHAKE_REFUSED };
    struct handshake *h = &called->handshake;
    int got = 0;
    if (called->stage == AWAITS_HELLO) {
        got = handshake_receive_hello(h, called_process, called->socket);
        if (got < 0) FUZZ_CHECK(handshake_refusal_text(h, got) != NULL);
        if (got <= 0) goto end;
        check_hello(&caller->handshake, h);
        got = handshake_send_answer(h, kinds[input_byte(in) % 4], input_byte(in), called->socket);
        called->stage = AWAITS_ANSWER;
    } else if (called->stage == AWAITS_ANSWER) got = handshake_receive_confirm(h, called->socket);
end:
    if (got < 0 || (got > 0 && called->stage == AWAITS_ANSWER)) called->stage = OVER;
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    struct end caller = { .stage = BEGINS }, called = { .stage = AWAITS_HELLO };
    pipes_reset();
    caller.socket = pipe_make();
    called.socket = pipe_other(caller.socket);
    const char *magic = input_byte(&in) % 2 ? handshake_of_links : handshake_of_peers;
    handshake_begin(&caller.handshake, magic);
    FUZZ_CHECK(handshake_send_opening(&called.handshake, magic, called.socket) == 0);
    for (int i = 0; i < STEPS && (in.left || i < 6); i++) {
        enum step step = in.left ? input_byte(&in) % KINDS : (enum step)(i % 2);
        switch (step) {
        case CALLER_GOES_ON: caller_go_on(&caller, &called); break;
        case CALLED_GOES_ON: called_go_on(&called, &caller, &in); break;
        case CHANGED_TO_CALLER: pipe_change(caller.socket, &in); break;
        case CHANGED_TO_CALLED: pipe_change(called.socket, &in); break;
        case ADDED_TO_CALLER: pipe_insert(caller.socket, &in); break;
        case ADDED_TO_CALLED: pipe_insert(called.socket, &in); break;
        case KINDS: break;
        }
    }
    return 0;
}
