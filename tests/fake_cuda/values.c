/* Stream memory operations. A stream that waits sees what the stream has seen that wrote the value; if a host wrote it,
   what all hosts have seen. */
#include "tests/fake_cuda/values.h"
#include "tests/fake_cuda/calls.h"
#include "tests/fake_cuda/memory.h"
#include "tests/fake_cuda/settings.h"
#include <stdlib.h>

enum { BATCH_MOST = 256, POLL_US = 50 };
struct batch {
    struct operation base;
    unsigned count;
    struct word_access words[];
};

CUresult word_find(CUdeviceptr address, unsigned width, struct word_access *out)
{
    struct host_range host;
    memory_lock();
    bool is_host = !memory_is_device(address);
    bool mapped = is_host ? host_range_find(address, &host) : mapping_find(address) != NULL;
    memory_unlock();
    if (!mapped || address % width) return CUDA_ERROR_INVALID_VALUE;
    *out = (struct word_access){
        .shadow = memory_shadow(address),
        .location = memory_location(address),
        .width = width,
        .is_host = is_host,
    };
    return CUDA_SUCCESS;
}
static uint64_t word_load(const struct word_access *word)
{
    if (word->width == 4) return __atomic_load_n((uint32_t *)word->shadow, __ATOMIC_SEQ_CST);
    return __atomic_load_n((uint64_t *)word->shadow, __ATOMIC_SEQ_CST);
}
static struct word *word_record(struct location location, bool create)
{
    for (uint32_t i = 0; i < machine->next_word; i++)
        if (machine->words[i].location.file == location.file && machine->words[i].location.offset == location.offset)
            return &machine->words[i];
    if (!create) return NULL;
    if (machine->next_word == WORDS) machine_full("words that streams write", WORDS);
    struct word *word = &machine->words[machine->next_word++];
    word->location = location;
    return word;
}
/* A host may read a word of host memory and then use what the stream has done, so it counts as seen by the hosts. */
void word_write(CUstream stream, const struct word_access *word)
{
    machine_lock();
    struct word *record = word_record(word->location, true);
    record->value = word->value;
    record->clock = stream->clock;
    if (word->is_host && settings()->host_reads) clock_merge(&machine->hosts, &stream->clock);
    if (word->width == 4) __atomic_store_n((uint32_t *)word->shadow, (uint32_t)word->value, __ATOMIC_SEQ_CST);
    else __atomic_store_n((uint64_t *)word->shadow, word->value, __ATOMIC_SEQ_CST);
    machine_unlock();
    machine_notify();
}
/* "At least" is a comparison of the signed difference, so that counters may wrap. */
static bool word_satisfies(const struct word_access *word, uint64_t value)
{
    uint64_t difference = value - word->value;
    bool is_narrow = word->width == 4;
    switch (word->compare) {
    case CU_STREAM_WAIT_VALUE_GEQ: return is_narrow ? (int32_t)difference >= 0 : (int64_t)difference >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return value == word->value;
    case CU_STREAM_WAIT_VALUE_AND: return value & word->value;
    default: return is_narrow ? (uint32_t)~(value | word->value) : ~(value | word->value);
    }
}
static bool word_try(CUstream stream, const struct word_access *word)
{
    if (!word_satisfies(word, word_load(word))) return false;
    machine_lock();
    uint64_t value = word_load(word);
    bool satisfied = word_satisfies(word, value);
    const struct word *record = word_record(word->location, false);
    if (satisfied) clock_merge(&stream->clock, record && record->value == value ? &record->clock : &machine->hosts);
    machine_unlock();
    return satisfied;
}
void word_await(CUstream stream, const struct word_access *word)
{
    for (uint32_t seen = machine_changes(); !word_try(stream, word); seen = machine_changes())
        machine_wait(seen, POLL_US);
}

static void batch_run(struct operation *operation)
{
    const struct batch *batch = (struct batch *)operation;
    for (unsigned i = 0; i < batch->count; i++) {
        if (batch->words[i].writes) word_write(operation->stream, &batch->words[i]);
        else word_await(operation->stream, &batch->words[i]);
    }
}
static CUresult word_fill(const CUstreamBatchMemOpParams *op, struct word_access *out)
{
    unsigned flags = op->waitValue.flags;
    bool is_wide = op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 || op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    bool writes = op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_32 || op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
    if (!writes && !is_wide && op->operation != CU_STREAM_MEM_OP_WAIT_VALUE_32) return CUDA_ERROR_NOT_SUPPORTED;
    if (flags > (writes ? CU_STREAM_WRITE_VALUE_DEFAULT : CU_STREAM_WAIT_VALUE_NOR)) return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = word_find(op->waitValue.address, is_wide ? 8 : 4, out);
    if (result) return result;
    out->value = is_wide ? op->waitValue.value64 : op->waitValue.value;
    out->compare = flags;
    out->writes = writes;
    return CUDA_SUCCESS;
}
static CUresult batch_enqueue(CUstream handle, unsigned count, const CUstreamBatchMemOpParams *ops, const char *call)
{
    CUstream stream;
    CUresult result = stream_find(handle, &stream);
    if (result) return result;
    struct batch *batch = operation_create(sizeof *batch + count * sizeof *batch->words, batch_run, call);
    batch->count = count;
    for (unsigned i = 0; i < count && !result; i++) result = word_fill(&ops[i], &batch->words[i]);
    if (result) free(batch);
    else stream_enqueue(stream, &batch->base);
    return result;
}
CUresult fake_cuStreamBatchMemOp_v2(CUstream stream, unsigned count, CUstreamBatchMemOpParams *ops, unsigned flags)
{
    if (!count || count > BATCH_MOST || !ops || flags) return CUDA_ERROR_INVALID_VALUE;
    return batch_enqueue(stream, count, ops, "cuStreamBatchMemOp");
}
static CUresult single_enqueue(CUstream stream, CUstreamBatchMemOpType type, CUdeviceptr address, uint64_t value,
    unsigned flags, const char *call)
{
    CUstreamBatchMemOpParams op = { .waitValue = { type, address, { .value64 = value }, flags, 0 } };
    return batch_enqueue(stream, 1, &op, call);
}
CUresult fake_cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
    return single_enqueue(stream, CU_STREAM_MEM_OP_WAIT_VALUE_32, address, value, flags, "cuStreamWaitValue32");
}
CUresult fake_cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags)
{
    return single_enqueue(stream, CU_STREAM_MEM_OP_WAIT_VALUE_64, address, value, flags, "cuStreamWaitValue64");
}
CUresult fake_cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned flags)
{
    return single_enqueue(stream, CU_STREAM_MEM_OP_WRITE_VALUE_32, address, value, flags, "cuStreamWriteValue32");
}
CUresult fake_cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr address, uint64_t value, unsigned flags)
{
    return single_enqueue(stream, CU_STREAM_MEM_OP_WRITE_VALUE_64, address, value, flags, "cuStreamWriteValue64");
}
