------------------------------- MODULE Trace -------------------------------
(* Replays traces of the real committer (spark/tracing.py) on the model: each has to be one of its behaviours.

   tools/traces.py writes the module TraceData, with the traces as sequences of events. An event is a call, its return, or
   both at once, and becomes the step of the model that it stands for. What a trace does not show is left to TLC: steps
   that nobody else sees, expiries, and whether a call that never returned had an effect. *)
EXTENDS CommitProtocol, TraceData

VARIABLES
    number,     \* of the trace
    next,       \* index of the next event
    sent,       \* transactions for which EndTxn(commit) may be on its way
    floating    \* for each run, the kind of a write whose effect is not known, or ""

trace == <<number, next, sent, floating>>

Event == Traces[number][next]
Taken == next' = next + 1 /\ UNCHANGED number
Settled == Taken /\ UNCHANGED <<sent, floating>>
InPlace(r, changes) == run' = [run EXCEPT ![r] = Canonical(changes @@ @)]

TraceInit ==
    /\ Init
    /\ number \in 1..Len(Traces)
    /\ next = 1
    /\ sent = {}
    /\ floating = [r \in Runs |-> ""]

----------------------------------------------------------------------------
(* Spark: the trace begins with commit() or abort(). They stand for LogCommit, Start, Plan, the tasks and Report. *)

(* A run may have started long before; then it plans what the checkpoint had at that time. *)
Planned(e) ==
    /\ \/ e.batch <= commitLog + 1
       \/ e.batch = commitLog + 2 /\ \E r \in Runs : run[r].state = "log" /\ run[r].batch = commitLog + 1
    /\ run[e.run].state = "log" => e.batch = run[e.run].batch + 1
    /\ IF offsetLog[e.batch] \in {NoContent, e.content}
       THEN /\ offsetLog' = [offsetLog EXCEPT ![e.batch] = e.content]
            /\ commitLog' = IF e.batch = commitLog + 2 THEN commitLog + 1 ELSE commitLog
       ELSE /\ e.batch <= commitLog + 1  \* the checkpoint was restored: see CommitCalled
            /\ offsetLog' = [n \in Batches |-> IF n < e.batch THEN offsetLog[n] ELSE IF n = e.batch THEN e.content ELSE NoContent]
            /\ commitLog' = e.batch - 1
    /\ content' = [content EXCEPT ![e.run][e.batch] = e.content]
    /\ txn' = [t \in Transactions |-> IF t \in e.transactions /\ txn[t] = "none" THEN "open" ELSE txn[t]]
    /\ UNCHANGED <<lock, ledger, holders, written, budget, history>>
    /\ Settled

CommitCalled(e) ==
    /\ e.do = "commit"
    /\ run[e.run].state \in {"unborn", "log"}
    /\ \E hasBegun \in {run[e.run].hasBegun, FALSE} :
        LET driver == Canonical([
                state |-> IF hasBegun THEN "conflict" ELSE "lock", hasBegun |-> hasBegun, batch |-> e.batch, locks |-> 0,
                chosen |-> e.transactions, mayReplay |-> FALSE] @@ run[e.run])
            others == IF offsetLog[e.batch] \in {NoContent, e.content} THEN {} ELSE Runs \ {e.run}
        IN  run' = [r \in Runs |-> IF r = e.run THEN driver
                ELSE IF r \in others /\ run[r].state # "unborn" THEN Canonical([run[r] EXCEPT !.state = "dead"])
                ELSE run[r]]
    /\ Planned(e)

CommitReturned(e) ==
    /\ e.do = "committed"
    /\ run[e.run].state = "log"
    /\ UNCHANGED vars
    /\ Settled

AbortCalled(e) ==
    /\ e.do = "abort"
    /\ \/ run[e.run].state \in Committing \cup {"abortRead"} /\ UNCHANGED vars /\ Settled
       \/ run[e.run].state \in {"unborn", "log"} /\ InPlace(e.run, [state |-> "abortRead", batch |-> e.batch]) /\ Planned(e)

AbortReturned(e) ==
    /\ e.do = "aborted"
    /\ run[e.run].state \in Committing \cup {"abortRead", "abort", "abortRest", "dead"}
    /\ InPlace(e.run, [state |-> "dead"])
    /\ UNCHANGED <<kafka, spark, budget, history>>
    /\ Settled

----------------------------------------------------------------------------
(* The ledger *)

Opened(e) ==
    /\ e.do = "open"
    /\ Lock(e.run) \/ RedoLock(e.run)
    /\ Settled

OpenRefused(e) ==
    /\ e.do = "open refused"
    /\ run[e.run].state \in {"lock", "redoLock"}
    /\ InPlace(e.run, [state |-> "lock"])
    /\ UNCHANGED <<kafka, spark, budget, history>>
    /\ Settled

IsLedger(e) ==
    /\ holders = e.holders
    /\ ledger.batch = e.view.batch
    /\ ledger.batch # 0 =>
        /\ ledger.run = e.view.run
        /\ ledger.transactions = e.view.transactions
        /\ ledger.redone = e.view.redone
        /\ ledger.isFinished = e.view.isFinished

(* If transactions are not open, the check reads; it also reads if they are too old. *)
ReadReturned(e) ==
    /\ e.do = "read"
    /\ IsLedger(e)
    /\ \/ Read(e.run) \/ RedoRead(e.run)
       \/ Check(e.run) /\ run'[e.run].state = "yield"
       \/ run[e.run].state \in {"check", "decide"} /\ UNCHANGED vars
    /\ Settled

AbortHasRead(e) ==
    /\ e.do = "abort read"
    /\ IsLedger(e)
    /\ run[e.run].state \in Committing \cup {"abortRead"}
    /\ GiveUp(e.run)
    /\ UNCHANGED <<kafka, spark, budget, history>>
    /\ Settled

(* What a write is, by the state in which it is called. *)
IsWrite(e) ==
    \/ /\ e.kind = "decide"
       /\ run[e.run].state = "decide"
       /\ run[e.run].batch = e.batch
       /\ run[e.run].chosen = e.transactions
    \/ /\ e.kind = "finish"
       /\ run[e.run].state = "end"
       /\ run[e.run].pending = {}
       /\ run[e.run].view.batch = e.batch
    \/ /\ e.kind = "redo"
       /\ run[e.run].state = "redoWrite"
       /\ run[e.run].view.batch = e.batch
       /\ run[e.run].view.redone \cup run[e.run].expired = e.redone
    \/ /\ e.kind = "hold"
       /\ run[e.run].state = "takeOver"

WriteCalled(e) ==
    /\ e.do = "write"
    /\ IsWrite(e)
    /\ floating' = [floating EXCEPT ![e.run] = IF e.result = "unknown" THEN e.kind ELSE ""]
    /\ UNCHANGED <<vars, sent>>
    /\ Taken

Write(kind, r) ==
    /\ lock = r
    /\ \/ kind = "decide" /\ Decide(r)
       \/ kind = "finish" /\ Finish(r)
       \/ kind = "redo" /\ RedoWrite(r)
       \/ kind = "hold" /\ TakeOver(r)

WriteReturned(e) ==
    /\ e.do = "written"
    /\ Write(e.kind, e.run)
    /\ Settled

(* Its process may have been fenced by the brokers only: because its transaction has timed out. *)
WriteRefused(e) ==
    /\ e.do = "write refused"
    /\ InPlace(e.run, [state |-> "lock", expired |-> {}])
    /\ lock' = IF lock = e.run THEN 0 ELSE lock
    /\ UNCHANGED <<txn, ledger, holders, written, spark, budget, history>>
    /\ Settled

Stolen(e) ==
    /\ e.do = "steal"
    /\ lock' = 0
    /\ holders' = IF e.holds THEN Append(holders, e.run) ELSE holders
    /\ UNCHANGED <<txn, ledger, written, spark, run, budget, history>>
    /\ Settled

----------------------------------------------------------------------------
(* Transactions of tasks *)

Described(e) ==
    /\ e.do = "describe"
    /\ run[e.run].state = "check"
    /\ \A t \in e.open \cap run[e.run].chosen : txn[t] = "open"
    /\ IF run[e.run].chosen \subseteq e.open
       THEN Check(e.run)
       ELSE /\ Abort(run[e.run].chosen \ e.open)
            /\ UNCHANGED <<lock, ledger, holders, written, spark, run, budget, history>>
    /\ Settled

EndCalled(e) ==
    LET driver == run[e.run]
    IN  /\ e.do = "end"
        /\ IF e.committed
           THEN \/ driver.state = "end" /\ e.transactions = driver.pending
                \/ driver.state = "abort" /\ e.transactions = Unended(driver.view)
                \/ /\ driver.state = "yield"
                   /\ driver.view.run = e.run
                   /\ driver.view.batch = driver.batch
                   /\ e.transactions = Unended(driver.view)
           ELSE \/ /\ driver.state \in {"conflict", "check", "yield"}
                   /\ e.transactions = driver.chosen \ driver.view.transactions
                   /\ driver.state = "check" => driver.view.batch = driver.batch
                   /\ driver.state = "yield" => driver.view.run # e.run \/ driver.view.batch # driver.batch
                \/ /\ driver.state = "abortRest"
                   /\ e.transactions \cap driver.pending = {}
                   /\ \A t \in e.transactions : t.run = e.run
        /\ sent' = IF e.committed THEN sent \cup e.transactions ELSE sent
        /\ UNCHANGED <<vars, floating>>
        /\ Taken

EndReturned(e) ==
    LET driver == run[e.run]
        done == e.transactions \ e.refused
    IN  /\ e.do = "ended"
        /\ IF e.committed
           THEN /\ \A t \in done : txn[t] \in {"open", "committed"}
                /\ Commit(done)
                /\ \/ driver.state = "end" /\ InPlace(e.run, [pending |-> driver.pending \ done])
                   \/ driver.state = "yield" /\ InPlace(e.run, [state |-> "abortRead"])
                   \/ /\ driver.state = "abort"
                      /\ InPlace(e.run, [state |-> "abortRest", pending |-> OfRun(e.run, driver.view.transactions)])
                /\ UNCHANGED <<lock, ledger, holders, written, spark, budget, history>>
           ELSE \/ RefuseConflict(e.run) \/ Check(e.run) \/ Yield(e.run)
                \/ /\ driver.state = "abortRest"
                   /\ Abort(e.transactions)
                   /\ UNCHANGED <<lock, ledger, holders, written, spark, run, budget, history>>
        /\ Settled

(* After a refused EndTxn(commit), the log shows whether the transaction was committed: by an EndTxn that was sent. *)
OutcomeReturned(e) ==
    LET r == e.run
        t == e.transaction
    IN  /\ e.do = "outcome"
        /\ run[r].state = "end"
        /\ t \in run[r].pending
        /\ IF e.isVisible
           THEN /\ txn[t] = "committed" \/ (txn[t] = "open" /\ t \in sent)
                /\ Commit({t})
                /\ InPlace(r, [pending |-> run[r].pending \ {t}])
           ELSE /\ txn[t] \in {"open", "aborted"}
                /\ Abort({t})
                /\ InPlace(r, [state |-> "redoLock", expired |-> {t}])
        /\ UNCHANGED <<lock, ledger, holders, written, spark, budget, history>>
        /\ Settled

(* Ids without a known transaction are those of attempts that Spark has not chosen; `owners`: the runs of those. *)
MayAbort(r, t) == txn[t] # "open" \/ t \in Leftovers(r)
FenceCalled(e) ==
    /\ e.do = "fence"
    /\ IF run[e.run].state = "abortRest"
       THEN e.owners \subseteq {e.run} /\ \A t \in e.transactions : t.run = e.run /\ t \notin run[e.run].pending
       ELSE /\ run[e.run].state = "clean"
            /\ \A t \in e.transactions : MayAbort(e.run, t)
            /\ run[e.run].hasTakenOver \/ e.owners \subseteq {e.run} \cup Before(holders, e.run)
    /\ UNCHANGED vars
    /\ Settled

FenceReturned(e) ==
    /\ e.do = "fenced"
    /\ Abort(e.transactions)
    /\ IF run[e.run].state = "clean"
       THEN InPlace(e.run, [state |-> run[e.run].then, isClean |-> TRUE, hasTakenOver |-> FALSE])
       ELSE UNCHANGED run
    /\ UNCHANGED <<lock, ledger, holders, written, spark, budget, history>>
    /\ Settled

----------------------------------------------------------------------------
(* Steps that a trace does not show, of the run that takes the next one *)

Silent(r, e) ==
    /\ \/ IsInternal(r) /\ Driver(r)
       \/ ListLeftovers(r) /\ run'[r].state # "abortLeftovers" /\ e.do # "fence"
       \/ BeginAgain(r) /\ e.do = "open"
       \/ /\ run[r].state = "check"
          /\ run[r].chosen \ run[r].view.transactions = {}
          /\ run[r].view.batch = run[r].batch \/ run[r].chosen = {}
          /\ Check(r)
       \/ /\ run[r].state = "end"  \* a repeated EndTxn(commit) has no effect
          /\ e.do \in {"write", "outcome"}
          /\ \E t \in run[r].pending : txn[t] = "committed"
          /\ InPlace(r, [pending |-> {t \in run[r].pending : txn[t] # "committed"}])
          /\ UNCHANGED <<kafka, spark, budget, history>>
    /\ UNCHANGED trace

TakesEffect(r) ==
    /\ floating[r] # ""
    /\ Write(floating[r], r)
    /\ floating' = [floating EXCEPT ![r] = ""]
    /\ UNCHANGED <<number, next, sent>>

TraceNext ==
    /\ next <= Len(Traces[number])
    /\ \/ CommitCalled(Event) \/ CommitReturned(Event) \/ AbortCalled(Event) \/ AbortReturned(Event)
       \/ Opened(Event) \/ OpenRefused(Event) \/ ReadReturned(Event) \/ AbortHasRead(Event)
       \/ WriteCalled(Event) \/ WriteReturned(Event) \/ WriteRefused(Event) \/ Stolen(Event)
       \/ Described(Event) \/ EndCalled(Event) \/ EndReturned(Event) \/ OutcomeReturned(Event)
       \/ FenceCalled(Event) \/ FenceReturned(Event)
       \/ Silent(Event.run, Event)
       \/ \E r \in Runs : TakesEffect(r)

TraceSpec == TraceInit /\ [][TraceNext]_<<vars, trace>>

(* TLC's registers below 100 are those of Mark. *)
ASSUME \A n \in 1..Len(Traces) : TLCSet(100 + n, 0)

(* Print how far each trace was explained; tools/traces.py reads it. *)
Progress == IF TLCGet(100 + number) >= next THEN TRUE
    ELSE TLCSet(100 + number, next) /\ PrintT(<<"explained", number, next - 1>>)
===========================================================================
