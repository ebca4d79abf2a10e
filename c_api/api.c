/* The public functions that start no operation: names, communicators, memory, introspection. They check arguments and
   call the backend. */
#include "backend/base/dtype.h"
#include "backend/base/random.h"
#include "backend/control/snapshot_socket.h"
#include "backend/engine/prediction.h"
#include "backend/host/socket.h"
#include "backend/host/wait.h"
#include "backend/info/info.h"
#include "backend/memory/arena.h"
#include "backend/memory/common.h"
#include "c_api/call.h"
#include <string.h>

/* ---- names ---- */
const char *tutti_get_version(void) { return TUTTI_VERSION; }
const char *tutti_get_error_string(tutti_status status) { return status_message(status); }
const char *tutti_get_last_error(void) { return status_detail(); }
bool tutti_last_error_is_refusal(void) { return status_is_refusal(); }
size_t tutti_dtype_bytes(tutti_dtype dtype) { return dtype_bytes(dtype); }
const char *tutti_dtype_name(tutti_dtype dtype) { return dtype_name(dtype); }
const char *tutti_op_name(tutti_op op) { return op_name(op); }

/* ---- communicators ---- */
enum { LEAST_CONFIG_BYTES = offsetof(tutti_config, store) };
/* Copies the members that the program's config has. The others keep the values of TUTTI_CONFIG_INIT. */
static tutti_status config_copy_known(const tutti_config *given, tutti_config *out)
{
    size_t size = given->struct_size;
    if (size < LEAST_CONFIG_BYTES || size > sizeof *out)
        return call_refuse_struct_size("tutti_config", "TUTTI_CONFIG_INIT", size, LEAST_CONFIG_BYTES, sizeof *out);
    *out = (tutti_config)TUTTI_CONFIG_INIT;
    memcpy(out, given, size);
    return TUTTI_OK;
}
/* The random bytes of an id. The others are reserved for later versions. */
enum { ID_NAME_BYTES = NONCE_BYTES };
tutti_status tutti_get_unique_id(tutti_unique_id *out)
{
    if (!out) return status_refuse(TUTTI_INVALID_ARGUMENT, "tutti_get_unique_id: the pointer to the id is NULL");
    memset(out, 0, sizeof *out);
    return random_fill(out->bytes, ID_NAME_BYTES);
}
/* Refuses a unique id that tutti_get_unique_id did not make. */
static tutti_status unique_id_check(const tutti_unique_id *id)
{
    static const unsigned char zero[sizeof id->bytes];
    if (memcmp(id->bytes, zero, ID_NAME_BYTES) == 0)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "the unique id is empty: one rank makes it with "
            "tutti_get_unique_id and passes it to all others before they join");
    if (memcmp(id->bytes + ID_NAME_BYTES, zero, sizeof id->bytes - ID_NAME_BYTES) != 0)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "the unique id is not one that tutti %s makes: it was damaged when it was passed on (all %d bytes must "
            "arrive), or a later version made it",
            TUTTI_VERSION, TUTTI_UNIQUE_ID_BYTES);
    return TUTTI_OK;
}
tutti_status tutti_comm_init(tutti_comm **out, const tutti_config *config)
{
    if (!out || !config)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "tutti_comm_init: the pointer to the communicator or to the config is NULL");
    tutti_config known;
    TRY(config_copy_known(config, &known));
    if (known.size > 1 && (!known.store.put || !known.store.get))
        return status_refuse(TUTTI_INVALID_ARGUMENT, "a group of %d ranks needs a store to find each other",
            known.size);
    return comm_create(&known, NULL, out);
}
tutti_status tutti_comm_init_rank(tutti_comm **out, int size, tutti_unique_id id, int rank)
{
    if (!out)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "tutti_comm_init_rank: the pointer to the communicator is NULL");
    TRY(unique_id_check(&id));
    tutti_config config = TUTTI_CONFIG_INIT;
    config.rank = rank;
    config.size = size;
    return comm_create(&config, &id, out);
}
tutti_status tutti_comm_split(tutti_comm *comm, int color, int key, tutti_comm **out)
{
    TRY(call_check_comm(comm));
    if (!out) return status_refuse(TUTTI_INVALID_ARGUMENT, "tutti_comm_split: the pointer to the communicator is NULL");
    return comm_split(comm, color, key, out);
}
tutti_status tutti_comm_retain(tutti_comm *comm)
{
    if (!comm || comm_is_inherited_by_fork(comm)) return call_check_comm(comm);
    /* A failed communicator can be retained too. */
    comm_retain(comm);
    return TUTTI_OK;
}
tutti_status tutti_comm_release(tutti_comm *comm)
{
    comm_release(comm);
    return TUTTI_OK;
}
tutti_status tutti_comm_destroy(tutti_comm *comm)
{
    comm_destroy(comm);
    return TUTTI_OK;
}
void tutti_set_interrupt_check(bool (*is_interrupted)(void)) { interrupt_set_check(is_interrupted); }
tutti_status tutti_comm_abort(tutti_comm *comm)
{
    if (!comm || comm_is_inherited_by_fork(comm)) return call_check_comm(comm);
    comm_abort(comm);
    return TUTTI_OK;
}
tutti_status tutti_comm_get_async_error(tutti_comm *comm)
{
    TRY(call_check_comm(comm));
    return comm_poll_failure(comm);
}
int tutti_comm_count(const tutti_comm *comm) { return comm ? comm->group.size : 0; }
int tutti_comm_user_rank(const tutti_comm *comm) { return comm ? comm->group.rank : -1; }
tutti_status tutti_comm_place(tutti_comm *comm, int rank, int *host, int *index)
{
    TRY(call_check_comm(comm));
    TRY(call_check_rank(comm, rank, "tutti_comm_place: rank"));
    struct place place = layout_place(comm->group.layout, rank);
    if (host) *host = place.host;
    if (index) *index = place.index;
    return TUTTI_OK;
}
tutti_status tutti_comm_set_timeout(tutti_comm *comm, int64_t timeout_ms)
{
    TRY(call_check_comm(comm));
    if (timeout_ms <= 0)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "a timeout of %lld ms: it must be at least 1",
            (long long)timeout_ms);
    comm->timeout_ms = timeout_ms;
    return TUTTI_OK;
}
tutti_status tutti_comm_set_priority(tutti_comm *comm, int priority)
{
    TRY(call_check_comm(comm));
    if (priority < 0 || priority >= TUTTI_PRIORITIES)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "a priority of %d: it must be 0 to %d", priority,
            TUTTI_PRIORITIES - 1);
    comm->priority = priority;
    return TUTTI_OK;
}
tutti_status tutti_comm_set_name(tutti_comm *comm, const char *name)
{
    TRY(call_check_comm(comm));
    if (!name) return status_refuse(TUTTI_INVALID_ARGUMENT, "tutti_comm_set_name: the name is NULL");
    group_set_name(&comm->group, name);
    return TUTTI_OK;
}
tutti_status tutti_comm_set_algorithm(tutti_comm *comm, const char *collective, const char *algorithm)
{
    TRY(call_check_comm(comm));
    const struct algorithm *found;
    TRY(status_mark_refusal(algorithm_find_by_name(collective,
        algorithm ? algorithm : tutti_algorithm_name(collective, 0), &found)));
    TRY(status_mark_refusal(comm_check_algorithm(comm, algorithm ? found : NULL)));
    atomic_store(&comm->chosen[found->collective], algorithm ? found : NULL);
    return TUTTI_OK;
}

/* ---- queues ---- */
tutti_status tutti_queue_create(tutti_queue **out)
{
    if (!out) return status_refuse(TUTTI_INVALID_ARGUMENT, "tutti_queue_create: the pointer to the queue is NULL");
    return queue_create(out);
}
tutti_status tutti_queue_destroy(tutti_queue *queue) { return queue ? queue_destroy(queue) : TUTTI_OK; }
tutti_status tutti_queue_wait(tutti_queue *queue, int64_t timeout_ms, tutti_request **out)
{
    struct operation *op;
    if (!queue || !out)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "tutti_queue_wait: the queue or the pointer to the request is NULL");
    *out = NULL;
    TRY(queue_check(queue));
    tutti_status status = queue_wait_finished(queue, timeout_ms, &op);
    if (op) *out = op->request;
    return status;
}

/* ---- memory ---- */
tutti_status tutti_mem_alloc(void **out, size_t bytes)
{
    if (!out) return status_refuse(TUTTI_INVALID_ARGUMENT, "tutti_mem_alloc: the pointer to the address is NULL");
    return status_mark_refusal(arena_allocate(bytes, out));
}
tutti_status tutti_mem_free(void *memory)
{
    return shared_mapping_leave_at(memory) ? TUTTI_OK : status_mark_refusal(arena_free(memory));
}
tutti_status tutti_mem_alloc_common(void **out, size_t bytes, tutti_comm *comm)
{
    TRY(call_check_comm(comm));
    if (!out)
        return status_refuse(TUTTI_INVALID_ARGUMENT, "tutti_mem_alloc_common: the pointer to the address is NULL");
    return comm_allocate_common(comm, bytes, out);
}

/* ---- CUDA streams ---- */
tutti_status tutti_comm_open_cuda(tutti_comm *comm, int device)
{
    TRY(call_check_comm(comm));
    return comm_open_cuda(comm, device);
}

/* ---- introspection ---- */
const char *tutti_collective_name(int index)
{
    return index >= 0 && index < COLLECTIVE_COUNT ? collective_name((enum collective)index) : NULL;
}
const char *tutti_algorithm_name(const char *collective, int index)
{
    return algorithm_name_at_index(collective, index);
}
tutti_status tutti_schedule_print(const char *collective, const char *algorithm, int ranks, int root, char *buffer,
    size_t capacity, size_t *bytes)
{
    const struct algorithm *found;
    if (!collective || !algorithm)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "a schedule: the name of the collective or of the algorithm is NULL");
    TRY(status_mark_refusal(algorithm_find_by_name(collective, algorithm, &found)));
    return status_mark_refusal(info_write_schedule(found, ranks, root, buffer, capacity, bytes));
}
tutti_status tutti_info(char *buffer, size_t capacity, size_t *bytes)
{
    return info_write_json(buffer, capacity, bytes);
}
const char *tutti_waiting_name(int index) { return waiting_counter_name(index); }
uint64_t tutti_waiting_count(int index) { return waiting_counter_value(index); }
tutti_status tutti_await_status_caller(int *connection)
{
    if (!connection)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "tutti_await_status_caller: the pointer to the connection is NULL");
    *connection = snapshots_await_caller();
    return TUTTI_OK;
}
tutti_status tutti_comm_info(tutti_comm *comm, char *buffer, size_t capacity, size_t *bytes)
{
    TRY(call_check_comm(comm));
    return info_write_group(comm, buffer, capacity, bytes);
}
tutti_status tutti_comm_predict(tutti_comm *comm, const char *collective, const char *algorithm, size_t bytes,
    tutti_prediction *out)
{
    const struct algorithm *found;
    tutti_prediction made = TUTTI_PREDICTION_INIT;
    TRY(call_check_comm(comm));
    if (!collective || !out)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "a prediction: the name of the collective or the pointer to the result is NULL");
    if (out->struct_size != sizeof made)
        return call_refuse_struct_size("tutti_prediction", "TUTTI_PREDICTION_INIT", out->struct_size, sizeof made,
            sizeof made);
    TRY(status_mark_refusal(algorithm_find_by_name(collective,
        algorithm ? algorithm : tutti_algorithm_name(collective, 0), &found)));
    TRY(status_mark_refusal(comm_check_algorithm(comm, algorithm ? found : NULL)));
    TRY(prediction_make(comm, found->collective, algorithm ? found : NULL, bytes, &made));
    *out = made;
    return TUTTI_OK;
}
