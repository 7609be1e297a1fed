"""The simulator's whole state in three flat arrays, and the names of their places.

`m` (int32) holds records of requests, lists and blocks; `c` (int64) settings, counters, sums and where each list of `m`
begins (`*_AT`); `f` (float64) times. Few arguments keep the compiled code fast to build and to run: a tuple of forty
arrays took ten times longer for both. Requests are numbered in order of arrival. The state survives between calls of
the compiled loop, which returns when it needs more room or more requests.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

# --- m[i * RQ + ...]: request i ---------------------------------------------------------------------------------------
PROMPT: Final = 0
#: tokens after which it ends, and the engine's limit (a request known to reach its limit is not scheduled once more)
CAP: Final = 1
LIMIT: Final = 2
#: the client leaves after reading this many tokens; 0: never
CANCEL: Final = 3
PRIORITY: Final = 4
#: prompt and delivered tokens; those with KV; those in flight (asynchronous scheduling)
KNOWN: Final = 5
COMPUTED: Final = 6
IN_FLIGHT: Final = 7
STATUS: Final = 8
#: blocks held; of them findable by hash; row of the block table (-1: none); blocks the row remembers from before
BLOCKS: Final = 9
HASHED: Final = 10
ROW: Final = 11
REMEMBERED: Final = 12
#: tokens known at admission: below is prefill; most tokens ever computed: below is recomputation
PREFILL_UNTIL: Final = 13
HIGH_WATER: Final = 14
#: tokens in flight when it was preempted: they still arrive
STALE: Final = 15

#: CONTENT of a block with text that only one request can find
OWN: Final = -2

# --- STATUS -----------------------------------------------------------------------------------------------------------
FUTURE: Final = 0
WAITING: Final = 1
PREEMPTED: Final = 2
RUNNING: Final = 3
DONE: Final = 4

#: what became of it; GONE: 1 when its client left
TOKENS: Final = 16
PREEMPTIONS: Final = 17
CACHED: Final = 18
RECOMPUTED: Final = 19
ENDING: Final = 20
GONE: Final = 21
#: its shared contents: so many numbers from PREFIX_IDS_AT + start
PREFIX_COUNT: Final = 22
PREFIX_START: Final = 23
#: blocks in the CPU's memory, under swapping
SWAPPED: Final = 24
#: number of its last admission
ORDER: Final = 25
#: coasting: tick from which on, 0: it does not; tick at which it ends or its client leaves; next tick with something to
#: do, and its neighbours in that tick's list (-1: none)
COASTING: Final = 26
ENDS: Final = 27
DUE: Final = 28
DUE_NEXT: Final = 29
DUE_PREVIOUS: Final = 30
#: where the model stops by itself
OUTPUT: Final = 31
RQ: Final = 32

# --- f[i * TQ + ...], seconds; -1: never ------------------------------------------------------------------------------
SCHEDULED: Final = 0
FIRST: Final = 1
LAST: Final = 2
END: Final = 3
ARRIVAL: Final = 4
TQ: Final = 5

# --- endings ----------------------------------------------------------------------------------------------------------
STUCK: Final = 0
STOP: Final = 1
LENGTH: Final = 2
CANCELLED: Final = 3
GAVE_UP: Final = 4
#: turned away by a queue limit; too long for max_model_len
REJECTED: Final = 5
REFUSED: Final = 6
ENDINGS: Final = ("stuck", "stop", "length", "cancelled", "gave_up", "rejected", "refused")

# --- c: settings ------------------------------------------------------------------------------------------------------
ACTIVE_LIMIT: Final = 0
BUDGET: Final = 1
BLOCK_SIZE: Final = 2
USABLE: Final = 3
WATERMARK: Final = 4
CACHING: Final = 5
FULL_PROMPT: Final = 6
CHUNKED: Final = 7
LONG_PREFILL: Final = 8
BY_PRIORITY: Final = 9
ASYNC: Final = 10
RESERVE: Final = 11
QUEUE_REQUESTS: Final = 12
QUEUE_TOKENS: Final = 13
FREE_TOKENS: Final = 14
ADAPTIVE: Final = 15
SETTINGS: Final = 16
#: whether preempted requests are swapped to the CPU's memory; free blocks there
SWAPPING: Final = 107
CPU_FREE: Final = 108

# --- c: counters and pointers -----------------------------------------------------------------------------------------
FREE: Final = 42
N_RUNNING: Final = 16
N_STACK: Final = 17
Q_HEAD: Final = 18
Q_TAIL: Final = 19
N_WAITING: Final = 20
NEXT_EVENT: Final = 21
PENDING_HEAD: Final = 22
PENDING_TAIL: Final = 23
N_FREE_ROWS: Final = 24
SLOT: Final = 25
IN_FLIGHT_BATCH: Final = 26
QUEUED_TOKENS: Final = 27
STEPS: Final = 28
PREFILL_TOKENS: Final = 29
RECOMPUTED_TOKENS: Final = 30
GENERATED: Final = 31
N_PREEMPTIONS: Final = 32
QUERIES: Final = 33
HITS: Final = 34
PEAK_RUNNING: Final = 35
PEAK_USED: Final = 36
N_TRACE: Final = 37
PREEMPTED_NOW: Final = 38
N_BATCH: Final = 39
RESERVED_UNUSED: Final = 40
#: steps since the last token: a livelock ends the run
QUIET_STEPS: Final = 41
#: how many get a token from each of two batches
READY_COUNT: Final = 54
N_BLOCKS: Final = 56
N_REQUESTS: Final = 57
N_EVENTS: Final = 58
WIDTH: Final = 59
TRACE_ROOM: Final = 60
MARKS_WANTED: Final = 61
N_ROWS: Final = 88

# --- c: where the lists of m begin ------------------------------------------------------------------------------------
#: in order of admission; preempted requests, the last one first to return (a heap of all waiting under priority)
RUNNING_AT: Final = 62
STACK_AT: Final = 63
#: the batch being built, its token counts; who gets a token from each of two batches
BATCH_AT: Final = 64
COUNT_AT: Final = 65
READY_AT: Final = 66
#: of blocks: free list (its head is entry N_BLOCKS), references; shared content, -1: none, below: OWN - the request
#: whose own it is; next block of the same content, -1: none. Separate lists: neighbours are taken and freed together
FOLLOWING_AT: Final = 67
PRECEDING_AT: Final = 68
REFERENCES_AT: Final = 69
CONTENT_AT: Final = 70
TWIN_AT: Final = 71
#: oldest block of a content; all requests' shared contents
BLOCK_OF_AT: Final = 74
PREFIX_IDS_AT: Final = 75
#: WIDTH blocks a row; rows nobody has; what find_prefix found
TABLE_AT: Final = 76
FREE_ROWS_AT: Final = 77
FOUND_AT: Final = 78
#: clients that leave at a time: request * 2, + 1 where only a missing first token drives them away
EVENTS_AT: Final = 79
#: aborts on their way to the engine
PENDING_AT: Final = 80
#: rows (kind, step, request, value)
TRACE_AT: Final = 81

# --- c: where the lists of f begin ------------------------------------------------------------------------------------
CLOCKS_AT: Final = 82
COST_AT: Final = 83
DONE_AT: Final = 84
EVENT_TIMES_AT: Final = 85
PENDING_TIMES_AT: Final = 86
#: (request, 3, WORK_COLUMNS): work done up to admission, first and last token
MARKS_AT: Final = 87

# --- c: between calls -------------------------------------------------------------------------------------------------
#: 1 between deciding on a batch and computing; the slot computed next, -1: none; bits of the kinds to trace
DECIDED: Final = 89
FLYING: Final = 90
TRACE_MASK: Final = 91
N_PREFIX_IDS: Final = 92
#: work of two batches, WORK_COLUMNS each
WORK_AT: Final = 126

# --- c: coasting ------------------------------------------------------------------------------------------------------
#: whether it may be used; batches computed, from 1; first tick in which it may begin
COASTS: Final = 109
TICK: Final = 110
COAST_FROM: Final = 111
N_COASTING: Final = 112
#: KV tokens that a decode of all coasters reads
COAST_KV: Final = 113
#: coasters that get a token from each of two batches
IMPLICIT: Final = 114
#: running requests that do not coast, in order of admission; -1: to be listed
N_EXPLICIT: Final = 116
EXPLICIT_AT: Final = 117
#: coasters of each of the next BLOCK_SIZE + 1 ticks (first of the list), and how many
DUE_AT: Final = 118
DUE_COUNT_AT: Final = 119
N_ADMISSIONS: Final = 120

#: blocks swapped in and out, not yet charged to a step; swapped out in all
SWAPPED_NOW: Final = 121
SWAPPED_OUT: Final = 122
N_SAMPLES: Final = 123
SAMPLE_ROOM: Final = 124
SAMPLES_AT: Final = 125
C_SIZE: Final = 142

# --- f[c[CLOCKS_AT] + ...], seconds -----------------------------------------------------------------------------------
NOW: Final = 0
BUSY: Final = 1
#: integrals over time: used blocks, blocks held beyond need, running requests
USED_SECONDS: Final = 2
UNUSED_SECONDS: Final = 3
RUNNING_SECONDS: Final = 4
ABORT_DELAY: Final = 5
#: arrivals are known up to here; inf: all of them
HORIZON: Final = 6
#: when the last tokens were handed out; a sample every so often, and the next one
DELIVERED: Final = 7
SAMPLE_EVERY: Final = 8
NEXT_SAMPLE: Final = 9
CLOCKS: Final = 10

#: columns of a sample: seconds, running, waiting, used blocks, preemptions and generated tokens so far
SAMPLE_COLUMNS: Final = 6

# --- what a batch computes; each column has its coefficient at COST_AT ------------------------------------------------
#: 1; prefill tokens; twice the (query, key) pairs of prefill; decode sequences; KV tokens read by decode; all tokens
#: beyond FREE_TOKENS; 1 where any prefill token is computed; KV blocks swapped
W_STEPS: Final = 0
W_PREFILL: Final = 1
W_PAIRS: Final = 2
W_DECODE: Final = 3
W_KV: Final = 4
W_OVER: Final = 5
W_PREFILL_STEP: Final = 6
W_SWAPPED: Final = 7
WORK_COLUMNS: Final = 8

# --- kinds in the trace -----------------------------------------------------------------------------------------------
T_SCHEDULED: Final = 0
T_PREEMPTED: Final = 1
T_FINISHED: Final = 2
T_ABORTED: Final = 3
#: value: cached tokens
T_ADMITTED: Final = 4
T_TOKEN: Final = 5
TRACE_KINDS: Final = ("scheduled", "preempted", "finished", "aborted", "admitted", "token")

# --- what the compiled loop returns with ------------------------------------------------------------------------------
FINISHED: Final = 0
MORE_ROWS: Final = 1
MORE_TRACE: Final = 2
MORE_REQUESTS: Final = 3
MORE_SAMPLES: Final = 4


class State(NamedTuple):
    m: I32
    c: I64
    f: F64
