/* The slots of a rank are one allocation of whole blocks, because a handle exports the block that an allocation lies
   in. Ranks of one process use the address, since a process cannot open its own handle. */
#include "backend/streams/site.h"
#include "backend/base/memory.h"
#include "backend/base/random.h"
#include "backend/streams/host_words.h"
#include <pthread.h>
#include <stdlib.h>

enum { BLOCK = 2 << 20, HALF_ALIGNED = 4096 };
/* A random number of this process, which tells its own addresses from those of other processes. */
static uint64_t process_number;
static pthread_once_t process_number_drawn = PTHREAD_ONCE_INIT;
static void process_draw_random_number(void)
{
    if (random_fill(&process_number, sizeof process_number)) process_number = 0;
}
/* Returns the number, or 0 if the operating system gave none. */
static uint64_t process_get_random_number(void)
{
    pthread_once(&process_number_drawn, process_draw_random_number);
    return process_number;
}

tutti_status stream_site_enter_context(const struct stream_site *site, bool *entered)
{
    CUcontext current = NULL;
    *entered = false;
    if (!cuda.cuCtxGetCurrent(&current) && current == site->context) return TUTTI_OK;
    TRY(cuda_check(cuda.cuCtxPushCurrent_v2(site->context), "cuCtxPushCurrent"));
    *entered = true;
    return TUTTI_OK;
}
void stream_site_leave_context(bool entered)
{
    if (entered) cuda_context_leave();
}

/* ---- creation ---- */
static tutti_status site_register_host_words(struct stream_site *site, void *words)
{
    TRY(host_words_register(words, site->ranks, &site->words_at));
    site->words = words;
    return TUTTI_OK;
}
static tutti_status site_allocate_own_slots(struct stream_site *site, size_t bytes)
{
    size_t rounded = size_round_up(size_larger(bytes, 1), BLOCK);
    CUresult result = cuda.cuMemAlloc_v2(&site->slots[site->rank], rounded);
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        return status_fail(TUTTI_NO_MEMORY, "no memory for %zu bytes of slots on device %d", rounded, site->device);
    site->half_bytes = bytes / 2 / HALF_ALIGNED * HALF_ALIGNED;
    return cuda_check(result, "cuMemAlloc of slots");
}
/* Enqueues a wait that is over, because no attribute tells whether the driver has operations on words. */
static tutti_status site_check_word_operations(const struct stream_site *site)
{
    CUstreamBatchMemOpParams word = {
        .waitValue = {
            .operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
            .address = site->words_at + stream_words_offset_of(site->rank, WORD_DONE),
            .flags = CU_STREAM_WAIT_VALUE_GEQ,
        },
    };
    CUresult result = cuda.cuStreamBatchMemOp_v2(site->idle_stream, 1, &word, 0);
    if (!result) return cuda_check(cuda.cuStreamSynchronize(site->idle_stream), "cuStreamSynchronize");
    if (result != CUDA_ERROR_NOT_SUPPORTED) return cuda_check(result, "cuStreamBatchMemOp");
    return status_fail(TUTTI_UNSUPPORTED,
        "device %d or its driver has no stream memory operations (cuStreamBatchMemOp), by which ranks await each other",
        site->device);
}
static tutti_status site_open_own_device(struct stream_site *site, const struct stream_settings *settings)
{
    TRY(cuda_check(cuda.cuStreamCreate(&site->idle_stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate"));
    TRY(stream_kernels_load_image(site->device, settings->image, site->idle_stream, &site->kernels));
    TRY(site_register_host_words(site, settings->words));
    TRY(site_check_word_operations(site));
    return site_allocate_own_slots(site, settings->slot_bytes);
}
static tutti_status site_allocate_arrays(int ranks, struct stream_site **out)
{
    struct stream_site *site = memory_alloc_zeroed(1, sizeof *site);
    *out = site;
    if (site) pthread_mutex_init(&site->driver_lock, NULL);
    if (site) pthread_mutex_init(&site->compare_lock, NULL);
    if (site) site->slots = memory_alloc_zeroed((size_t)ranks, sizeof *site->slots);
    if (site) site->opened = memory_alloc_zeroed((size_t)ranks, sizeof *site->opened);
    if (site) site->awaited = memory_alloc_zeroed((size_t)ranks, sizeof *site->awaited);
    if (site && site->slots && site->opened && site->awaited) return TUTTI_OK;
    return status_fail(TUTTI_NO_MEMORY, "no memory for the streams of %d ranks", ranks);
}
tutti_status stream_site_create(const struct stream_settings *settings, struct stream_site **out)
{
    struct stream_site *site;
    bool entered = false;
    tutti_status status = site_allocate_arrays(settings->ranks, &site);
    if (!status) {
        site->rank = settings->rank;
        site->ranks = settings->ranks;
        site->device = settings->device;
        status = cuda_context_retain(settings->device, &site->context);
    }
    if (!status) status = stream_site_enter_context(site, &entered);
    if (!status) status = site_open_own_device(site, settings);
    stream_site_leave_context(entered);
    if (status) stream_site_destroy(site);
    else *out = site;
    return status;
}

/* ---- the peers ---- */
tutti_status stream_site_export_address(const struct stream_site *site, struct stream_address *out)
{
    bool entered;
    CUdeviceptr base = 0, slots = site->slots[site->rank];
    size_t bytes;
    if (!process_get_random_number()) return status_fail(TUTTI_SYSTEM, "the operating system gives no random numbers");
    TRY(stream_site_enter_context(site, &entered));
    tutti_status status = cuda_check(cuda.cuMemGetAddressRange_v2(&base, &bytes, slots), "cuMemGetAddressRange");
    *out = (struct stream_address){
        .process = process_get_random_number(),
        .slots = slots,
        .half_bytes = site->half_bytes,
        .offset = slots - base,
        .device = site->device,
    };
    /* Without handles, ranks of one process still reach each other. */
    if (!status) out->has_handle = cuda.cuIpcGetMemHandle(&out->handle, slots) == CUDA_SUCCESS;
    stream_site_leave_context(entered);
    return status;
}
/* Lets this rank's device access memory of another device that belongs to this process. */
static tutti_status site_enable_peer_access(const struct stream_site *site, int rank,
    const struct stream_address *address)
{
    CUcontext peer;
    int possible = 0;
    if (address->device == site->device) return TUTTI_OK;
    TRY(cuda_context_retain(address->device, &peer));
    TRY(cuda_check(cuda.cuDeviceCanAccessPeer(&possible, site->device, address->device), "cuDeviceCanAccessPeer"));
    if (!possible)
        return status_fail(TUTTI_UNSUPPORTED,
            "rank %d on device %d cannot access the memory of rank %d on device %d: the devices have no peer access",
            site->rank, site->device, rank, address->device);
    CUresult result = cuda.cuCtxEnablePeerAccess(peer, 0);
    return result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? TUTTI_OK : cuda_check(result, "cuCtxEnablePeerAccess");
}
static tutti_status site_connect_peer_rank(struct stream_site *site, int rank, const struct stream_address *address)
{
    if (address->half_bytes != site->half_bytes)
        return status_fail(TUTTI_MISMATCH,
            "rank %d has two halves of %zu bytes of slots, but rank %d of %llu: give all ranks of a host equally many",
            site->rank, site->half_bytes, rank, (unsigned long long)address->half_bytes);
    if (address->process == process_get_random_number()) {
        TRY(site_enable_peer_access(site, rank, address));
        site->slots[rank] = address->slots;
        return TUTTI_OK;
    }
    if (!address->has_handle)
        return status_fail(TUTTI_UNSUPPORTED,
            "rank %d cannot open the slots of rank %d: the driver gave no handle of device memory (cuIpcGetMemHandle)",
            site->rank, rank);
    TRY(cuda_check(cuda.cuIpcOpenMemHandle_v2(&site->opened[rank], address->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
        "cuIpcOpenMemHandle of a peer's slots"));
    site->slots[rank] = site->opened[rank] + address->offset;
    return TUTTI_OK;
}
tutti_status stream_site_connect_peers(struct stream_site *site, const struct stream_address *addresses)
{
    bool entered;
    tutti_status status = stream_site_enter_context(site, &entered);
    for (int rank = 0; rank < site->ranks && !status; rank++)
        if (rank != site->rank) status = site_connect_peer_rank(site, rank, &addresses[rank]);
    stream_site_leave_context(entered);
    return status;
}

/* ---- the end ---- */
void stream_site_disconnect_peers(struct stream_site *site)
{
    bool entered;
    if (!stream_site_enter_context(site, &entered)) {
        for (int rank = 0; rank < site->ranks; rank++) {
            if (site->opened[rank]) cuda.cuIpcCloseMemHandle(site->opened[rank]);
            site->opened[rank] = 0;
        }
        stream_site_leave_context(entered);
    }
    stream_words_set_disconnected(site->words, site->rank);
}
void stream_site_destroy(struct stream_site *site)
{
    bool entered = false;
    if (!site) return;
    bool inside = site->context && !stream_site_enter_context(site, &entered);
    if (inside) {
        if (site->idle_stream) cuda.cuStreamDestroy_v2(site->idle_stream);
        if (site->slots[site->rank]) cuda.cuMemFree_v2(site->slots[site->rank]);
    }
    /* Without its context the driver refuses, but the entry of the words must go. */
    if (site->words) host_words_unregister(site->words);
    stream_site_leave_context(entered);
    pthread_mutex_destroy(&site->driver_lock);
    pthread_mutex_destroy(&site->compare_lock);
    free(site->slots);
    free(site->opened);
    free(site->awaited);
    free(site);
}
