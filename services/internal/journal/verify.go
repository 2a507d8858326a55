package journal

import (
	"errors"
	"fmt"
)

// Report is what [Verify] saw.
type Report struct {
	// Calls is the chain of intents and outcomes.
	Calls ChainReport
	// Refusals is the chain of refusals and counts.
	Refusals ChainReport
}

// ChainReport is what was seen of one chain.
type ChainReport struct {
	// Segments is how many files it has.
	Segments int
	// Records is how many records were found good.
	Records int64
	// First is the seq of the oldest record that is kept; 0: there is none. Where it
	// is above 1 retention has removed those before it, and its own word is taken for
	// the hash of the one before it.
	First int64
	// Last is the seq of the last good record; 0: there is none.
	Last int64
	// Head is the hash of that record's line, in hex; empty: there is none. A copy of
	// it kept elsewhere shows later whether the end was cut off.
	Head string
}

// Verify checks both chains in dir, record by record, from the oldest kept segment
// on. It needs the files only, and no journal that is open on them. The error wraps a
// [BrokenError] for each chain that is broken, which names its first broken record;
// a torn end counts as broken. The report tells how far each chain is good.
func Verify(dir string) (Report, error) {
	var report Report
	var callsErr, refusalsErr error
	report.Calls, callsErr = verifyChain(dir, callsName)
	report.Refusals, refusalsErr = verifyChain(dir, refusalsName)
	return report, errors.Join(callsErr, refusalsErr)
}

func verifyChain(dir, name string) (ChainReport, error) {
	segments, err := listSegments(dir, name)
	report := ChainReport{Segments: len(segments)}
	if err != nil || len(segments) == 0 {
		return report, err
	}
	first := segments[0].first
	at := link{seq: first - 1, unknown: first > 1}
	for _, s := range segments {
		if s.first != at.seq+1 {
			return report, fmt.Errorf("verify %s: %w", name,
				s.broken(1, fmt.Errorf("should have seq %d: a segment is missing, or its end is", at.seq+1)))
		}
		data, err := s.read()
		if err != nil {
			return report, fmt.Errorf("verify %s: %w", name, err)
		}
		_, lines, err := walk(data, &at, func(Record) { report.Records++ })
		if report.Records > 0 {
			report.First, report.Last, report.Head = first, at.seq, at.head()
		}
		if err != nil {
			return report, fmt.Errorf("verify %s: %w", name, s.broken(lines+1, err))
		}
	}
	return report, nil
}
