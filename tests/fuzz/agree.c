/* Fuzzes agreement messages of other ranks to a rank that begins and ends operations, waits, fails and leaves
   meanwhile; and the error text that is made of them. */
#include "backend/engine/error_text.h"
#include "tests/fuzz/input.h"

enum { RANKS = 5, HOSTS = 3, STEPS = 64 };
enum input_kind { MESSAGE_COMES, BEGINS, ARRIVES, WAITS_FOR, ENDS, FAILS, LOSES, LEAVES, TIME_PASSES, INPUT_KINDS };

static const int host_of_rank[RANKS] = { 0, 0, 1, 1, 2 };

static void fill_call(struct input *in, struct agree_call *out)
{
    out->number = (uint64_t)(int8_t)input_byte(in);
    out->fingerprint = input_byte(in) % 4;
    if (input_byte(in) == 0) input_take(in, out->declaration, sizeof out->declaration);
    else input_take(in, out->declaration, 12);
}
/* Encodes a message that is nearly one of a real rank. */
static void compose_message(struct input *in, unsigned char out[AGREE_WIRE_BYTES])
{
    struct agree_message m = { .kind = input_byte(in) % (AGREE_MESSAGES + 1), .decided = input_byte(in) % 2 };
    struct agree_cause *c = &m.cause;
    for (int i = 0; m.kind != AGREE_FAIL && i < AGREE_HISTORY; i++) fill_call(in, &m.calls[i]);
    c->kind = (int8_t)input_byte(in) % (AGREE_KINDS + 1);
    c->status = (int8_t)input_byte(in);
    c->reporter = (int8_t)input_byte(in) % (RANKS + 1);
    c->other = (int8_t)input_byte(in) % (RANKS + 1);
    c->operation = (uint64_t)(int8_t)input_byte(in);
    for (int i = 0; m.kind == AGREE_FAIL && i < 2; i++) fill_call(in, &c->calls[i]);
    c->detail[0] = (char)(input_byte(in) % 2);
    agree_message_encode(&m, out);
}
static void take_message(struct input *in, int from, struct agree *a)
{
    unsigned char bytes[AGREE_WIRE_BYTES];
    struct agree_message message;
    size_t length = sizeof bytes;
    if (input_byte(in) % 16) compose_message(in, bytes);
    else length = input_take(in, bytes, sizeof bytes);
    if (agree_message_decode(bytes, length, RANKS, &message)) agree_handle_message(a, from, &message);
}
static void take_step(struct input *in, struct agree *a)
{
    enum input_kind kind = input_byte(in) % INPUT_KINDS;
    int peer = 1 + input_byte(in) % (RANKS - 1);
    uint64_t number = input_byte(in);
    struct agree_call call = { .number = a->begun + 1, .fingerprint = number };
    struct agree_cause cause = { .kind = AGREE_FAILED, .status = -1, .other = -1, .operation = a->ended + 1 };
    switch (kind) {
    case MESSAGE_COMES: take_message(in, peer, a); break;
    case BEGINS:
        if (a->state != AGREE_LEFT) agree_begin(a, &call);
        break;
    case ARRIVES: agree_on_first_message(a, peer, number, number); break;
    case WAITS_FOR:
        if (host_of_rank[peer]) agree_set_waiting(a, peer, number % 2);
        break;
    case ENDS:
        if (a->ended < a->begun) agree_try_end_operation(a, a->ended + 1);
        break;
    case FAILS: agree_report_cause(a, &cause); break;
    case LOSES: agree_on_peer_lost(a, peer, ""); break;
    case LEAVES:
        if (number == 0) agree_leave(a);
        break;
    case TIME_PASSES: agree_advance_time(a, a->now_ms + (int64_t)number); break;
    case INPUT_KINDS: break;
    }
}
/* Does what the engine does after each input: writes the records of the host, and encodes the messages that are to be
   sent. Checks that each of them can be decoded. */
static void settle(struct agree *a)
{
    unsigned char bytes[AGREE_WIRE_BYTES];
    struct agree_message message, again;
    struct agree_cause held = a->held;
    int to;
    if (a->state == AGREE_CLAIMS) agree_on_failure_record(a, &held);
    held = a->held;
    if (a->state == AGREE_DECIDES) agree_on_decision_record(a, &held);
    while (agree_next_message(a, &to, &message)) {
        FUZZ_CHECK(to > 0 && to < RANKS);
        agree_message_encode(&message, bytes);
        FUZZ_CHECK(agree_message_decode(bytes, sizeof bytes, RANKS, &again));
    }
}
/* Formats the error text of a decision. */
static void format_error(const struct agree *a)
{
    static struct member members[RANKS];
    const struct group group = { .size = RANKS, .name = "group", .members = members };
    char words[512];
    if (a->state == AGREE_OVER) error_text_of_cause(&group, &a->held, words, sizeof words);
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    struct agree_peer peers[RANKS];
    int speakers[HOSTS];
    struct agree a;
    agree_init(&a, &(struct agree_layout){ 0, RANKS, HOSTS, host_of_rank, peers, speakers });
    agree_advance_time(&a, 1);
    for (int i = 0; i < STEPS && in.left; i++) {
        take_step(&in, &a);
        settle(&a);
    }
    format_error(&a);
    return 0;
}
