/* Commands between two writes may change places, because no other rank can see that. A small copy may run after a wait
   that follows it: the stream publishes no position between the two, so no rank depends on the copy until the wait is
   over. For the same reason two waits for a word become one. A write that follows small copies may come later than
   further copies, but not than a wait. */
#include "backend/streams/commands.h"

/* True if a counter has reached a value. Counters cross the end of 32 bits. */
static bool position_is_reached(uint32_t counter, uint32_t value) { return (int32_t)(counter - value) >= 0; }
static bool byte_ranges_overlap(CUdeviceptr a, size_t a_bytes, CUdeviceptr b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}
static void commands_record_call_result(struct stream_commands *commands, CUresult result, const char *call)
{
    commands->calls += !result;
    if (result && !commands->status) commands->status = cuda_check(result, call);
}
static void commands_record_launch(struct stream_commands *commands, tutti_status status)
{
    commands->calls += !status;
    commands->status = status;
}
static void commands_flush_gathered_words(struct stream_commands *commands)
{
    if (commands->word_count && !commands->status)
        commands_record_call_result(commands,
            cuda.cuStreamBatchMemOp_v2(commands->stream, (unsigned)commands->word_count, commands->words, 0),
            "cuStreamBatchMemOp");
    commands->word_count = commands->first_wait = 0;
}
/* Appends a write to the words, of which there must be room. */
static void commands_append_write(struct stream_commands *commands, int word, uint32_t value)
{
    commands->words[commands->word_count++] = (CUstreamBatchMemOpParams){
        .writeValue = {
            .operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
            .address = commands->site->words_at + stream_words_offset_of(commands->site->rank, word),
            .value = value,
            .flags = CU_STREAM_WRITE_VALUE_DEFAULT,
        },
    };
    commands->first_wait = commands->word_count;
}
static void commands_append_wait(struct stream_commands *commands, CUdeviceptr address, uint32_t value)
{
    commands->words[commands->word_count++] = (CUstreamBatchMemOpParams){
        .waitValue = {
            .operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
            .address = address,
            .value = value,
            .flags = CU_STREAM_WAIT_VALUE_GEQ,
        },
    };
}
/* Enqueues the words and copies. The late writes become the words. */
static void commands_flush_copies(struct stream_commands *commands)
{
    commands_flush_gathered_words(commands);
    if (commands->copy_count && !commands->status)
        commands_record_launch(commands,
            stream_kernels_launch_copy(commands->site->kernels, commands->stream, commands->copies,
                commands->copy_count));
    commands->copy_count = 0;
    commands->copy_bytes = 0;
    for (int word = 0; word < STREAM_WORDS && commands->has_late; word++) {
        if (commands->is_late[word]) commands_append_write(commands, word, commands->late_value[word]);
        commands->is_late[word] = false;
    }
    commands->has_late = false;
}
/* Enqueues all that is gathered. */
static void commands_flush_gathered(struct stream_commands *commands)
{
    commands_flush_copies(commands);
    commands_flush_gathered_words(commands);
}
void stream_commands_begin(struct stream_commands *commands, struct stream_site *site, CUstream stream)
{
    commands->site = site;
    commands->stream = stream;
    commands->status = TUTTI_OK;
    commands->word_count = commands->copy_count = commands->first_wait = 0;
    commands->copy_bytes = 0;
    commands->calls = 0;
    commands->has_late = false;
    for (int word = 0; word < STREAM_WORDS; word++) commands->is_late[word] = false;
}
void stream_commands_await_word(struct stream_commands *commands, int rank, int word, uint32_t value)
{
    uint32_t *awaited = &commands->site->awaited[rank][word];
    CUdeviceptr address = commands->site->words_at + stream_words_offset_of(rank, word);
    /* Operations await WORD_DONE seldom, so the value that one has awaited may be half a turn of the counter behind. */
    if (word != WORD_DONE && position_is_reached(*awaited, value)) return;
    *awaited = value;
    if (commands->copy_bytes >= COPY_SOON || commands->has_late) commands_flush_copies(commands);
    for (int i = commands->first_wait; i < commands->word_count; i++) {
        if (commands->words[i].waitValue.address != address) continue;
        commands->words[i].waitValue.value = value;
        return;
    }
    if (commands->word_count == COMMANDS_WORDS) commands_flush_gathered(commands);
    commands_append_wait(commands, address, value);
}
void stream_commands_write_word(struct stream_commands *commands, int word, uint32_t value)
{
    if (commands->copy_count) {
        commands->late_value[word] = value;
        commands->is_late[word] = commands->has_late = true;
        return;
    }
    if (commands->word_count == COMMANDS_WORDS) commands_flush_gathered(commands);
    commands_append_write(commands, word, value);
}
/* True if the copy must come after one that is gathered, because it touches what that one touches. */
static bool copy_depends_on_gathered(const struct stream_commands *commands, const struct stream_copy *copy)
{
    for (int i = 0; i < commands->copy_count; i++) {
        const struct stream_copy *other = &commands->copies[i];
        if (byte_ranges_overlap(copy->to, copy->bytes, other->to, other->bytes)
            || byte_ranges_overlap(copy->to, copy->bytes, other->from, other->bytes)
            || byte_ranges_overlap(copy->from, copy->bytes, other->to, other->bytes))
            return true;
    }
    return false;
}
void stream_commands_copy_bytes(struct stream_commands *commands, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    struct stream_copy copy = { to, from, bytes };
    if (to == from || !bytes) return;
    if (bytes >= COPY_LARGE) {
        commands_flush_gathered(commands);
        if (!commands->status)
            commands_record_call_result(commands, cuda.cuMemcpyAsync(to, from, bytes, commands->stream),
                "cuMemcpyAsync");
        return;
    }
    bool must_follow = commands->copy_count == CUDA_COPIES || copy_depends_on_gathered(commands, &copy)
        || (commands->has_late && commands->copy_bytes + bytes > COPY_SOON);
    if (must_follow) commands_flush_copies(commands);
    commands->copies[commands->copy_count++] = copy;
    commands->copy_bytes += bytes;
}
void stream_commands_reduce(struct stream_commands *commands, const struct stream_reduce *reduce)
{
    commands_flush_gathered(commands);
    if (!commands->status)
        commands_record_launch(commands,
            stream_kernels_launch_reduce(commands->site->kernels, commands->stream, reduce));
}
void stream_commands_scale(struct stream_commands *commands, const struct stream_scale *scale)
{
    commands_flush_gathered(commands);
    if (!commands->status)
        commands_record_launch(commands, stream_kernels_launch_scale(commands->site->kernels, commands->stream, scale));
}
bool stream_commands_end_failed_operation(struct stream_commands *commands, uint32_t number, bool awaits)
{
    const struct stream_site *site = commands->site;
    commands->word_count = 0;
    if (awaits)
        commands_append_wait(commands, site->words_at + stream_words_offset_of(site->rank, WORD_DONE), number - 1);
    commands_append_write(commands, WORD_DONE, number);
    return !cuda.cuStreamBatchMemOp_v2(commands->stream, (unsigned)commands->word_count, commands->words, 0);
}
tutti_status stream_commands_finish(struct stream_commands *commands)
{
    commands_flush_gathered(commands);
    return commands->status;
}
