/* A prediction is the choice that the launcher would make for a call, with its price. It comes from the same chooser.
   So the call runs as predicted unless a trial changes it, and the first call of that size finds the choice already
   made. The chooser belongs to the driver, so the caller takes the role while a few plans are priced. A prediction
   sends no messages. */
#include "backend/engine/prediction.h"

/* If this rank can read the tensors of the others, it assumes that all ranks can. */
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
    /* The communicator is not destroyed while a thread is inside. */
    atomic_fetch_add(&comm->gate.inside, 1);
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
