/* Handles, and how the members of a change find each other in the store. Each member writes two keys: its record, and
 * a key named after the uuid and the digest of the handles. When all members have written the second key, all have
 * asked for the same change. A member that waits reads the records of the others, and fails at once if one of them can
 * no longer take part. */
#include "shim/member.hpp"
#include <algorithm>
#include <c10/util/Exception.h>
#include <c10/util/hash.h>
#include <cinttypes>
#include <random>
#include <sstream>
#include <thread>
#include <tuple>

namespace tutti {

/* Limits of the time between two reads of the records of the others. */
static constexpr std::chrono::milliseconds kReadRecordsAfter(20), kReadRecordsAtLeast(100);
/* The most bytes of an error text in a record. */
static constexpr size_t kLongestReason = 600;

/* ---- texts ---- */
/* Returns 16 random hexadecimal digits. */
static std::string text_draw_random_hex()
{
    std::random_device source;
    char text[17];
    std::snprintf(text, sizeof text, "%08x%08x", static_cast<unsigned>(source()), static_cast<unsigned>(source()));
    return text;
}
static std::vector<uint8_t> text_to_bytes(const std::string &text) { return { text.begin(), text.end() }; }
static std::string text_from_bytes(const std::vector<uint8_t> &bytes) { return { bytes.begin(), bytes.end() }; }
static std::string change_text_prefix(int64_t uuid) { return c10::str("reconfigure (uuid ", uuid, "): "); }
static std::string handle_describe_member(const Handle &handle)
{
    return c10::str("member ", handle.to_text(), " (formerly rank ", handle.rank, ")");
}
static std::string handles_describe_list(size_t count, bool ordered)
{
    return c10::str(ordered ? "a list" : "a set", " of ", count, count == 1 ? " handle" : " handles");
}

/* ---- handles ---- */
std::string Handle::to_text() const { return c10::str("tutti:", job, ":", member, ":", number, ":", rank); }
/* Returns the handle whose to_text() is `text`, or nullopt for any other text. */
static std::optional<Handle> handle_parse_text(const std::string &text)
{
    char job[17], member[17];
    Handle handle;
    int end = 0;
    if (std::sscanf(text.c_str(), "tutti:%16[0-9a-f]:%16[0-9a-f]:%" SCNu64 ":%d%n", job, member, &handle.number,
            &handle.rank, &end)
        != 4)
        return std::nullopt;
    handle.job = job;
    handle.member = member;
    if (static_cast<size_t>(end) != text.size() || handle.to_text() != text) return std::nullopt;
    return handle;
}
Member::Member(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)), name_(text_draw_random_hex()) {}
std::string Member::get_job()
{
    std::lock_guard<std::mutex> lock(job_mutex_);
    if (!job_.empty()) return job_;
    try {
        /* The first member of the job chooses the name, and all others get it. */
        return job_ = text_from_bytes(store_->compareSet("reconfigure/job", {}, text_to_bytes(text_draw_random_hex())));
    } catch (const std::exception &error) {
        error_throw(TUTTI_SYSTEM, c10::str("the name of the job cannot be read from the store: ", error_text(error)));
    }
}
std::string Member::get_handle(int rank) { return Handle{ get_job(), name_, number_, rank }.to_text(); }

/* ---- the checks of one member ---- */
/* Returns the handles of the change in their order. Throws ValueError for a damaged handle and for one of another
 * job. */
static std::vector<Handle> handles_parse_texts(const Change &change, const std::string &job)
{
    std::vector<Handle> handles;
    for (const std::string &text : change.handles) {
        std::optional<Handle> handle = handle_parse_text(text);
        if (!handle)
            error_throw(TUTTI_INVALID_ARGUMENT,
                c10::str(change_text_prefix(change.uuid), "\"", text.substr(0, 100), "\" is not a handle of tutti"));
        if (handle->job != job)
            error_throw(TUTTI_INVALID_ARGUMENT,
                c10::str(change_text_prefix(change.uuid), handle_describe_member(*handle), " belongs to another job, ",
                    handle->job, ", whose store is another one; this job is ", job));
        handles.push_back(*std::move(handle));
    }
    return handles;
}
/* Throws ValueError if two handles name the same member. */
static void handles_check_distinct(const Change &change, const std::vector<Handle> &handles)
{
    for (size_t i = 0; i < handles.size(); i++)
        for (size_t j = 0; j < i; j++)
            if (handles[i].member == handles[j].member)
                error_throw(TUTTI_INVALID_ARGUMENT,
                    c10::str(change_text_prefix(change.uuid), "a member is there twice, as ", handles[j].to_text(),
                        " and ", handles[i].to_text()));
}
Roster Member::check(const Change &change)
{
    const std::string begin = change_text_prefix(change.uuid);
    if (change.timeout && change.timeout->count() < 1)
        error_throw(TUTTI_INVALID_ARGUMENT, begin + "the timeout must be at least a millisecond");
    if (used_.count(change.uuid))
        error_throw(TUTTI_MISMATCH, begin + "this uuid was already used on this member; give a new one each time");
    Roster roster{ change.uuid, change.ordered, handles_parse_texts(change, get_job()), 0, "" };
    std::vector<Handle> &handles = roster.handles;
    handles_check_distinct(change, handles);
    if (!change.ordered)
        std::sort(handles.begin(), handles.end(),
            [](const Handle &a, const Handle &b) { return std::tie(a.rank, a.member) < std::tie(b.rank, b.member); });
    auto mine = std::find_if(handles.begin(), handles.end(), [&](const Handle &one) { return one.member == name_; });
    if (mine == handles.end())
        error_throw(TUTTI_INVALID_ARGUMENT,
            c10::str(begin, "this member's own handle is not among the ", handles.size(), "; only members call it"));
    if (mine->number != number_)
        error_throw(TUTTI_MISMATCH,
            c10::str(begin, "this member's handle is stale: ", mine->to_text(), " has number ", mine->number,
                ", and after its last reconfigure the member has ", number_.load(), "; get handles again each time"));
    roster.rank = static_cast<int>(mine - handles.begin());
    std::string all;
    for (const Handle &handle : handles) all += handle.to_text() + "\n";
    roster.digest = c10::sha1(all).str();
    return roster;
}

/* ---- the store ---- */
std::string Roster::name() const { return c10::str(uuid, "-", digest); }
std::string Roster::key() const { return c10::str("reconfigure/", ordered ? "list-" : "set-", name(), "/"); }
/* A member's newest change, as the member publishes it. `number`: the number in the member's handle. `count`: how many
 * handles the change has. */
struct MemberRecord {
    uint64_t number;
    int64_t uuid;
    bool ordered;
    size_t count;
    std::string digest;
    /* TUTTI_IN_PROGRESS until the change is over, then its outcome and the text of its error. */
    int status;
    std::string why;
    /* True if the member has asked for the same change. */
    bool is_of(const Roster &roster) const
    {
        return uuid == roster.uuid && ordered == roster.ordered && digest == roster.digest;
    }
};
void Member::publish(const Roster &roster, tutti_status status, const std::string &why)
{
    const Handle &mine = roster.handles[static_cast<size_t>(roster.rank)];
    store_->set("reconfigure/" + name_,
        text_to_bytes(c10::str(mine.number, " ", roster.uuid, " ", roster.ordered, " ", roster.handles.size(), " ",
            roster.digest, " ", static_cast<int>(status), "\n", why.substr(0, kLongestReason))));
}
std::optional<MemberRecord> Member::read_record(const std::string &member)
{
    const std::string key = "reconfigure/" + member;
    if (!store_->check({ key })) return std::nullopt;
    std::istringstream text(text_from_bytes(store_->get(key)));
    MemberRecord record{};
    text >> record.number >> record.uuid >> record.ordered >> record.count >> record.digest >> record.status;
    if (!text) return std::nullopt;
    text.get();
    std::getline(text, record.why, '\0');
    return record;
}
void Member::begin(const Roster &roster)
{
    used_.insert(roster.uuid);
    number_++;
}
void Member::publish_arrival(const Roster &roster)
{
    try {
        publish(roster, TUTTI_IN_PROGRESS, "");
        if (roster.handles.size() > 1) store_->set(roster.key() + name_, text_to_bytes("come"));
    } catch (const std::exception &) {
        /* A group of one member needs no store, which may have been in a process that died. */
        if (roster.handles.size() > 1) throw;
    }
}
void Member::end(const Roster &roster, tutti_status status, const std::string &why)
{
    try {
        publish(roster, status, why);
        if (roster.handles.size() > 1) store_->deleteKey(roster.key() + name_);
    } catch (const std::exception &) {
        /* The record only explains a failure to others, and a deleted key only saves space. Some stores delete
         * nothing. */
    }
}

/* ---- waiting for the others ---- */
/* Returns why the member `other`, which has published `record`, can no longer take part, or an empty text if it still
 * can. */
static std::string record_find_reason(const Roster &roster, const Handle &other, const MemberRecord &record)
{
    if (record.number < other.number) return "";
    if (record.number > other.number)
        return c10::str("the handle is stale: this member has reconfigured ", record.number - other.number,
            " times since; get handles again each time");
    if (record.is_of(roster)) return record.status < TUTTI_OK ? "it gave up: " + record.why : "";
    if (record.status == TUTTI_OK)
        return c10::str("the handle is stale: this member has used it with uuid ", record.uuid,
            "; get handles again each time");
    if (record.uuid != roster.uuid)
        return c10::str("it gave uuid ", record.uuid, "; all members must give the same uuid");
    bool same_form = record.ordered == roster.ordered && record.count == roster.handles.size();
    return c10::str("it gave ", handles_describe_list(record.count, record.ordered), ", and this member ",
        handles_describe_list(roster.handles.size(), roster.ordered),
        same_form ? " with other handles or another order" : "", "; all members must give the same");
}
void Member::check_others(const Roster &roster)
{
    for (const Handle &other : roster.handles) {
        if (other.member == name_) continue;
        std::optional<MemberRecord> record = read_record(other.member);
        std::string reason = record ? record_find_reason(roster, other, *record) : "";
        if (reason.empty()) continue;
        bool gave_up = record->number == other.number && record->is_of(roster);
        error_throw(gave_up ? static_cast<tutti_status>(record->status) : TUTTI_MISMATCH,
            c10::str(change_text_prefix(roster.uuid), handle_describe_member(other), " does not come: ", reason));
    }
}
void Member::fail_late(const Roster &roster, std::chrono::milliseconds waited)
{
    std::string absent;
    for (const Handle &other : roster.handles) {
        if (other.member == name_ || store_->check({ roster.key() + other.member })) continue;
        absent += c10::str(absent.empty() ? "" : "; ", handle_describe_member(other));
    }
    error_throw(TUTTI_TIMEOUT,
        c10::str(change_text_prefix(roster.uuid), "not all of ", roster.handles.size(), " members have come in ",
            waited.count(), " ms. Those that have not called reconfigure with these handles: ", absent,
            ". A member that has died must be left out"));
}
void ChangeCheck::run()
{
    if (const char *why = interrupted_) {
        std::string text = change_text_prefix(roster_.uuid) + why;
        /* The other members find the reason when the change fails on them. */
        member_.end(roster_, TUTTI_ABORTED, text);
        error_throw(TUTTI_ABORTED, text);
    }
    const Time now = std::chrono::steady_clock::now();
    if (now - read_ < std::clamp<Time::duration>((now - began_) / 8, kReadRecordsAfter, kReadRecordsAtLeast)) return;
    member_.check_others(roster_);
    read_ = now;
}
void Member::await_all(ChangeCheck &check, Time deadline)
{
    using std::chrono::steady_clock;
    const Roster &roster = check.roster();
    std::vector<std::string> keys;
    for (const Handle &one : roster.handles) keys.push_back(roster.key() + one.member);
    if (keys.size() == 1) return;
    const Time began = steady_clock::now();
    while (!store_->check(keys)) {
        steady_clock::duration waited = steady_clock::now() - began;
        check.run();
        if (began + waited >= deadline)
            fail_late(roster, std::chrono::duration_cast<std::chrono::milliseconds>(waited));
        steady_clock::duration pause = std::clamp<steady_clock::duration>(waited / 8, std::chrono::microseconds(100),
            std::chrono::milliseconds(100));
        std::this_thread::sleep_for(std::min(pause, deadline - (began + waited)));
    }
}
std::string Member::find_reasons(const Roster &roster)
{
    std::string reasons;
    try {
        for (const Handle &other : roster.handles) {
            if (other.member == name_) continue;
            std::optional<MemberRecord> record = read_record(other.member);
            if (record && record->number == other.number && record->is_of(roster) && record->status < TUTTI_OK)
                reasons += c10::str("; ", handle_describe_member(other), " published: ", record->why);
        }
    } catch (const std::exception &) {
        /* Without the store the caller's own error remains. */
    }
    return reasons;
}

} // namespace tutti
