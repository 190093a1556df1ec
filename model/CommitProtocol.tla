-------------------------- MODULE CommitProtocol --------------------------
(* The commit protocol of the Spark sink (docs/exactly-once.md, spark/committer.py).

   A query has batches 1, 2, ...; a batch has the chunks lo..hi of a source. A chunk has one part for each task, which
   writes in a transaction of its own, and, if HasInline, a part that the driver writes with its decision.
   Runs are drivers of the query, started one after the other; an older run may still be alive (a zombie).

       Plan -> Attempt (tasks) -> Report -> Lock -> Read -> TakeOver -> carry out -> Clean -> Check -> Decide -> End
            -> Finish -> LogCommit

   Each action is a step that Kafka makes atomic, so that a crash, an expiry or a step of another run can happen
   between any two of them. *)
EXTENDS Naturals, Sequences, FiniteSets, TLC

CONSTANTS
    Tasks,          \* tasks of a batch that write in a transaction
    HasInline,      \* whether a batch also has inline rows
    ChunksMax,      \* chunks of the source
    WidthMax,       \* chunks of a batch; 2 lets a batch be planned with other rows after a restore
    RunsMax,        \* drivers
    AliveMax,       \* drivers at a time
    AttemptsMax,    \* attempts of a task in a run: retries and speculative attempts
    ExpiriesMax,    \* transactions that the brokers abort because of their time-out
    LockLossesMax,  \* how often another process of the run takes the sink lock
    RestoresMax,    \* how often the checkpoint is replaced by an older copy
    ReopensMax,     \* how often a commit takes the sink lock again after losing it
    MayDie          \* whether drivers die; one that stops for ever is as good as dead where nothing asks which it is

VARIABLES
    txn,        \* Kafka: state of each transaction of a task
    lock,       \* Kafka: the run whose process has fenced all others with the transactional id of the sink, or 0
    ledger,     \* Kafka: the last committed decision
    holders,    \* Kafka: the runs that have held the sink, in order
    written,    \* Kafka: how often a part of a chunk was committed by a transaction of the sink id
    content,    \* Spark: the chunks of a batch, as a run has planned it
    offsetLog,  \* Spark's checkpoint: the chunks of each planned batch
    commitLog,  \* Spark's checkpoint: the last committed batch
    run,        \* the state of each driver
    budget,     \* remaining faults
    decided,    \* history: the content of each decision
    logged      \* history: the content of each batch whose commit Spark has logged

kafka == <<txn, lock, ledger, holders, written>>
spark == <<content, offsetLog, commitLog>>
history == <<decided, logged>>
vars == <<kafka, spark, run, budget, history>>

Runs == 1..RunsMax
Chunks == 1..ChunksMax
Batches == 1..ChunksMax
Attempts == 1..AttemptsMax
INLINE == "inline"
Parts == Tasks \cup (IF HasInline THEN {INLINE} ELSE {})
Transactions == [run : Runs, batch : Batches, task : Tasks, attempt : Attempts]
NoContent == <<0, 0>>
NoDecision == [
    batch |-> 0, content |-> NoContent, run |-> 0, transactions |-> {}, redone |-> {}, isFinished |-> TRUE]

Covers(interval, chunk) == interval[1] < chunk /\ chunk <= interval[2]
ContentOf(transaction) == content[transaction.run][transaction.batch]
Last(sequence) == IF sequence = <<>> THEN 0 ELSE sequence[Len(sequence)]
Members(sequence) == {sequence[i] : i \in 1..Len(sequence)}
IndexOf(sequence, member) == CHOOSE i \in 1..Len(sequence) : sequence[i] = member
Before(sequence, member) ==
    IF member \in Members(sequence) THEN {sequence[i] : i \in 1..(IndexOf(sequence, member) - 1)} ELSE Members(sequence)

(* How often a read_committed reader sees a part of a chunk. *)
Seen(chunk, part) ==
    written[chunk][part] + Cardinality({t \in Transactions :
        t.task = part /\ txn[t] = "committed" /\ Covers(ContentOf(t), chunk)})

Unborn == [
    state |-> "unborn", next |-> 0, batch |-> 0, mayReplay |-> TRUE, chosen |-> {}, hasBegun |-> FALSE,
    isClean |-> FALSE, hasTakenOver |-> FALSE, view |-> NoDecision, pending |-> {}, expired |-> {},
    leftovers |-> {}, then |-> "", locks |-> 0]
Redoing == {"redoLock", "redoRead", "redoWrite"}
Committing == Redoing \cup
    {"lock", "read", "takeOver", "carry", "conflict", "clean", "abortLeftovers", "check", "decide", "end", "yield"}

(* A driver without what its state makes useless, so that states that differ only in it are one. Tasks of a driver that has
   ended may go on: they need its batch. *)
Canonical(driver) ==
    IF driver.state \in {"dead", "abortRead", "abort", "abortRest"}
    THEN [Unborn EXCEPT
        !.state = driver.state, !.batch = driver.batch, !.mayReplay = FALSE,
        !.view = IF driver.state = "abort" THEN driver.view ELSE @,
        !.pending = IF driver.state = "abortRest" THEN driver.pending ELSE @]
    ELSE [driver EXCEPT
        !.next = IF driver.state = "idle" THEN @ ELSE 0,
        !.chosen = IF driver.state \in Committing THEN @ ELSE {},
        !.view = IF driver.state \in {"lock", "read"} \/ ~driver.hasBegun THEN NoDecision ELSE @,
        !.pending = IF driver.state = "end" THEN @ ELSE {},
        !.then = IF driver.state \in Redoing \cup {"end", "clean", "abortLeftovers"} THEN @ ELSE "",
        !.locks = IF driver.state \in Committing THEN @ ELSE 0]

Init ==
    /\ txn = [t \in Transactions |-> "none"]
    /\ lock = 0
    /\ ledger = NoDecision
    /\ holders = <<>>
    /\ written = [c \in Chunks |-> [p \in Parts |-> 0]]
    /\ content = [r \in Runs |-> [b \in Batches |-> NoContent]]
    /\ offsetLog = [b \in Batches |-> NoContent]
    /\ commitLog = 0
    /\ run = [r \in Runs |-> Unborn]
    /\ budget = [expiries |-> ExpiriesMax, lockLosses |-> LockLossesMax, restores |-> RestoresMax]
    /\ decided = {}
    /\ logged = {}

(* Steps that some configuration has to reach: properties of what never happens would say nothing. Each is printed once. *)
Steps == <<
    "taken over", "lock lost", "carried out by a later begin", "refused", "fenced", "replay", "decision refused",
    "finish refused", "redo", "redo by another run", "redo refused", "aborted", "restored", "complete">>
ASSUME \A i \in 1..Len(Steps) : TLCSet(i, FALSE)
Mark(step) ==
    LET i == CHOOSE i \in 1..Len(Steps) : Steps[i] = step
    IN  IF TLCGet(i) THEN TRUE ELSE TLCSet(i, TRUE) /\ PrintT(<<"reached", step>>)

Become(r, changes) == run' = [run EXCEPT ![r] = Canonical(changes @@ @)]
Abort(transactions) ==
    txn' = [t \in Transactions |-> IF t \in transactions /\ txn[t] = "open" THEN "aborted" ELSE txn[t]]
Commit(transactions) ==
    txn' = [t \in Transactions |-> IF t \in transactions /\ txn[t] = "open" THEN "committed" ELSE txn[t]]
Unended(decision) == decision.transactions \ decision.redone
Wrote(interval, part) == [c \in Chunks |-> [p \in Parts |->
    IF p = part /\ Covers(interval, c) THEN written[c][p] + 1 ELSE written[c][p]]]

----------------------------------------------------------------------------
(* Spark *)

Start(r) ==
    /\ run[r].state = "unborn"
    /\ Cardinality({other \in Runs : run[other].state \notin {"unborn", "dead"}}) < AliveMax
    /\ \A earlier \in 1..(r - 1) : run[earlier].state # "unborn"
    /\ Become(r, [state |-> "idle", next |-> commitLog + 1])
    /\ UNCHANGED <<kafka, spark, budget, history>>

(* The first batch of a run is the one that is planned and not committed, if there is one: with the same rows. *)
Plan(r) ==
    LET n == run[r].next
        lo == IF n = 1 THEN 0 ELSE offsetLog[n - 1][2]
        Execute(interval) ==
            /\ content' = [content EXCEPT ![r][n] = interval]
            /\ Become(r, [state |-> "tasks", batch |-> n, mayReplay |-> FALSE, chosen |-> {}])
    IN  /\ run[r].state = "idle"
        /\ n \in Batches
        /\ \/ /\ offsetLog[n] # NoContent
              /\ run[r].mayReplay
              /\ Execute(offsetLog[n])
              /\ UNCHANGED offsetLog
           \/ /\ offsetLog[n] = NoContent
              /\ \E width \in 1..WidthMax :
                    /\ lo + width <= ChunksMax
                    /\ offsetLog' = [offsetLog EXCEPT ![n] = <<lo, lo + width>>]
                    /\ Execute(<<lo, lo + width>>)
           \/ /\ offsetLog[n] # NoContent
              /\ ~run[r].mayReplay
              /\ Become(r, [state |-> "dead"])
              /\ UNCHANGED <<content, offsetLog>>
        /\ UNCHANGED <<kafka, commitLog, budget, history>>

(* An attempt of a task has written its rows and left its transaction open. Late attempts are duplicates. *)
Attempt(r, t, a) ==
    LET transaction == [run |-> r, batch |-> run[r].batch, task |-> t, attempt |-> a]
    IN  /\ run[r].batch # 0
        /\ txn[transaction] = "none"
        /\ \A earlier \in 1..(a - 1) : txn[[transaction EXCEPT !.attempt = earlier]] # "none"
        /\ txn' = [txn EXCEPT ![transaction] = "open"]
        /\ UNCHANGED <<lock, ledger, holders, written, spark, run, budget, history>>

(* Spark passes one report for each task to the driver. *)
Report(r) ==
    /\ run[r].state = "tasks"
    /\ \E choice \in [Tasks -> Attempts] :
        LET chosen == {[run |-> r, batch |-> run[r].batch, task |-> t, attempt |-> choice[t]] : t \in Tasks}
        IN  /\ \A t \in chosen : txn[t] # "none"
            /\ Become(r, [state |-> IF run[r].hasBegun THEN "conflict" ELSE "lock", chosen |-> chosen, locks |-> 0])
    /\ UNCHANGED <<kafka, spark, budget, history>>

LogCommit(r) ==
    /\ run[r].state = "log"
    /\ IF commitLog = run[r].batch - 1
       THEN /\ commitLog' = run[r].batch
            /\ logged' = logged \cup {content[r][run[r].batch]}
            /\ IF content[r][run[r].batch][2] = ChunksMax THEN Mark("complete") ELSE TRUE
            /\ Become(r, [state |-> "idle", next |-> run[r].batch + 1])
       ELSE /\ Become(r, [state |-> "dead"])
            /\ UNCHANGED <<commitLog, logged>>
    /\ UNCHANGED <<kafka, content, offsetLog, budget, decided>>

----------------------------------------------------------------------------
(* The committer: begin *)

IsConflicting(r, decision) ==
    \/ decision.batch > run[r].batch
    \/ decision.batch = run[r].batch /\ decision.content # content[r][run[r].batch]
IsFenced(r, list) == r \in Members(list) /\ Last(list) # r

(* The commit fails, and Spark calls abort(), which reads the decisions. *)
OfRun(r, transactions) == {t \in transactions : t.run = r}
ToAbort(r) ==
    IF ledger.isFinished THEN [state |-> "abortRest", pending |-> OfRun(r, ledger.transactions)]
    ELSE [state |-> "abort", view |-> ledger]
GiveUp(r) == Become(r, ToAbort(r))

(* InitProducerId fences the process that had the lock before. Two drivers could take it from each other for ever. *)
Lock(r) ==
    /\ run[r].state = "lock"
    /\ IF run[r].locks > ReopensMax
       THEN /\ GiveUp(r)
            /\ UNCHANGED lock
       ELSE /\ Become(r, [state |-> "read", hasBegun |-> TRUE, locks |-> run[r].locks + 1])
            /\ lock' = r
    /\ UNCHANGED <<txn, ledger, holders, written, spark, budget, history>>

Read(r) ==
    /\ run[r].state = "read"
    /\ Become(r, [
        view |-> ledger,
        state |-> IF IsFenced(r, holders) THEN "yield"
                  ELSE IF Last(holders) = r \/ IsConflicting(r, ledger) THEN "carry"
                  ELSE "takeOver"])
    /\ UNCHANGED <<kafka, spark, budget, history>>

TakeOver(r) ==
    /\ run[r].state = "takeOver"
    /\ IF lock = r
       THEN /\ holders' = Append(holders, r)
            /\ Become(r, [state |-> "carry", hasTakenOver |-> TRUE])
            /\ IF holders # <<>> THEN Mark("taken over") ELSE TRUE
       ELSE /\ Become(r, [state |-> "lock"])
            /\ Mark("lock lost")
            /\ UNCHANGED holders
    /\ UNCHANGED <<txn, lock, ledger, written, spark, budget, decided, logged>>

CarryOut(r) ==
    /\ run[r].state = "carry"
    /\ IF run[r].view.isFinished
       THEN /\ Become(r, [state |-> "conflict"])
       ELSE /\ Become(r, [state |-> "end", pending |-> Unended(run[r].view), then |-> "conflict"])
            /\ Mark("carried out by a later begin")
    /\ UNCHANGED <<kafka, spark, budget, decided, logged>>

RefuseConflict(r) ==
    /\ run[r].state = "conflict"
    /\ IF IsConflicting(r, run[r].view)
       THEN /\ Abort(run[r].chosen \ run[r].view.transactions)
            /\ Become(r, [state |-> "abortRead"])
            /\ Mark("refused")
       ELSE /\ Become(r, [state |-> IF run[r].isClean THEN "check" ELSE "clean", then |-> "check"])
            /\ UNCHANGED txn
    /\ UNCHANGED <<lock, ledger, holders, written, spark, budget, decided, logged>>

(* Leftovers are listed first, and aborted in another step. If that fails, the driver continues. *)
Leftovers(r) == {t \in Transactions : txn[t] = "open"
    /\ (run[r].hasTakenOver \/ t.run \in {r} \cup Before(holders, r))} \ run[r].chosen
ListLeftovers(r) ==
    /\ run[r].state = "clean"
    /\ \/ Become(r, [state |-> "abortLeftovers", leftovers |-> Leftovers(r)])
       \/ Become(r, [state |-> run[r].then, isClean |-> TRUE])
    /\ UNCHANGED <<kafka, spark, budget, history>>

AbortLeftovers(r) ==
    /\ run[r].state = "abortLeftovers"
    /\ Abort(run[r].leftovers)
    /\ Become(r, [state |-> run[r].then, leftovers |-> {}, isClean |-> TRUE, hasTakenOver |-> FALSE])
    /\ UNCHANGED <<lock, ledger, holders, written, spark, budget, history>>

(* A fenced run ends its transactions as the decisions say. *)
Yield(r) ==
    /\ run[r].state = "yield"
    /\ IF run[r].view.run = r /\ run[r].view.batch = run[r].batch
       THEN Commit(Unended(run[r].view))
       ELSE Abort(run[r].chosen \ run[r].view.transactions)
    /\ Become(r, [state |-> "abortRead"])
    /\ Mark("fenced")
    /\ UNCHANGED <<lock, ledger, holders, written, spark, budget, decided, logged>>

----------------------------------------------------------------------------
(* The committer: check, decide, end, finish *)

Check(r) ==
    /\ run[r].state = "check"
    /\ IF run[r].view.batch = run[r].batch
       THEN /\ Abort(run[r].chosen \ run[r].view.transactions)
            /\ Become(r, [state |-> "log"])
            /\ Mark("replay")
       ELSE /\ Become(r,
                IF \A t \in run[r].chosen : txn[t] = "open" THEN [state |-> "decide"]
                ELSE IF IsFenced(r, holders) THEN [state |-> "yield", view |-> ledger]
                ELSE ToAbort(r))
            /\ UNCHANGED txn
    /\ UNCHANGED <<lock, ledger, holders, written, spark, budget, decided, logged>>

(* One transaction of the sink id: inline rows and the decision. *)
Decide(r) ==
    LET interval == content[r][run[r].batch]
        decision == [
            batch |-> run[r].batch, content |-> interval, run |-> r, transactions |-> run[r].chosen, redone |-> {},
            isFinished |-> FALSE]
    IN  /\ run[r].state = "decide"
        /\ IF lock = r
           THEN /\ ledger' = decision
                /\ written' = Wrote(interval, INLINE)
                /\ decided' = decided \cup {[batch |-> decision.batch, content |-> interval, run |-> r]}
                /\ Become(r, [state |-> "end", view |-> decision, pending |-> run[r].chosen, then |-> "clean"])
           ELSE /\ Become(r, [state |-> "lock"])
                /\ Mark("decision refused")
                /\ UNCHANGED <<ledger, written, decided>>
        /\ UNCHANGED <<txn, lock, holders, spark, budget, logged>>

(* EndTxn(commit) succeeds again for a committed transaction. If it is refused, the log shows the outcome. *)
End(r) ==
    /\ run[r].state = "end"
    /\ \E t \in run[r].pending :
        \/ /\ txn[t] \in {"open", "committed"}
           /\ Commit({t})
           /\ Become(r, [pending |-> run[r].pending \ {t}])
        \/ /\ txn[t] = "aborted"
           /\ Become(r, [state |-> "redoLock", expired |-> {t}])
           /\ UNCHANGED txn
    /\ UNCHANGED <<lock, ledger, holders, written, spark, budget, history>>

(* A decision is carried out in a begin, or after it is made: then duplicate attempts of tasks are aborted. *)
AfterFinish(r) == IF run[r].then = "conflict" THEN [state |-> "conflict"] ELSE [state |-> "clean", then |-> "log"]

Finish(r) ==
    /\ run[r].state = "end"
    /\ run[r].pending = {}
    /\ IF lock = r
       THEN /\ ledger' = [run[r].view EXCEPT !.isFinished = TRUE]
            /\ Become(r, AfterFinish(r) @@ [view |-> [run[r].view EXCEPT !.isFinished = TRUE]])
       ELSE /\ Become(r, [state |-> "lock"])
            /\ Mark("finish refused")
            /\ UNCHANGED ledger
    /\ UNCHANGED <<txn, lock, holders, written, spark, budget, decided, logged>>

----------------------------------------------------------------------------
(* The committer: redo of a decided transaction that has expired *)

RedoLock(r) ==
    /\ run[r].state = "redoLock"
    /\ lock' = r
    /\ Become(r, [state |-> "redoRead"])
    /\ UNCHANGED <<txn, ledger, holders, written, spark, budget, history>>

RedoRead(r) ==
    /\ run[r].state = "redoRead"
    /\ Become(r,
        IF IsFenced(r, holders) THEN [state |-> "yield", view |-> ledger]
        ELSE IF ledger.isFinished \/ ledger.batch > run[r].view.batch
            THEN AfterFinish(r) @@ [view |-> ledger, expired |-> {}]
        ELSE IF run[r].expired \subseteq ledger.redone
            THEN [state |-> "end", view |-> ledger, pending |-> Unended(ledger), expired |-> {}]
        ELSE [state |-> "redoWrite", view |-> ledger])
    /\ UNCHANGED <<kafka, spark, budget, history>>

(* One transaction of the sink id: the rows, read from the log, and the decision that they are written. *)
RedoWrite(r) ==
    LET transaction == CHOOSE t \in run[r].expired : TRUE
        decision == [run[r].view EXCEPT !.redone = @ \cup {transaction}]
    IN  /\ run[r].state = "redoWrite"
        /\ IF lock = r
           THEN /\ ledger' = decision
                /\ written' = Wrote(ContentOf(transaction), transaction.task)
                /\ Become(r, [state |-> "end", view |-> decision, pending |-> Unended(decision), expired |-> {}])
                /\ IF transaction.run = r THEN Mark("redo") ELSE Mark("redo by another run")
           ELSE /\ Become(r, [state |-> "lock", expired |-> {}])
                /\ Mark("redo refused")
                /\ UNCHANGED <<ledger, written>>
        /\ UNCHANGED <<txn, lock, holders, spark, budget, decided, logged>>

----------------------------------------------------------------------------
(* Spark's abort() after a failed commit *)

AbortRead(r) ==
    /\ run[r].state = "abortRead"
    /\ GiveUp(r)
    /\ UNCHANGED <<kafka, spark, budget, history>>

AbortCommit(r) ==
    /\ run[r].state = "abort"
    /\ Commit(Unended(run[r].view))
    /\ Become(r, [state |-> "abortRest", pending |-> OfRun(r, run[r].view.transactions)])
    /\ UNCHANGED <<lock, ledger, holders, written, spark, budget, history>>

AbortRest(r) ==
    /\ run[r].state = "abortRest"
    /\ Abort(OfRun(r, Transactions) \ run[r].pending)
    /\ Become(r, [state |-> "dead"])
    /\ Mark("aborted")
    /\ UNCHANGED <<lock, ledger, holders, written, spark, budget, decided, logged>>

----------------------------------------------------------------------------
(* Faults *)

Crash(r) ==
    /\ MayDie
    /\ r # RunsMax
    /\ run[r].state \notin {"dead", "unborn"}
    /\ Become(r, [state |-> "dead"])
    /\ UNCHANGED <<kafka, spark, budget, history>>

(* The commit raises an error, for example because brokers do not respond; Spark calls abort(). *)
FailCommit(r) ==
    /\ r # RunsMax
    /\ run[r].state \in Committing
    /\ GiveUp(r)
    /\ UNCHANGED <<kafka, spark, budget, history>>

Expire(t) ==
    /\ budget.expiries > 0
    /\ txn[t] = "open"
    /\ txn' = [txn EXCEPT ![t] = "aborted"]
    /\ budget' = [budget EXCEPT !.expiries = @ - 1]
    /\ UNCHANGED <<lock, ledger, holders, written, spark, run, history>>

(* Another process of a run has taken the lock, and perhaps the sink for this run, or one that died before that. *)
LoseLock ==
    /\ budget.lockLosses > 0
    /\ lock' = 0
    /\ \/ UNCHANGED holders
       \/ \E r \in Runs \ Members(holders) :
            /\ run[r].state \in {"lock", "read", "takeOver"}
            /\ holders' = Append(holders, r)
    /\ budget' = [budget EXCEPT !.lockLosses = @ - 1]
    /\ UNCHANGED <<txn, ledger, written, spark, run, history>>

(* Another process of the run commits the next batch: it has read nothing yet. *)
ChangeProcess(r) ==
    /\ budget.lockLosses > 0
    /\ run[r].state = "tasks"
    /\ run[r].hasBegun
    /\ Become(r, [hasBegun |-> FALSE, isClean |-> FALSE, hasTakenOver |-> FALSE])
    /\ budget' = [budget EXCEPT !.lockLosses = @ - 1]
    /\ UNCHANGED <<kafka, spark, history>>

(* After a redo in a begin, the process begins again: it opens the ledger with a short transaction time-out. *)
BeginAgain(r) ==
    /\ budget.lockLosses > 0
    /\ run[r].state \in {"clean", "check"}
    /\ run[r].then # "log"
    /\ Become(r, [state |-> "lock"])
    /\ budget' = [budget EXCEPT !.lockLosses = @ - 1]
    /\ UNCHANGED <<kafka, spark, history>>

(* All drivers have ended, and the checkpoint is replaced by an older copy. *)
Restore ==
    /\ budget.restores > 0
    /\ \A r \in Runs : run[r].state \in {"dead", "unborn"}
    /\ run[RunsMax].state = "unborn"
    /\ \E b \in 0..commitLog :
        /\ commitLog' = b
        /\ offsetLog' = [n \in Batches |-> IF n <= b THEN offsetLog[n] ELSE NoContent]
    /\ budget' = [budget EXCEPT !.restores = @ - 1]
    /\ Mark("restored")
    /\ UNCHANGED <<kafka, content, run, decided, logged>>

----------------------------------------------------------------------------

Driver(r) ==
    \/ Start(r) \/ Plan(r) \/ Report(r) \/ LogCommit(r)
    \/ Lock(r) \/ Read(r) \/ TakeOver(r) \/ CarryOut(r) \/ RefuseConflict(r) \/ ListLeftovers(r) \/ AbortLeftovers(r)
    \/ Yield(r) \/ Check(r) \/ Decide(r) \/ End(r) \/ Finish(r)
    \/ RedoLock(r) \/ RedoRead(r) \/ RedoWrite(r) \/ AbortRead(r) \/ AbortCommit(r) \/ AbortRest(r)
Executors(r) == \E t \in Tasks, a \in Attempts : Attempt(r, t, a)
Faults ==
    \/ \E r \in Runs : Crash(r) \/ FailCommit(r) \/ ChangeProcess(r) \/ BeginAgain(r)
    \/ \E t \in Transactions : Expire(t)
    \/ LoseLock
    \/ Restore

(* The next step of the driver reads and writes nothing that others see, so when it is taken makes no difference. *)
IsInternal(r) ==
    \/ run[r].state = "carry"
    \/ run[r].state = "conflict" /\ ~IsConflicting(r, run[r].view)

TasksAreAlike == Permutations(Tasks)

Next ==
    IF \E r \in Runs : IsInternal(r)
    THEN \E r \in Runs : IsInternal(r) /\ Driver(r)
    ELSE (\E r \in Runs : Driver(r) \/ Executors(r)) \/ Faults
Spec == Init /\ [][Next]_vars
FairSpec == Spec /\ \A r \in Runs : WF_vars(Driver(r)) /\ WF_vars(Executors(r))

----------------------------------------------------------------------------
(* Safety *)

IsWhole(interval) == \A c \in Chunks, p \in Parts : Covers(interval, c) => Seen(c, p) = 1

(* No row is seen twice. *)
NoDuplicates == \A c \in Chunks, p \in Parts : Seen(c, p) <= 1

(* No row of a batch is seen unless the batch is decided. *)
OnlyDecided == \A c \in Chunks, p \in Parts : Seen(c, p) > 0 => \E d \in decided : Covers(d.content, c)

(* Every row of a batch whose commit has returned is seen. *)
NoLoss == \A interval \in logged : IsWhole(interval)

(* A finished decision is carried out whole. *)
FinishedIsWhole == ledger.isFinished => IsWhole(ledger.content)

(* Batches become visible in order: nothing of a batch is seen before all of the earlier batches. *)
InSameBatch(c, d) == \E decision \in decided : Covers(decision.content, c) /\ Covers(decision.content, d)
InOrder == \A c, d \in Chunks : c < d /\ ~InSameBatch(c, d) /\ (\E p \in Parts : Seen(d, p) > 0)
    => \A p \in Parts : Seen(c, p) = 1

(* A batch number is decided once. *)
DecidedOnce == \A d, e \in decided : d.batch = e.batch => d = e

(* The ledger never goes back, and a batch is decided only when the one before is finished. *)
LedgerAdvances == [][
    /\ ledger'.batch >= ledger.batch
    /\ ledger'.batch > ledger.batch => ledger.isFinished
    /\ ledger'.batch = ledger.batch => ledger.transactions = ledger'.transactions /\ ledger.redone \subseteq ledger'.redone
    ]_ledger

----------------------------------------------------------------------------
(* Liveness: while some run can continue, every decided batch is finished, and every chunk is delivered. *)

SomeRunContinues == \E r \in Runs : run[r].state # "dead"
DecidedIsFinished == [](~ledger.isFinished => <>(ledger.isFinished \/ ~SomeRunContinues))
EverythingArrives == <>(~SomeRunContinues \/ \A c \in Chunks, p \in Parts : Seen(c, p) = 1)

===========================================================================
