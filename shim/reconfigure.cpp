/* Changes the members of a group. The group first ends its old membership: no new call gets in, the communicator
 * closes, so that running calls end with an error, and the changing thread waits until they have returned. Then the
 * members find each other in the store (member.cpp), join a new communicator there, and let calls in again. So each
 * call sees one membership, and after a failed change only a further change makes the group usable. */
#include "shim/gil.hpp"
#include "shim/join.hpp"
#include "shim/process_group.hpp"
#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace tutti {

/* ---- the parts of a group ---- */
/* Returns the number of changes so far, for adopt_part(). */
uint64_t ProcessGroupTutti::begin_part()
{
    CallGuard guard = enter("new_group");
    return member_->number();
}
/* Adds a new part, and ends all parts if the members have changed since begin_part(), which returned `changes`. */
void ProcessGroupTutti::adopt_part(const c10::intrusive_ptr<ProcessGroupTutti> &part, uint64_t changes)
{
    std::unique_lock<std::mutex> lock(derived_mutex_);
    std::erase_if(parts_, [](const auto &one) { return one.expired(); });
    parts_.emplace_back(part);
    lock.unlock();
    /* The members have changed while the part was joining. */
    if (member_->number() != changes) end_parts();
}
void ProcessGroupTutti::end_parts()
{
    std::unique_lock<std::mutex> lock(derived_mutex_);
    auto parts = std::exchange(parts_, {});
    derived_.clear();
    lock.unlock();
    for (const auto &one : parts)
        if (auto part = one.lock())
            part->end_part(c10::str("group ", part->options_->group_name,
                " was made before the default group was reconfigured; destroy it and make it again with new_group"));
}
void ProcessGroupTutti::end_part(const std::string &why)
{
    calls_.refuse(why);
    if (auto present = find_communicator()) present->close();
    end_parts();
}

/* ---- the steps of a change ---- */
std::string ProcessGroupTutti::reconfigure_handle() const
{
    check_may_change("get_reconfigure_handle");
    return member_->get_handle(getRank());
}
/* Throws unless this thread may change the members now. */
void ProcessGroupTutti::check_may_change(const char *call) const
{
    const std::string begin = c10::str(call, ": ");
    if (is_inherited())
        error_throw(TUTTI_FORKED,
            begin
                + "this group belongs to the parent process, from before a fork; a child must "
                  "make its own group");
    if (!supportsReconfigure())
        error_throw(TUTTI_UNSUPPORTED,
            c10::str(begin, "group ", options_->group_name,
                " is a part of the default group; reconfigure the default group, and make its parts again"));
    if (shut_down_) error_throw(TUTTI_ABORTED, begin + "this group was shut down or destroyed; make a new one");
    if (calls_.is_this_thread_inside())
        error_throw(TUTTI_UNSUPPORTED, begin + "this thread is inside a call of the group, which cannot end meanwhile");
}
void ProcessGroupTutti::end_membership(ChangeCheck &check, Member::Time deadline)
{
    const int64_t uuid = check.roster().uuid;
    calls_.refuse(c10::str("another thread reconfigures this group (uuid ", uuid,
        "); call again when that has returned"));
    interrupted_ = nullptr;
    changing_ = true;
    if (shut_down_) interrupted_ = "this group was shut down or destroyed meanwhile";
    if (auto present = find_communicator()) present->close();
    end_parts();
    if (!calls_.wait_until_none(deadline, [&] { check.run(); }))
        error_throw(TUTTI_TIMEOUT,
            c10::str("reconfigure (uuid ", uuid, "): calls of other threads of this process have not returned"));
}
c10::intrusive_ptr<Communicator> ProcessGroupTutti::join_members(ChangeCheck &check, Member::Time deadline)
{
    const Roster &roster = check.roster();
    member_->await_all(check, deadline);
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    auto store = c10::make_intrusive<c10d::PrefixStore>(roster.key() + "join", member_->store());
    return communicator_join(store, roster.rank, static_cast<int>(roster.handles.size()), options_->group_name,
        *options_, std::max(left, std::chrono::milliseconds(1)), [&] { check.run(); });
}
void ProcessGroupTutti::fail_change(const Roster &roster, tutti_status status, const std::string &why)
{
    std::string text = why + member_->find_reasons(roster);
    member_->end(roster, status, why);
    calls_.refuse(c10::str("the last reconfigure of this group failed; reconfigure it again, with another uuid and "
                           "new handles. Its error: ",
        text));
    changing_ = false;
    error_throw(status, text);
}

/* ---- the new membership ---- */
void ProcessGroupTutti::abort_if_interrupted(const Roster &roster, Communicator &communicator) const
{
    const char *why = interrupted_;
    if (!why) return;
    communicator.abort();
    error_throw(TUTTI_ABORTED, c10::str("reconfigure (uuid ", roster.uuid, "): ", why));
}
/* begin_membership() stores the new communicator, lets calls in again and returns the changed group. In torch before
 * 2.14 rank and size of a group are constant, so a new group takes the place of this one. */
#ifdef C10D_BACKEND_HAS_RECONFIGURE
c10::intrusive_ptr<ProcessGroupTutti> ProcessGroupTutti::begin_membership(const Roster &roster,
    c10::intrusive_ptr<Communicator> communicator)
{
    std::lock_guard<std::mutex> lock(communicator_mutex_);
    abort_if_interrupted(roster, *communicator);
    if (address_given_) kept_.push_back(communicator_);
    address_given_ = false;
    take_communicator(std::move(communicator));
    rank_ = roster.rank;
    size_ = static_cast<int>(roster.handles.size());
    sequence_ = 0;
    membership_ = roster.name();
    if (recorded_as_) recorder::recorded_group_mark_gone(*recorded_as_);
    begin_recording();
    changing_ = false;
    calls_.allow();
    return c10::intrusive_ptr<ProcessGroupTutti>::reclaim_copy(this);
}
WorkPointer ProcessGroupTutti::reconfigure(const c10d::ReconfigureOptions &options)
{
    Change change{ options.uuid, {}, options.handles.index() == 1, options.timeout };
    std::visit([&](const auto &handles) { change.handles.assign(handles.begin(), handles.end()); }, options.handles);
    change_members(change);
    auto work = c10::make_intrusive<Work>(find_communicator(), rank_, c10d::OpType::UNKNOWN, nullptr, Tensors(), 0);
    work->finish_blocking(work->add(Footprint("reconfigure")));
    return work;
}
#else
ProcessGroupTutti::ProcessGroupTutti(ProcessGroupTutti &old, const Roster &roster,
    c10::intrusive_ptr<Communicator> communicator)
    : c10d::Backend(roster.rank, static_cast<int>(roster.handles.size())), options_(old.options_), member_(old.member_),
      membership_(roster.name())
{
    take_communicator(std::move(communicator));
    init();
    begin_recording();
}
c10::intrusive_ptr<ProcessGroupTutti> ProcessGroupTutti::begin_membership(const Roster &roster,
    c10::intrusive_ptr<Communicator> communicator)
{
    std::lock_guard<std::mutex> lock(communicator_mutex_);
    abort_if_interrupted(roster, *communicator);
    calls_.refuse("this group was reconfigured, so another one has taken its place: torch.distributed.group.WORLD");
    changing_ = false;
    return c10::make_intrusive<ProcessGroupTutti>(*this, roster, std::move(communicator));
}
#endif
c10::intrusive_ptr<ProcessGroupTutti> ProcessGroupTutti::change_members(const Change &change)
{
    /* Other threads need the GIL to leave their calls. */
    GilRelease release;
    check_may_change("reconfigure");
    std::unique_lock<std::mutex> changing(member_->changing, std::try_to_lock);
    if (!changing)
        error_throw(TUTTI_ABORTED,
            c10::str("reconfigure (uuid ", change.uuid,
                "): another thread reconfigures this "
                "group; call again when that has returned"));
    Roster roster = member_->check(change);
    constexpr std::chrono::hours longest(24 * 36500);
    Member::Time deadline = std::chrono::steady_clock::now()
        + std::min<std::chrono::milliseconds>(change.timeout.value_or(options_->timeout), longest);
    member_->begin(roster);
    /* An exception may have left coalescing open on this thread. */
    drop_coalescing();
    ChangeCheck check(*member_, roster, interrupted_);
    try {
        end_membership(check, deadline);
        member_->publish_arrival(roster);
        auto changed = begin_membership(roster, join_members(check, deadline));
        recorder::rank_set(roster.rank);
        member_->end(roster, TUTTI_OK, "");
        return changed;
    } catch (const pybind11::error_already_set &) {
        /* A signal handler has raised it. */
        std::exception_ptr raised = std::current_exception();
        try {
            fail_change(roster, TUTTI_ABORTED,
                c10::str("reconfigure (uuid ", change.uuid, "): this rank was interrupted"));
        } catch (const Error &) {
            std::rethrow_exception(raised);
        }
    } catch (const Error &error) {
        fail_change(roster, error.status, error.what());
    } catch (const std::exception &error) {
        fail_change(roster, TUTTI_SYSTEM, c10::str("reconfigure (uuid ", change.uuid, "): ", error_text(error)));
    }
}

} // namespace tutti
