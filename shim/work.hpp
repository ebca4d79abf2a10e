/* The Work a caller holds. It owns the requests of its operations and the tensors they use, and keeps itself alive
 * until all of them are over, whether or not anybody holds it. What tells it that an operation is over runs on the
 * core's progress thread; nothing there takes Python's GIL, frees a tensor or runs a user's callback: finished Works
 * go on a list that the next call of any thread empties, futures complete on threads of their own. */
#pragma once
#include "shim/footprint.hpp"
#include "shim/recorder.hpp"
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace tutti {

class Work;
class Arrival;

struct Operation {
    mutable tutti_request request = TUTTI_REQUEST_INIT; /* the core's */
    Work *work = nullptr;
    std::string algorithm;                        /* what request.algorithm points to */
    Footprint footprint;                          /* lives until it is over */
    uint64_t record = 0;                          /* the flight recorder's, 0: none */
    std::shared_ptr<Arrival> arrival;             /* if part of the footprint is on a device */
    tutti_status outcome = TUTTI_IN_PROGRESS;     /* valid once the Work is settled, or `over` */
    std::string text;                             /* why it failed */
    std::atomic<bool> over{ false };              /* nothing of this, nor of what it settled, changes any more */
    void conclude(tutti_status how, std::string why);
    void tell();
};

class Work final : public c10d::Work {
  public:
    /* title: of the range that a profiler sees, or null */
    Work(c10::intrusive_ptr<Communicator> communicator, int rank, c10d::OpType type, const char *title,
        const Tensors &inputs, uint64_t sequence);

    /* A further operation of this Work; its address stays. */
    Operation &add(Footprint footprint);
    /* The Work is not over, and lives, while it is open: once for each operation that runs, and for whoever may still
     * add some. */
    void open();
    void close();
    void end_coalescing(); /* closes what a thread has opened to coalesce */
    const Communicator &communicator() const { return *communicator_; }
    void arm(Operation &operation);                                /* opens, and closes when the operation is over */
    void finish_blocking(Operation &operation);                    /* the call has returned, successfully */
    void finish(Operation &operation, tutti_status status);        /* an armed call is over, or has failed at once */
    void withdraw(Operation &operation);                           /* an armed call was refused: it never was */
    void block_futures() { blocking_futures_ = true; }             /* getFuture waits until it is over */
    void time() { begun_ = std::chrono::steady_clock::now(); }     /* getDuration will be asked for */

    void hasten() const; /* it is to end although nobody waits: a thread of the core sees to that */
    bool isCompleted() override;
    bool isSuccess() const override;
    std::exception_ptr exception() const override;
    int sourceRank() const override;
    Tensors result() override;
    void synchronize() override { wait(kNoTimeout); }
    bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
    /* The thread waits until the operation is over, the stream only for what brings the result to its device. */
    void blockCurrentStream() override { wait(kNoTimeout); }
    void abort() override { communicator_->abort(); }
    c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
    c10::intrusive_ptr<c10::ivalue::Future> getFutureResult() override;
    float getDuration() const override;
    uint64_t getSequencenumber() const override { return sequence_; }

    /* For the flight recorder: what its operations share, and the record of the end of a coalesced call. */
    RecordedNumbers numbers;
    uint64_t end_record = 0;

    /* Drops the Works that are over. Call it where dropping a tensor is harmless: from a thread of the user. */
    static void reap();
    static void reap_unless_ending(); /* nothing may be dropped any more when the interpreter ends */

  private:
    friend class Futures;
    static void on_done(tutti_request *request, void *context);
    void settle();
    void let_go();
    bool asked() const { return future_ || outcome_; }
    void complete_futures();
    void prepare_future();
    void wait_without_gil();
    std::mutex &guard();
    void deliver();
    void wait_for(Operation &operation, std::chrono::milliseconds timeout);
    template <typename Use> void each(Use use) const;

    c10::intrusive_ptr<Communicator> communicator_;
    Operation first_;
    std::vector<std::unique_ptr<Operation>> more_;
    uint64_t sequence_;
    std::atomic<int> open_{ 0 };    /* settles at 0 */
    std::atomic<int> touched_{ 0 }; /* who is inside or will come; is let go at 0 */
    std::atomic<bool> settled_{ false };
    std::atomic<const Operation *> failed_{ nullptr }; /* the first that did */
    c10::intrusive_ptr<c10::ivalue::Future> future_, outcome_; /* under mutex_ */
    bool future_taken_ = false, outcome_taken_ = false;        /* under mutex_ */
    std::chrono::steady_clock::time_point begun_, ended_;
    bool staged_ = false, blocking_futures_ = false;
    std::optional<c10::Device> device_; /* that was current when the future was asked for */
    Work *next_ = nullptr;            /* on the list of finished Works */
};

/* The results of one operation on their way to devices. It holds no tensor once they are brought there, and lasts while
 * a later operation may have to wait for the copies: a caller who starts one without a wait in between, from whichever
 * stream, gets it in order. */
class Arrival {
  public:
    explicit Arrival(Operation &of);
    /* The operation must be over. The first call enqueues the copies on the current streams; later ones, from whatever
     * thread, make the current streams wait for them. */
    void bring();
    bool passed(); /* brought, and the copies are over; or never to be brought */
    /* A later operation of any thread finds it in wait_for_earlier until it has passed. */
    static void expect(std::shared_ptr<Arrival> arrival);
    /* Waits until what earlier operations bring to memory that `next` touches is there, or will be for the current
     * streams. */
    static void wait_for_earlier(const Footprint &next);

  private:
    void settle();
    std::mutex mutex_;
    c10::weak_intrusive_ptr<Work> work_; /* until brought */
    Operation *operation_;               /* is the Work's */
    std::vector<Extent> written_;
    bool brought_ = false;
    std::vector<c10::Event> events_; /* of the copies */
};

/* Makes the first of the threads that complete futures, or fails, if there is none. `who`: for the message. */
void futures_begin(const std::string &who);
/* Stops completing futures: a callback must not run while the interpreter is being taken apart. */
void futures_quiesce();

} // namespace tutti
