package journal

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"sync"
	"sync/atomic"
)

// watchBuffer limits how many records a watcher can be behind.
const watchBuffer = 1024

// ErrSlowWatcher means that a watcher was too far behind and was removed.
var ErrSlowWatcher = errors.New("the watcher is too slow: it is more than 1024 records behind")

// watchers is the set of watchers that receive records when they are written.
type watchers struct {
	count atomic.Int32 // writers skip the lock if it is 0
	mu    sync.Mutex
	all   map[*watcher]struct{}
	// closed is true if no more records will be written.
	closed bool
}

type watcher struct {
	lines chan watched
	err   error // why lines was closed
}

type watched struct {
	chain *chain
	seq   int64
	line  []byte
}

func (w *watchers) add() *watcher {
	one := &watcher{lines: make(chan watched, watchBuffer)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		one.err = ErrClosed
		close(one.lines)
		return one
	}
	if w.all == nil {
		w.all = map[*watcher]struct{}{}
	}
	w.all[one] = struct{}{}
	w.count.Store(int32(len(w.all)))
	return one
}

// drop ends a watcher unless it has already ended. The caller must hold mu.
func (w *watchers) drop(one *watcher, why error) {
	if _, ok := w.all[one]; !ok {
		return
	}
	delete(w.all, one)
	w.count.Store(int32(len(w.all)))
	one.err = why
	close(one.lines)
}

func (w *watchers) remove(one *watcher) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drop(one, nil)
}

func (w *watchers) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for one := range w.all {
		w.drop(one, ErrClosed)
	}
}

// publish sends the lines of text to every watcher. first is the sequence number of the first line. publish never
// blocks, because it removes watchers that are too slow.
func (w *watchers) publish(from *chain, first int64, text []byte) {
	if w.count.Load() == 0 {
		return
	}
	text = bytes.Clone(text)
	w.mu.Lock()
	defer w.mu.Unlock()
	seq := first
	for line := range bytes.Lines(text) {
		item := watched{chain: from, seq: seq, line: bytes.TrimSuffix(line, []byte("\n"))}
		for one := range w.all {
			select {
			case one.lines <- item:
			default:
				w.drop(one, ErrSlowWatcher)
			}
		}
		seq++
	}
}

// Follow first yields at most n of the newest records, oldest first. Then it yields every new record when the record is
// written. Within a chain, no record is missing or repeated. Follow omits records that filter does not accept. A nil
// filter accepts all records. Before Follow reads the older records, it calls begin. After it has read them, it calls
// the function that begin returned. An error from begin ends the sequence.
//
// The sequence includes all records that are written after Follow has returned, until ctx is done or the loop ends. It
// can be ranged over once. It ends with an error if the watcher is more than 1,024 records behind ([ErrSlowWatcher]),
// if the journal is closed ([ErrClosed]), or if records can't be read. When ctx is done, it ends without an error.
func (j *Journal) Follow(ctx context.Context, n int, filter Filter, begin func() (done func(), err error)) iter.Seq2[Record, error] {
	one := j.watchers.add()
	stop := context.AfterFunc(ctx, func() { j.watchers.remove(one) })
	views := j.views()
	return func(yield func(Record, error) bool) {
		defer stop()
		defer j.watchers.remove(one)
		var old []Record
		done, err := begin()
		if err == nil {
			old, err = newest(ctx, views, n, filter)
			done()
		}
		if err != nil {
			if ctx.Err() == nil {
				yield(Record{}, err)
			}
			return
		}
		for _, rec := range old {
			if !yield(rec, nil) {
				return
			}
		}
		seen := map[*chain]int64{}
		for _, v := range views {
			seen[v.chain] = v.lastSeq()
		}
		one.follow(ctx, seen, filter, yield)
	}
}

// follow yields the watcher's new records, and then the error that ended the watcher. It skips the records that were
// read before. seen maps each chain to the sequence number of its last such record.
func (w *watcher) follow(ctx context.Context, seen map[*chain]int64, filter Filter, yield func(Record, error) bool) {
	for item := range w.lines {
		if ctx.Err() != nil {
			return
		}
		if item.seq <= seen[item.chain] {
			continue
		}
		rec, err := parse(item.line)
		if err != nil {
			yield(Record{}, err)
			return
		}
		if filter.accepts(rec) && !yield(*rec, nil) {
			return
		}
	}
	if w.err != nil && ctx.Err() == nil {
		yield(Record{}, w.err)
	}
}
