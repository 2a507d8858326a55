package mesh_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// hashChain verifies one hash chain in a gateway's journal. It reads the files itself and does not use package journal.
type hashChain struct {
	dir, name string

	segment         string // the segment being read
	offset          int    // offset in segment of the first unread line
	incompleteBytes int    // number of bytes after the last complete line
	head            string // hash of the last line

	// prevs contains, for each record, the hash of the preceding record. The index in prevs is the record's sequence
	// number minus 1.
	prevs []string
	// intents and outcomes contain the number of records by trace. decisions contains the decision ids of refusals.
	intents, outcomes map[string]int
	decisions         map[string]bool
	recoveries        int
	// orphans is the number of intents without an outcome.
	orphans int
	// open contains the approved calls without a final record, by decision id.
	open map[string]openCall
}

// openCall is the state of an approved call: the kind of its newest record (claim, intent or outcome), and its
// approval's id.
type openCall struct{ kind, approval string }

func newHashChain(dir, name string) *hashChain {
	return &hashChain{
		dir: dir, name: name, head: strings.Repeat("0", 64),
		intents: make(map[string]int), outcomes: make(map[string]int), decisions: make(map[string]bool), open: make(map[string]openCall),
	}
}

func (c *hashChain) recordCount() int { return len(c.prevs) }

// readNewRecords reads the records that were written since the previous call to readNewRecords. The test fails at the
// first line that does not continue the chain. An incomplete last line is left for the next call.
func (c *hashChain) readNewRecords(t *testing.T) {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(c.dir, c.name+"-*.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range segments { // sorted by number, because the names have equal length
		if path < c.segment {
			continue
		}
		if path > c.segment {
			c.beginSegment(t, path)
		}
		c.readSegment(t)
	}
}

func (c *hashChain) beginSegment(t *testing.T, path string) {
	t.Helper()
	if want := fmt.Sprintf("%s-%020d.jsonl", c.name, len(c.prevs)+1); filepath.Base(path) != want {
		t.Fatalf("the next segment is %s, want %s", filepath.Base(path), want)
	}
	c.segment, c.offset, c.incompleteBytes = path, 0, 0
}

func (c *hashChain) readSegment(t *testing.T) {
	t.Helper()
	raw, err := os.ReadFile(c.segment)
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) < c.offset {
		t.Fatalf("%s has %d bytes, but %d bytes of complete lines were read before: records were lost", c.segment, len(raw), c.offset)
	}
	for {
		line, _, whole := bytes.Cut(raw[c.offset:], []byte("\n"))
		if !whole {
			c.incompleteBytes = len(line)
			return
		}
		c.verifyRecord(t, line)
		c.offset += len(line) + 1
	}
}

// verifyRecord verifies and counts one record.
func (c *hashChain) verifyRecord(t *testing.T, line []byte) {
	t.Helper()
	var r struct {
		Seq        int
		Prev, Kind string
		TraceID    string `json:"trace_id"`
		DecisionID string `json:"decision_id"`
		ApprovalID string `json:"approval_id"`
	}
	if err := json.Unmarshal(line, &r); err != nil {
		t.Fatalf("%s: record %d is not JSON: %v: %.300s", c.name, len(c.prevs)+1, err, line)
	}
	if r.Seq != len(c.prevs)+1 || r.Prev != c.head {
		t.Fatalf("%s: found record %d with the previous hash %.12s…, want record %d with %.12s…", c.name, r.Seq, r.Prev, len(c.prevs)+1, c.head)
	}
	sum := sha256.Sum256(line)
	c.head, c.prevs = hex.EncodeToString(sum[:]), append(c.prevs, r.Prev)
	if r.ApprovalID != "" && c.name == "calls" {
		c.open[r.DecisionID] = openCall{kind: r.Kind, approval: r.ApprovalID}
	}
	switch r.Kind {
	case "settled":
		delete(c.open, r.DecisionID)
	case "intent":
		c.intents[r.TraceID]++
	case "outcome":
		c.outcomes[r.TraceID]++
	case "refusal":
		c.decisions[r.DecisionID] = true
	case "recovery":
		c.recoveries++
	}
}
