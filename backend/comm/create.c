/* Creates communicators. After an error, comm_destroy undoes the half-built one. */
#include "backend/base/clock.h"
#include "backend/base/log.h"
#include "backend/base/memory.h"
#include "backend/base/settings.h"
#include "backend/comm/comm.h"
#include "backend/join/bootstrap.h"
#include "backend/join/join.h"
#include "backend/join/join_result.h"
#include "backend/join/member_table.h"
#include <pthread.h>
#include <string.h>

/* Selects the instruction set that TUTTI_ISA names. Runs once in each process. */
static void process_choose_isa(void)
{
    const char *isa = settings_get()->isa;
    if (isa[0] && !kernels_select_isa(isa))
        LOG(WARN, "TUTTI_ISA=%s is not supported by this CPU; using %s", isa, kernels_isa());
}
tutti_status comm_allocate_and_init(int rank, int size, const char *name, int64_t timeout_ms, tutti_comm **out)
{
    if (size < 1 || rank < 0 || rank >= size)
        return status_refuse(TUTTI_INVALID_ARGUMENT,
            "rank %d of %d: the rank must be at least 0 and less than the size", rank, size);
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, process_choose_isa);
    tutti_comm *comm = memory_alloc_aligned(sizeof *comm);
    if (!comm) return status_fail(TUTTI_NO_MEMORY, "no memory for a communicator");
    *out = comm;
    atomic_init(&comm->holders, 1);
    return comm_init(comm, rank, size, name, timeout_ms);
}
/* Refuses a job_rank that is not from 0 to job_size - 1. The job contains the group, and the numbers are this rank's
   number in the job and the number of the job's ranks. If both are 0, the group is the job. */
static tutti_status config_check_job(const tutti_config *config)
{
    bool none = config->job_size == 0 && config->job_rank == 0;
    if (none || (config->job_rank >= 0 && config->job_rank < config->job_size)) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT,
        "job_rank %d of a job_size of %d: the rank must be at least 0 and less than the size, or both 0",
        config->job_rank, config->job_size);
}
/* Refuses a list of members (the job rank of each rank of the group) whose entry for this rank is not its job rank. */
static tutti_status config_check_members(const tutti_config *config)
{
    if (!config->members || !config->job_size || config->members[config->rank] == config->job_rank) return TUTTI_OK;
    return status_refuse(TUTTI_INVALID_ARGUMENT,
        "rank %d of the group is rank %d of the job, but its list of members has rank %d there", config->rank,
        config->job_rank, config->members[config->rank]);
}
/* Sets the host of this rank in its record *mine, and the address at which others reach it. A simulated host
   (TUTTI_HOSTS) depends on the rank in the job. */
static tutti_status member_introduce_host(const tutti_config *config, const tutti_unique_id *id, struct member *mine)
{
    bool has_job = config->job_size > 0;
    TRY(join_simulate_host(has_job ? config->job_rank : config->rank, has_job ? config->job_size : config->size, mine));
    return join_offer_address(id ? NULL : config->store_host, id != NULL, mine);
}
/* Publishes the record of a group of one rank of a job, because other ranks may have a longer list of members. */
static tutti_status comm_publish_alone(const tutti_config *config, const struct member *mine, const struct terms *terms)
{
    return config->members && config->store.put ? bootstrap_publish_alone(config, mine, terms) : TUTTI_OK;
}
/* Returns true if the ranks find each other through the store. */
static bool config_uses_store(const tutti_config *config, const tutti_unique_id *id) { return !id && config->size > 1; }
/* Makes the table of a group of one rank. */
static tutti_status member_table_create_alone(const struct member *mine, struct shared_table **out)
{
    struct member *members = members_create(mine);
    if (!members) return TUTTI_NO_MEMORY;
    *members = *mine;
    return member_table_keep(members, out);
}
/* Exchanges the records of all ranks through the store or by the id, and sets the group's members and key. */
static tutti_status comm_bootstrap_members(const tutti_config *config, const tutti_unique_id *id, tutti_comm *comm,
    int64_t deadline_ms)
{
    struct shared_table *table;
    struct member mine;
    struct terms terms;
    struct group *group = &comm->group;
    TRY(join_init_member(comm, &mine));
    mine.job = config->members ? job_current() : 0;
    mine.status = member_introduce_host(config, id, &mine);
    terms_init(config, comm->chosen, &terms);
    if (id || group->size == 1) TRY(mine.status);
    if (config_uses_store(config, id)) TRY(bootstrap_store(config, &mine, &terms, deadline_ms, &table, &group->key));
    else if (group->size > 1) TRY(bootstrap_id(id, group->rank, &mine, deadline_ms, &table, &group->key));
    else TRY(member_table_create_alone(&mine, &table));
    group_set_table(group, table);
    return id || group->size > 1 ? TUTTI_OK : comm_publish_alone(config, &mine, &terms);
}
/* Removes from the store what rank 0 has left there for the other ranks, after join_members with that status. */
static tutti_status comm_finish_bootstrap(const tutti_config *config, const tutti_unique_id *id, const tutti_comm *comm,
    tutti_status status)
{
    const struct group *group = &comm->group;
    if (!config_uses_store(config, id) || group->rank != 0) return status;
    if (status != TUTTI_OK) return bootstrap_withdraw_result(config, &group->members[0], status);
    bootstrap_shorten_result(config, &group->members[0]);
    return TUTTI_OK;
}
/* Creates a communicator and joins its group. After an error *out is NULL or half-built. */
static tutti_status comm_build_and_join(const tutti_config *config, const tutti_unique_id *id, tutti_comm **out)
{
    TRY(config_check_job(config));
    TRY(comm_allocate_and_init(config->rank, config->size, config->name, config->timeout_ms, out));
    tutti_comm *comm = *out;
    struct group *group = &comm->group;
    TRY(config_check_members(config));
    group->is_reconfigurable = config->is_reconfigurable;
    group->is_cancelled = config->is_cancelled;
    group->cancel_context = config->store.context;
    if (config->algorithm) TRY(status_mark_refusal(algorithms_parse_list(config->algorithm, comm->chosen)));
    int64_t deadline_ms = clock_deadline(comm->timeout_ms);
    TRY(comm_bootstrap_members(config, id, comm, deadline_ms));
    TRY(comm_finish_bootstrap(config, id, comm, join_members(comm, deadline_ms)));
    group->is_cancelled = NULL;
    if (config->job_size == 0 && !config->members) job_begin(&group->members[0]);
    for (int f = 0; f < COLLECTIVE_COUNT; f++) TRY(comm_check_algorithm(comm, comm->chosen[f]));
    return TUTTI_OK;
}
tutti_status comm_destroy_on_error(tutti_status status, tutti_comm **out)
{
    if (status == TUTTI_OK) return status;
    comm_destroy(*out);
    *out = NULL;
    return status;
}
tutti_status comm_gather(tutti_comm *comm, const void *mine, size_t bytes, void *all)
{
    struct operation op = { .comm = comm,
        .collective = ALLGATHER,
        .input = mine,
        .output = all,
        .count = bytes,
        .part_bytes = bytes,
        .dtype = TUTTI_UINT8,
        .generation = process_generation(),
        .limit.timeout_ms = comm->timeout_ms };
    return operation_run(&op, true);
}
tutti_status comm_gather_reports(tutti_comm *comm, const int64_t *mine, size_t bytes, void *all, const char *subject,
    const char *action)
{
    char detail[STATUS_DETAIL_BYTES] = "";
    if (*mine != TUTTI_OK) strcpy(detail, status_detail());
    TRY(comm_gather(comm, mine, bytes, all));
    if (*mine != TUTTI_OK) return status_repeat_refusal((tutti_status)*mine, detail);
    for (int r = 0; r < comm->group.size; r++) {
        int64_t status;
        memcpy(&status, (const unsigned char *)all + (size_t)r * bytes, sizeof status);
        if (status != TUTTI_OK)
            return status_refuse((tutti_status)status, "%srank %d could not %s; its own error says why", subject, r,
                action);
    }
    return TUTTI_OK;
}
tutti_status comm_create(const tutti_config *config, const tutti_unique_id *id, tutti_comm **out)
{
    *out = NULL;
    return comm_destroy_on_error(comm_build_and_join(config, id, out), out);
}
