/* A prediction is the answer that the launcher would give a call, with its price: from the same chooser, so it is what
   runs unless something else is tried, and the first call of that size finds it made. That is the driver's, so the role
   is taken for as long as it takes to price a few plans, as the first call of a size does. Nothing is said to other
   ranks. */
#include "backend/engine/prediction.h"

/* Where this rank can read the others' tensors, all are taken to. */
static bool can_read(tutti_comm *comm)
{
    return !group_is_spread(&comm->group) && comm->launcher.single_copy && tensors_can_read(comm);
}
static tutti_status plan_predict(tutti_comm *comm, enum family family, const struct algorithm *asked, size_t bytes,
    tutti_prediction *out)
{
    struct question question = { .family = family,
        .algorithm = asked ? asked : atomic_load(&comm->chosen[family]),
        .message_bytes = bytes,
        .placement = TENSORS_PRIVATE };
    struct choice choice;
    TRY(launch_predict(comm, &question, can_read(comm), &choice));
    out->algorithm = choice.algorithm->name;
    out->ns = choice.price;
    out->tile_bytes = choice.tile_bytes;
    out->slots = choice.slots;
    out->candidate = choice_knows(&comm->launcher.chooser, choice.algorithm);
    return TUTTI_OK;
}
tutti_status prediction_make(tutti_comm *comm, enum family family, const struct algorithm *asked, size_t bytes,
    tutti_prediction *out)
{
    tutti_status status = TUTTI_OK;
    atomic_fetch_add(&comm->gate.inside, 1);            /* nobody takes it apart meanwhile */
    if (atomic_load(&comm->gate.closed)) {
        status = comm_failure(comm);
    } else {
        driver_acquire(comm);
        status = status_as_refusal(plan_predict(comm, family, asked, bytes, out));
        driver_release(comm);
    }
    atomic_fetch_sub(&comm->gate.inside, 1);
    return status;
}
