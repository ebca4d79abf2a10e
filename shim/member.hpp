/* A member is one process of a group whose ranks may change. Members find each other through the group's store.
 *
 * A *handle* names the job, the member, a number that grows with each reconfigure of this member, and its rank. A
 * member publishes its newest reconfigure under one key, "reconfigure/<member>", which stays after a failure. If the
 * member cannot take part in a change, the others read the reason there: other handles, another uuid, or its error. */
#pragma once
#include "shim/communicator.hpp"
#include <chrono>
#include <mutex>
#include <optional>
#include <set>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace tutti {

/* The arguments of one reconfigure call. All members give the same uuid and handles. */
struct Change {
    /* Names the change. A member uses each uuid once. */
    int64_t uuid = 0;
    std::vector<std::string> handles;
    /* True: the handles are in the order of the new ranks. False: the new ranks follow the order of the former ones. */
    bool ordered = true;
    /* Limits the whole call; default: the group's timeout. */
    std::optional<std::chrono::milliseconds> timeout;
};
struct Handle {
    std::string job, member;
    uint64_t number = 0;
    /* The rank at the time when the handle was made. */
    int rank = 0;
    /* Returns "tutti:<job>:<member>:<number>:<rank>". */
    std::string to_text() const;
};
/* The members of one change, in the order of their new ranks. */
struct Roster {
    int64_t uuid = 0;
    bool ordered = true;
    std::vector<Handle> handles;
    /* The new rank of this member. */
    int rank = 0;
    /* A hash of all handles in their order. */
    std::string digest;
    /* "<uuid>-<digest>", the same on all members. */
    std::string name() const;
    /* Returns how the keys of this change in the store begin. The name of a member follows. */
    std::string key() const;
};
/* The record that a member publishes about its newest change (member.cpp). */
struct MemberRecord;

class Member;
/* Checks, in each wait of a change, whether the change can still succeed on this member and on the others. */
class ChangeCheck {
  public:
    /* `interrupted`: the reason why the change must end on this member, or null. All arguments outlive the check. */
    ChangeCheck(Member &member, const Roster &roster, const std::atomic<const char *> &interrupted)
        : member_(member), roster_(roster), interrupted_(interrupted)
    {}
    const Roster &roster() const { return roster_; }
    /* If `interrupted` has a reason, publishes it for the other members and throws AbortedError. From time to time it
     * also reads the records of the others, and throws if one of them can no longer take part. */
    void run();

  private:
    Member &member_;
    const Roster &roster_;
    const std::atomic<const char *> &interrupted_;
    using Time = std::chrono::steady_clock::time_point;
    const Time began_ = std::chrono::steady_clock::now();
    /* When the records of the others were last read. */
    Time read_ = began_;
};

class Member {
  public:
    using Time = std::chrono::steady_clock::time_point;

    explicit Member(c10::intrusive_ptr<c10d::Store> store);
    const c10::intrusive_ptr<c10d::Store> &store() const { return store_; }
    /* Returns the number of changes that this member has begun. */
    uint64_t number() const { return number_; }
    /* The thread that changes the members holds this lock from check() to end(). */
    std::mutex changing;
    /* Returns this member's handle for its next change, as text. `rank`: the present rank. The first call uses the
     * store. */
    std::string get_handle(int rank);
    /* Checks a change without any effect, and returns its members. Throws ValueError if the timeout is shorter than a
     * millisecond, if a handle is damaged, of another job or given twice, or if this member's handle is missing, and
     * MismatchError if this member has used the uuid or the handle before. */
    Roster check(const Change &change);
    /* Records that the uuid and this member's handle are used, so neither works in another change. */
    void begin(const Roster &roster);
    /* Publishes that this member takes part in the change. */
    void publish_arrival(const Roster &roster);
    /* Waits until all members take part in the change. The error names the members that do not, and the reason. */
    void await_all(ChangeCheck &check, Time deadline);
    /* Publishes how the change ended. `why`: the text of the error, empty after a success. Errors of the store are
     * ignored. */
    void end(const Roster &roster, tutti_status status, const std::string &why);
    /* Returns the errors that other members have published for this change, or an empty text. */
    std::string find_reasons(const Roster &roster);

  private:
    friend class ChangeCheck;
    /* Returns the name of the job, which its first member has put into the store. */
    std::string get_job();
    /* Writes this member's record to the store. TUTTI_IN_PROGRESS: the change is not over. */
    void publish(const Roster &roster, tutti_status status, const std::string &why);
    /* Returns nullopt if the member has published nothing. */
    std::optional<MemberRecord> read_record(const std::string &member);
    /* Throws if a member can no longer take part in the change. */
    void check_others(const Roster &roster);
    /* Throws TimeoutError, which names the members that have not published their arrival. */
    [[noreturn]] void fail_late(const Roster &roster, std::chrono::milliseconds waited);

    const c10::intrusive_ptr<c10d::Store> store_;
    /* The random name of this member. */
    const std::string name_;
    std::atomic<uint64_t> number_{ 0 };
    std::mutex job_mutex_;
    /* Empty until get_job() has asked the store. */
    std::string job_;
    /* The uuids that this member has used. */
    std::set<int64_t> used_;
};

} // namespace tutti
