package journal

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// Report is the result of verifying a journal.
type Report struct {
	// Calls is the result for the chain of calls.
	Calls ChainReport
	// Refusals is the result for the chain of refusals.
	Refusals ChainReport
	// Head is the newest head in the directory, or nil if there is none.
	Head *Head
}

// ChainReport is the result of verifying one chain of a journal.
type ChainReport struct {
	// Segments is the number of files that contain the chain.
	Segments int
	// Records is the number of good records.
	Records int64
	// First is the sequence number of the oldest stored record, or 0 if there is none. Earlier records were pruned.
	First int64
	// Last is the sequence number of the last good record, or 0 if there is none.
	Last int64
	// Head is the hash of the last good record's line, in hex. It is empty if there is no good record.
	Head string
	// SealKey is the public key, in hex, that verifies the signatures of heads. It comes from the newest segment that
	// contains one, and is empty if an earlier version wrote the whole chain.
	SealKey string
	// Incomplete is the number of bytes in an incomplete line that a crash has left after the last record. When the
	// journal is opened again, this line is moved to a separate file.
	Incomplete int64
}

// ErrNoJournal means that a directory contains no journal.
var ErrNoJournal = errors.New("the folder contains no journal")

// Verify checks both chains in dir, record by record, beginning with the oldest stored segment. It also checks that the
// chains contain the records to which the newest head in the directory refers, and the records to which the given heads
// refer. The given heads are copies that were stored elsewhere. Verify only reads files. A journal may be open in dir
// and write records at the same time.
//
// For each broken chain, the error wraps a [BrokenError], which describes the first record that is broken, moved or
// missing. An incomplete line that a crash has left at the end is not an error. The report contains the last good
// record of each chain.
func Verify(dir string, elsewhere ...Head) (Report, error) {
	for try := 1; ; try++ {
		report, err := verify(dir, elsewhere)
		if err == nil || try == 3 || !wasPruned(dir, &report) {
			return report, err
		}
	}
}

// wasPruned reports whether an open journal has removed segments during the check. In that case, the parts that were
// read might contradict each other.
func wasPruned(dir string, r *Report) bool {
	for _, chain := range []struct {
		name  string
		first int64
	}{{callsName, r.Calls.First}, {refusalsName, r.Refusals.First}} {
		if segments, err := listSegments(dir, chain.name); err == nil && len(segments) > 0 && chain.first > 0 && segments[0].first != chain.first {
			return true
		}
	}
	return false
}

func verify(dir string, elsewhere []Head) (Report, error) {
	var report Report
	head, headErr := readHead(dir) // read the head before the chains, which can grow
	report.Head = head
	heads := slices.Clone(elsewhere)
	if head != nil {
		heads = append(heads, *head)
	}
	var errs []error
	for _, c := range []struct {
		name string
		to   *ChainReport
	}{{callsName, &report.Calls}, {refusalsName, &report.Refusals}} {
		var err error
		*c.to, err = verifyChain(dir, c.name, heads)
		errs = append(errs, err)
	}
	if report.Calls.Segments+report.Refusals.Segments == 0 && len(heads) == 0 {
		return report, fmt.Errorf("verify %s: %w", dir, ErrNoJournal)
	}
	return report, errors.Join(append(errs, headErr, report.checkHeads(elsewhere))...)
}

// checkHeads returns an error if there is no head, or if a head is not signed with the journal's key.
func (r *Report) checkHeads(elsewhere []Head) error {
	var errs []error
	for _, h := range elsewhere {
		if err := h.Check(); err != nil {
			errs = append(errs, fmt.Errorf("the head of %s that was stored elsewhere is not valid: %w", h.Time.UTC().Format(timeFormat), err))
		} else if r.Head != nil && r.Head.Key != h.Key {
			errs = append(errs, fmt.Errorf("the head of %s was sealed with a key other than the journal's newest: the key or the journal was replaced", h.Time.UTC().Format(timeFormat)))
		}
	}
	for name, key := range map[string]string{callsName: r.Calls.SealKey, refusalsName: r.Refusals.SealKey} {
		switch {
		case key == "":
		case r.Head == nil && len(elsewhere) == 0:
			return errors.Join(append(errs, fmt.Errorf("%s is missing or unreadable: without a head that was stored elsewhere, it is unknown whether records were cut off", headName))...)
		case r.Head != nil && r.Head.Key != key:
			errs = append(errs, fmt.Errorf("%s was sealed with a key other than the one that the chain of %s contains", headName, name))
		}
	}
	return errors.Join(errs...)
}

const timeFormat = "2006-01-02T15:04:05Z"

func verifyChain(dir, name string, heads []Head) (ChainReport, error) {
	segments, err := listSegments(dir, name)
	first := int64(1)
	if len(segments) > 0 {
		first = segments[0].first
	}
	r := newReader(first)
	for _, h := range heads {
		r.sealed = append(r.sealed, h.chainEnd(name))
	}
	r.report.Segments = len(segments)
	for i, s := range segments {
		if err != nil {
			break
		}
		r.newest = i == len(segments)-1
		err = r.read(s)
	}
	if err == nil && len(segments) > 0 {
		err = r.checkBeginning(segments[0])
	}
	if err == nil {
		err = r.checkEnd(segmentPath(dir, name, r.at.seq+1))
	}
	if err != nil {
		err = fmt.Errorf("verify %s: %w", name, err)
	}
	return r.report, err
}

// reader checks the segments of a chain in order.
type reader struct {
	at     link
	report ChainReport
	// newest is true while reader checks the last segment, whose end can be incomplete.
	newest bool
	// firstPrev is the field Prev of the oldest stored record.
	firstPrev string
	// oldest is the sequence number of the oldest record that must exist, according to the fields Oldest and Pruned of the
	// records. before is the hash of the record before it, or empty if no record contains this hash. If no record has
	// these fields, oldest is 0.
	oldest int64
	before string
	// sealed contains the ends of the chain according to the signed heads.
	sealed []ChainHead
	visit  func(*Record, int)
}

func newReader(first int64) *reader {
	return &reader{at: link{seq: first - 1, unknown: first > 1}}
}

func (r *reader) read(s segment) error {
	if err := s.checkFollows(r.at); err != nil {
		return err
	}
	data, err := s.read()
	if err != nil {
		return err
	}
	var forged *BrokenError
	line := 0
	good, lines, err := walk(data, &r.at, func(rec *Record, at link, size int) {
		line++
		r.add(rec, size)
		if forged == nil && slices.ContainsFunc(r.sealed, func(h ChainHead) bool { return h.Count == at.seq && h.Hash != at.hexHash() }) {
			forged = &BrokenError{File: filepath.Base(s.path), Line: line, Seq: at.seq, Why: errors.New("is not the one that was sealed: the journal was rewritten, or it is another journal")}
		}
	})
	if forged != nil {
		return forged
	}
	if err == nil {
		return nil
	}
	if r.newest && isIncomplete(data[good:], r.at.seq+1) {
		r.report.Incomplete = int64(len(data) - good)
		return nil
	}
	return s.brokenAt(lines+1, r.at, err)
}

func (r *reader) add(rec *Record, size int) {
	if r.report.Records == 0 {
		r.report.First, r.firstPrev = rec.Seq, rec.Prev
	}
	r.report.Records++
	r.report.Last, r.report.Head = rec.Seq, r.at.hexHash()
	if rec.SealKey != "" {
		r.report.SealKey = rec.SealKey
	}
	if rec.Oldest > r.oldest {
		r.oldest, r.before = rec.Oldest, ""
	}
	for _, pruned := range rec.Pruned {
		if pruned.Last >= r.oldest {
			r.oldest, r.before = pruned.Last+1, pruned.Hash
		}
	}
	if r.visit != nil {
		r.visit(rec, size)
	}
}

// checkBeginning returns an error if records before the oldest stored record are missing and no record reports that
// they were pruned. Chains of earlier versions are accepted, because these versions pruned segments without a record.
func (r *reader) checkBeginning(oldest segment) error {
	before := link{seq: oldest.first - 1}
	switch {
	case r.oldest == 0 || r.report.Records == 0 || r.report.First < r.oldest:
		return nil
	case r.report.First > r.oldest:
		before.seq = r.oldest - 1
		return oldest.brokenAt(1, before, fmt.Errorf("should be before it: records %d to %d are missing, and no record says that they were pruned", r.oldest, r.report.First-1))
	case r.before != "" && r.before != r.firstPrev:
		return oldest.brokenAt(1, before, fmt.Errorf("has prev %.12s…, but the hash of the pruned record before it was %.12s…", r.firstPrev, r.before))
	default:
		return nil
	}
}

// checkEnd returns an error unless the chain contains the records to which the heads refer.
func (r *reader) checkEnd(next string) error {
	for _, h := range r.sealed {
		if h.Count > r.at.seq {
			return &BrokenError{File: filepath.Base(next), Line: 1, Seq: r.at.seq + 1, Why: fmt.Errorf(
				"and what follows up to record %d is missing: it was sealed, and was cut off since, or an older copy was put in its place", h.Count)}
		}
		if h.Count == r.report.First-1 && h.Count > 0 && r.firstPrev != h.Hash {
			return &BrokenError{File: filepath.Base(next), Line: 1, Seq: r.report.First, Why: errors.New("does not follow the one that was sealed")}
		}
	}
	return nil
}
