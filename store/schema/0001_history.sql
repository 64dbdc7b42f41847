-- The canonical history (SPEC 1, 3 and 4). Bytes are stored once, nodes are shared, the log only grows.

CREATE TABLE tenant (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE
) STRICT;

-- A process that has the store open. A request is in flight only as long as its worker's row exists.
CREATE TABLE worker (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    host TEXT NOT NULL,
    pid INTEGER NOT NULL,
    birth TEXT NOT NULL,        -- tells apart two processes that got the same pid, '' where unknown
    started REAL NOT NULL
) STRICT;

-- A byte string, once per tenant and content (R4.2).
CREATE TABLE body (
    id INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL REFERENCES tenant (id),
    sha256 BLOB NOT NULL,
    size INTEGER NOT NULL,      -- of the original bytes
    codec INTEGER NOT NULL,     -- store.codec: 0 as it is, 1 zstd
    data BLOB NOT NULL,
    UNIQUE (tenant, sha256)
) STRICT;

CREATE TABLE session (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant INTEGER NOT NULL REFERENCES tenant (id),
    name TEXT NOT NULL,
    created_at REAL NOT NULL,
    last_request_at REAL NOT NULL,
    next_n INTEGER NOT NULL DEFAULT 1,
    messages INTEGER NOT NULL DEFAULT 0,
    deleting INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, name)
) STRICT;

-- A message at its place. The name chains bytes, the digest chains meaning (R3.3); both sets are closed under parents.
CREATE TABLE node (
    id INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL REFERENCES tenant (id),
    parent INTEGER REFERENCES node (id),    -- NULL: the first message after the preamble
    body INTEGER NOT NULL REFERENCES body (id),
    seq INTEGER NOT NULL,
    name BLOB NOT NULL,
    digest BLOB NOT NULL,
    role TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    session INTEGER NOT NULL                -- the session that sent it first; that one may be gone
) STRICT;
-- Names have no index of their own: equal names have equal digests, so that few rows are left to compare. Each index
-- over hashes costs a page of its own for each message.
CREATE INDEX node_by_digest ON node (tenant, digest);
CREATE INDEX node_by_parent ON node (parent);
CREATE INDEX node_by_body ON node (body);

-- A path in a session, by its newest message. Every node in use is an ancestor of some branch's head.
CREATE TABLE branch (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session INTEGER NOT NULL REFERENCES session (id),
    tenant INTEGER NOT NULL,
    head INTEGER REFERENCES node (id),      -- NULL: a request without history
    head_digest BLOB NOT NULL,
    head_seq INTEGER NOT NULL,
    superseded INTEGER NOT NULL DEFAULT 0,  -- 1: the branch went on with other bytes of equal meaning
    request_n INTEGER NOT NULL,             -- the newest request
    worker INTEGER,                         -- who has it in flight; NULL: it has ended
    delivered INTEGER NOT NULL DEFAULT 0,   -- 1: it has ended with a whole answer
    replies TEXT NOT NULL DEFAULT '[]',     -- what an echo of an answer to the head is recognised by (R3.7)
    reply_loose BLOB,                       -- the loose key of the newest of them
    preamble BLOB NOT NULL,                 -- SHA-256 of the newest request's preamble messages, joined
    frame BLOB NOT NULL,                    -- SHA-256 of the newest request's frame
    updated_at REAL NOT NULL
) STRICT;
-- Tips are found by their node and not by its digest: what was written last then lies together.
CREATE INDEX branch_by_head ON branch (head, reply_loose);
CREATE INDEX branch_by_session ON branch (session);

-- `node` is no foreign key: it would need an index over the largest table, and a node that a log speaks of is always
-- an ancestor of a head of the same session.
CREATE TABLE log (
    session INTEGER NOT NULL REFERENCES session (id),
    n INTEGER NOT NULL,
    kind TEXT NOT NULL,
    at REAL NOT NULL,
    node INTEGER,
    data TEXT NOT NULL,
    PRIMARY KEY (session, n)
) STRICT, WITHOUT ROWID;
CREATE INDEX log_by_covered_node ON log (node) WHERE kind = 'compaction_completed';

-- The bodies that a session's log speaks of: preambles, frames, replies. A session's are found by the names in its log,
-- so `session` has no index, and is no foreign key, which would need one.
CREATE TABLE session_body (
    session INTEGER NOT NULL,
    body INTEGER NOT NULL REFERENCES body (id),
    PRIMARY KEY (body, session)
) STRICT, WITHOUT ROWID;

-- Fast rows for what the log's `compaction_completed` entries say.
CREATE TABLE checkpoint (
    id INTEGER PRIMARY KEY,
    tenant INTEGER NOT NULL REFERENCES tenant (id),
    source_digest BLOB NOT NULL,
    through_seq INTEGER NOT NULL,
    checkpoint_id TEXT NOT NULL,
    created_at TEXT NOT NULL,
    data TEXT NOT NULL,
    UNIQUE (tenant, checkpoint_id)
) STRICT;
CREATE INDEX checkpoint_by_digest ON checkpoint (tenant, source_digest);

-- What a route accepted on a branch (R10.5).
CREATE TABLE boundary (
    branch INTEGER NOT NULL REFERENCES branch (id),
    route TEXT NOT NULL,
    tenant INTEGER NOT NULL,
    digest BLOB NOT NULL,
    through_seq INTEGER NOT NULL,
    checkpoint_id TEXT,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    payload_bytes INTEGER NOT NULL,
    PRIMARY KEY (branch, route)
) STRICT, WITHOUT ROWID;
-- Without an index by digest: it would be written with each answer, and is read only when a summary overflows.

CREATE TABLE route (
    name TEXT PRIMARY KEY,
    data TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE usage (
    tenant INTEGER NOT NULL REFERENCES tenant (id),
    day TEXT NOT NULL,
    route TEXT NOT NULL,
    kind TEXT NOT NULL,
    answers INTEGER NOT NULL,
    prompt INTEGER NOT NULL,
    completion INTEGER NOT NULL,
    cached INTEGER NOT NULL,
    reasoning INTEGER NOT NULL,
    PRIMARY KEY (tenant, day, route, kind)
) STRICT, WITHOUT ROWID;

-- R4.1, R4.3: what is written stays as it is; only the delete of a whole session removes.
CREATE TRIGGER log_never_changes BEFORE UPDATE ON log BEGIN
    SELECT raise(ABORT, 'the log is append-only');
END;
CREATE TRIGGER log_is_deleted_whole BEFORE DELETE ON log
WHEN NOT EXISTS (SELECT 1 FROM session WHERE id = OLD.session AND deleting = 1) BEGIN
    SELECT raise(ABORT, 'the log is append-only');
END;
CREATE TRIGGER node_never_changes BEFORE UPDATE ON node BEGIN
    SELECT raise(ABORT, 'a node never changes');
END;
CREATE TRIGGER body_never_changes BEFORE UPDATE ON body BEGIN
    SELECT raise(ABORT, 'a body never changes');
END;
