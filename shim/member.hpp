/* A member: one process's part of a group, whose ranks may change. Members find each other through the group's store.
 *
 * A *handle* names the job, the member, a number that grows with each reconfigure of this member, and its rank. A
 * member publishes its newest reconfigure under one key, "reconfigure/<member>", which stays after a failure. So the
 * other members learn why it will not come: other handles, another uuid, or its error. */
#pragma once
#include "shim/communicator.hpp"
#include <chrono>
#include <mutex>
#include <optional>
#include <set>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace tutti {

/* The request of a caller. */
struct Change {
    int64_t uuid = 0;
    std::vector<std::string> handles;
    /* The handles are in the order of the ranks. Otherwise the ranks follow from the handles. */
    bool ordered = true;
    /* Limits the whole call; default: the group's timeout. */
    std::optional<std::chrono::milliseconds> timeout;
};
struct Handle {
    std::string job, member;
    uint64_t number = 0;
    int rank = 0;
    std::string print() const;
};
/* The members of one change, in the order of their new ranks. */
struct Roster {
    int64_t uuid = 0;
    bool ordered = true;
    std::vector<Handle> handles;
    int rank = 0;
    /* Covers all handles in their order. */
    std::string digest;
    /* "<uuid>-<digest>", the same on all members. */
    std::string name() const;
    /* The key of this change in the store, without the part for a member. */
    std::string key() const;
};
struct MemberRecord;

class Member {
  public:
    using Time = std::chrono::steady_clock::time_point;

    explicit Member(c10::intrusive_ptr<c10d::Store> store);
    const c10::intrusive_ptr<c10d::Store> &store() const { return store_; }
    uint64_t number() const { return number_; }
    /* Held by the thread that changes the members, for check() to end(). */
    std::mutex changing;
    /* Returns the handle of the next change. `rank`: the present one. The first call uses the store. */
    std::string get_handle(int rank);
    /* Checks a change without any effect. ValueError: handles that are damaged, of another job, twice, or without this
     * member. MismatchError: a uuid that this member has used, or an old handle of this member. */
    Roster check(const Change &change);
    /* Uses up the uuid and the present handle. */
    void begin(const Roster &roster);
    /* Publishes that this member has come. */
    void publish_arrival(const Roster &roster);
    /* Waits until all members have come with the same uuid and handles. The error names those that have not, and why.
     * `interrupted` ends the wait when it is not null. */
    void await_all(const Roster &roster, Time deadline, const std::atomic<const char *> &interrupted);
    /* Publishes how the change ended: the text of an error, or an empty one. The store may fail. */
    void end(const Roster &roster, tutti_status status, const std::string &why);
    /* Returns what members that have failed published, or an empty text. */
    std::string find_reasons(const Roster &roster);

  private:
    std::string get_job();
    void publish(const Roster &roster, tutti_status status, const std::string &why);
    std::optional<MemberRecord> read_record(const std::string &member);
    void check_others(const Roster &roster);
    [[noreturn]] void fail_late(const Roster &roster, std::chrono::milliseconds waited);

    const c10::intrusive_ptr<c10d::Store> store_;
    const std::string name_;
    std::atomic<uint64_t> number_{ 0 };
    std::mutex job_mutex_;
    std::string job_;
    std::set<int64_t> used_;
};

} // namespace tutti
