package journal

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-mesh/sluice/services/internal/gosched"
)

// Filter reports whether a record is wanted. It must neither retain nor modify the record. A nil Filter accepts every
// record.
type Filter func(*Record) bool

func (f Filter) accepts(rec *Record) bool { return f == nil || f(rec) }

// Tail returns the newest records that filter accepts, at most n from both chains together. They are ordered by the
// time at which they were written, oldest first. If filter accepts few records, Tail may read the whole journal. It
// stops when ctx is done.
func (j *Journal) Tail(ctx context.Context, n int, filter Filter) ([]Record, error) {
	return newest(ctx, j.views(), n, filter)
}

type view struct {
	chain    *chain
	segments []segment
}

// lastSeq returns the sequence number of the newest record, or 0 if there is none.
func (v view) lastSeq() int64 {
	if len(v.segments) == 0 {
		return 0
	}
	return v.segments[len(v.segments)-1].last
}

func (j *Journal) views() []view {
	return []view{
		{chain: j.calls, segments: j.calls.view()},
		{chain: j.refusals, segments: j.refusals.view()},
	}
}

func newest(ctx context.Context, views []view, n int, filter Filter) ([]Record, error) {
	var records []Record
	if n <= 0 {
		return nil, nil
	}
	for listed, err := range backward(ctx, views, Position{}, filter) {
		if err != nil {
			return nil, err
		}
		if records = append(records, *listed.Record); len(records) == n {
			break
		}
	}
	slices.Reverse(records)
	return records, nil
}

// A Position is a position in the journal. For each chain, it specifies the record that follows the position. The zero
// Position is after the newest records.
type Position struct {
	// Calls and Refusals are the sequence numbers of the first record after the position in each chain, counted from 1.
	// The value 0 means the end of the chain.
	Calls, Refusals int64
}

// Listed contains a record that [Journal.Backward] yields, and the position before this record.
type Listed struct {
	// Record is the yielded record. The caller may retain and modify it.
	Record *Record
	// Position is where another call to [Journal.Backward] continues after this record.
	Position Position
}

// Backward yields the records of both chains that are before a position and that filter accepts. They are ordered by
// the time at which they were written, newest first. The order within each chain is preserved. If filter accepts few
// records, Backward may read the whole journal. It stops when ctx is done.
func (j *Journal) Backward(ctx context.Context, from Position, filter Filter) iter.Seq2[Listed, error] {
	return backward(ctx, j.views(), from, filter)
}

// backward merges the views of both chains. views contains first the view of the calls and then the view of the
// refusals.
func backward(ctx context.Context, views []view, from Position, filter Filter) iter.Seq2[Listed, error] {
	return func(yield func(Listed, error) bool) {
		at := Position{Calls: cmp.Or(from.Calls, views[0].lastSeq()+1), Refusals: cmp.Or(from.Refusals, views[1].lastSeq()+1)}
		nextCall, stop := iter.Pull2(chainBackward(ctx, views[0].segments, at.Calls, filter))
		defer stop()
		nextRefusal, stop := iter.Pull2(chainBackward(ctx, views[1].segments, at.Refusals, filter))
		defer stop()
		call, err1, more1 := nextCall()
		refusal, err2, more2 := nextRefusal()
		for more1 || more2 {
			if err := errors.Join(err1, err2); err != nil {
				yield(Listed{}, err)
				return
			}
			var rec *Record
			if more1 && (!more2 || call.Time.After(refusal.Time)) {
				rec, at.Calls = call, call.Seq
				call, err1, more1 = nextCall()
			} else {
				rec, at.Refusals = refusal, refusal.Seq
				refusal, err2, more2 = nextRefusal()
			}
			if !yield(Listed{Record: rec, Position: at}, nil) {
				return
			}
		}
	}
}

func sortByTime(records []Record) {
	slices.SortStableFunc(records, func(a, b Record) int { return a.Time.Compare(b.Time) })
}

// chainBackward yields the records of one chain whose sequence numbers are less than the given one, newest first.
func chainBackward(ctx context.Context, segments []segment, before int64, filter Filter) iter.Seq2[*Record, error] {
	return func(yield func(*Record, error) bool) {
		var work gosched.Work // yields the processor, so that calls are not delayed
		for _, s := range slices.Backward(segments) {
			if s.first >= before {
				continue
			}
			for line, err := range s.backward() {
				if err == nil {
					err = ctx.Err()
				}
				if err != nil {
					yield(nil, err)
					return
				}
				work.Step()
				rec, err := parse(line)
				if err != nil {
					yield(nil, s.broken(0, err))
					return
				}
				if rec.Seq >= before || !filter.accepts(rec) {
					continue
				}
				if !yield(rec, nil) {
					return
				}
			}
		}
	}
}

// Find returns every stored record of a decision, ordered by time. If there is none, it returns no error. Find reads
// the whole journal. It stops when ctx is done.
func (j *Journal) Find(ctx context.Context, decisionID string) ([]Record, error) {
	if decisionID == "" {
		return nil, nil
	}
	id, err := jsontext.AppendQuote([]byte(`"decision_id":`), decisionID)
	if err != nil {
		return nil, nil //nolint:nilerr // the id is invalid UTF-8, so no record contains it
	}
	needle := escape(id)
	var found []Record
	for _, v := range j.views() {
		for _, s := range v.segments {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			data, err := s.read()
			if err != nil {
				return nil, err
			}
			records, err := s.recordsOf(data, needle, decisionID)
			if err != nil {
				return nil, err
			}
			found = append(found, records...)
		}
	}
	sortByTime(found)
	return found, nil
}

// recordsOf returns the records of a decision that are in data, which contains the lines of the segment. needle is a
// string that occurs in every line that holds a record of the decision.
func (s segment) recordsOf(data, needle []byte, decisionID string) ([]Record, error) {
	var found []Record
	for {
		at := bytes.Index(data, needle)
		if at < 0 {
			return found, nil
		}
		start := bytes.LastIndexByte(data[:at], '\n') + 1
		line, rest, _ := bytes.Cut(data[start:], []byte("\n"))
		rec, err := parse(line)
		if err != nil {
			return nil, s.broken(bytes.Count(data[:start], []byte("\n"))+1, err)
		}
		if rec.DecisionID == decisionID {
			found = append(found, *rec)
		}
		data = rest
	}
}

// Calls yields the stored records of calls, oldest first. It skips segments whose records are all from before the given
// time. The first records that it yields may therefore also be from before that time. When the gateway starts, it uses
// Calls to settle the calls that the previous process did not complete. An error ends the sequence.
func (j *Journal) Calls(ctx context.Context, since time.Time) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for _, s := range j.calls.view() {
			if s.newest.Before(since) {
				continue
			}
			data, err := s.read()
			if err != nil {
				yield(Record{}, err)
				return
			}
			for line := range linesOf(data) {
				rec, err := parse(line)
				if err != nil {
					err = s.broken(0, err)
				}
				if err = cmp.Or(ctx.Err(), err); err != nil {
					yield(Record{}, err)
					return
				}
				if !yield(*rec, nil) {
					return
				}
			}
		}
	}
}
