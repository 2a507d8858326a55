package journal

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Journal is an open journal. It is safe for concurrent use.
type Journal struct {
	cfg        Config
	keys       keys
	hasher     *hasher
	watchers   watchers
	calls      *chain
	refusals   *chain
	admissions admissions
	entries    sync.Pool
	check      check
	// head is the newest signed head. sealFailed is true if the last attempt to store a head failed.
	head       atomic.Pointer[Head]
	sealFailed bool

	failed      chan struct{}
	stop        chan struct{}
	maintainers sync.WaitGroup
	closing     sync.Once
	closed      error
}

// Open opens or creates the journal in cfg.Dir and maintains it until Close is called.
//
// If a killed process left an incomplete line at the end of a chain, Open moves the line to a file `*.torn` and writes
// a recovery record. Open also writes a recovery record if the newest head refers to records that the files do not
// contain. If a chain is damaged in another way, Open returns an error that wraps a [BrokenError] with the file and the
// line. Open checks only the newest segments. [Journal.Check] reports the result of the check of older segments.
func Open(cfg Config) (*Journal, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.open == nil {
		cfg.open = openFile
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make journal folder: %w", err)
	}
	keys, err := loadKeys(&cfg)
	if err != nil {
		return nil, err
	}
	j := &Journal{cfg: cfg, keys: keys, hasher: newHasher(keys.hmac), failed: make(chan struct{}, 1), stop: make(chan struct{})}
	j.entries.New = newEntry
	j.calls = j.newChain(callsName, cfg.Calls)
	j.calls.usage = newQuotaUsage(cfg.Share, cfg.Calls.Bytes)
	j.refusals = j.newChain(refusalsName, cfg.Refusals)
	if err := j.load(context.Background()); err != nil {
		return nil, errors.Join(fmt.Errorf("open journal in %s: %w", cfg.Dir, err), j.calls.close(), j.refusals.close())
	}
	j.seal()
	j.logHead()
	j.maintainers.Go(j.maintain)
	j.maintainers.Go(j.checkOlder)
	return j, nil
}

// load reads the ends of the chains from disk. If they contradict the newest head in the directory, it queues a record
// that says so.
func (j *Journal) load(ctx context.Context) error {
	sealed, err := readHead(j.cfg.Dir)
	unvouched := j.headProblem(sealed, err)
	if unvouched != nil {
		j.cfg.Log.ErrorContext(ctx, "journal's newest head can't be used: it is unknown whether records were cut off", "error", unvouched)
	}
	for _, c := range []*chain{j.calls, j.refusals} {
		if sealed != nil {
			c.sealed = sealed.chainEnd(c.name)
		}
		if err := c.load(ctx); err != nil {
			return err
		}
		c.recordMissing(ctx)
		if unvouched != nil {
			c.queueStartRecord(&Record{Message: "whether records are missing before this one is not known: " + unvouched.Error()})
		}
		if !c.resume() {
			j.notifyFailure()
		}
	}
	return nil
}

// headProblem returns nil if the head in the directory can be used to check the ends of the chains. Otherwise it returns
// the reason why the head can't be used. If err is not nil, the head could not be read. An attacker who can write to the
// directory, but does not have the key, can remove the head or replace it with another journal's head. The next head
// that this journal signs would hide such a change.
func (j *Journal) headProblem(sealed *Head, err error) error {
	switch {
	case err != nil:
		return err
	case sealed == nil && j.keys.hadSealKey:
		return fmt.Errorf("%s is missing: it was removed, or power was lost", headName)
	case sealed != nil && sealed.Key != j.sealKey():
		return fmt.Errorf("%s was sealed with a key other than the journal's", headName)
	default:
		return nil
	}
}

// sealKey returns the public key, in hex, that verifies the signatures of heads.
func (j *Journal) sealKey() string {
	return hex.EncodeToString(j.keys.seal.Public().(ed25519.PublicKey)) //nolint:forcetypeassert // an ed25519.PrivateKey returns this type
}

func (j *Journal) newChain(name string, retention Retention) *chain {
	return &chain{
		name: name, cfg: &j.cfg, retention: retention, watchers: &j.watchers, onFailure: j.notifyFailure,
		sealKey: j.sealKey(),
	}
}

// notifyFailure tells the maintain goroutine that a chain can't be written. It never blocks.
func (j *Journal) notifyFailure() {
	select {
	case j.failed <- struct{}{}:
	default:
	}
}

// Claim records that an approved call is about to be claimed for execution. If Claim returns an error, the call must
// not be claimed. The error is [ErrQuota] if the call's principal, or a principal on whose behalf it acts, has used its
// share of the capacity. Claim does not modify rec.
func (j *Journal) Claim(ctx context.Context, rec *Record) error {
	if err := j.Healthy(); err != nil {
		return fmt.Errorf("record claim: %w", err)
	}
	return j.record(ctx, j.calls, KindClaim, rec)
}

// Settled records that the approval service and the limiter know the result of an approved call. If the record can't be
// written, the gateway reports the result again after its next start. The repeated report has no effect. Settled does
// not modify rec.
func (j *Journal) Settled(ctx context.Context, rec *Record) error {
	return j.record(ctx, j.calls, KindSettled, rec)
}

// Intent records that a call was allowed and is about to be sent. If Intent returns an error, the call must not be
// sent, although the record might exist. If ctx is already done, Intent writes nothing. A write that has begun is
// completed even if ctx is done in the meantime. If the call's principal, or a principal on whose behalf it acts, has
// used its share of the capacity, nothing is written and the error is [ErrQuota]. Intent does not modify rec.
func (j *Journal) Intent(ctx context.Context, rec *Record) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("record intent: %w", err)
	}
	if err := j.Healthy(); err != nil {
		return fmt.Errorf("record intent: %w", err)
	}
	return j.record(ctx, j.calls, KindIntent, rec)
}

// Outcome records the result of a call. rec.DecisionID is the id in the call's intent. If the error is
// [ErrUnavailable], the record stays in memory, and the journal refuses intents until the record is written. The memory
// has space for 32 MiB of records. Outcome writes the record even if ctx is done. It does not modify rec.
func (j *Journal) Outcome(ctx context.Context, rec *Record) error {
	return j.record(ctx, j.calls, KindOutcome, rec)
}

// Refusal records that a call was refused. It writes the record even if ctx is done, so that a caller can't avoid the
// record by disconnecting. If the error is [ErrUnavailable], the refusal is only counted, and the count is recorded
// later. If rec.Count is set, the refusal counts as rec.Count refusals. Strings from a caller are truncated to 256
// bytes, measured after JSON escaping. A truncated string ends in "…". Refusal does not modify rec.
func (j *Journal) Refusal(ctx context.Context, rec *Record) error {
	return j.record(ctx, j.refusals, KindRefusal, rec)
}

// Passed records how many messages without a rule, for example pings, a principal has sent. The record is written to
// the chain of refusals, so it never displaces calls. Passed returns the same errors as Refusal.
func (j *Journal) Passed(ctx context.Context, rec *Record) error {
	return j.record(ctx, j.refusals, KindPassed, rec)
}

// record writes a copy of rec to a chain.
func (j *Journal) record(ctx context.Context, c *chain, kind Kind, rec *Record) error {
	if rec.DecisionID == "" {
		return fmt.Errorf("record %s: it has no decision id", kind)
	}
	e := j.entries.Get().(*entry)
	defer e.recycle(&j.entries)
	e.rec = *rec
	e.rec.Kind, e.rec.Build = kind, j.cfg.Build
	if kind == KindOutcome {
		e.rec.ResultClass = cmp.Or(rec.ResultClass, ResultUnknown)
	}
	if c.usage.limit > 0 {
		e.accounts = appendAccounts(e.accounts[:0], rec)
	}
	if err := encodeBody(&e.body, &e.rec); err != nil {
		return fmt.Errorf("record %s: %w", kind, err)
	}
	if err := c.append(ctx, e); err != nil {
		return fmt.Errorf("record %s: %w", kind, err)
	}
	return nil
}

// Healthy returns the reason why intents are currently refused, or nil if they are accepted. The error is
// [ErrUnavailable] or [ErrClosed].
func (j *Journal) Healthy() error {
	if err := j.calls.failure(); err != nil {
		return err
	}
	return j.refusals.failure()
}

// Close writes the counts and records that are in memory, and closes the journal. It waits for writes that have begun.
// After that, the journal refuses records, and the sequences from [Journal.Follow] end. The error describes the records
// that could not be written. Further calls return the same error.
func (j *Journal) Close() error {
	j.closing.Do(func() {
		close(j.stop)
		j.maintainers.Wait()
		j.resume()
		err := j.flushAdmissions(context.Background())
		j.seal()
		j.logHead()
		j.closed = errors.Join(err, j.calls.close(), j.refusals.close())
		j.watchers.close()
	})
	return j.closed
}

// resume tries to make both chains accept records again. It reports whether both chains do.
func (j *Journal) resume() bool {
	calls, refusals := j.calls.resume(), j.refusals.resume()
	return calls && refusals
}

// maintain does the periodic work of the journal until the journal is closed. Each second it signs a head. Each minute
// it writes counts and applies the retention. It also retries failed writes.
func (j *Journal) maintain() {
	ctx := context.Background()
	minute := time.NewTimer(untilMinute(time.Now()))
	defer minute.Stop()
	second, hour := time.NewTicker(sealInterval), time.NewTicker(headLogInterval)
	defer second.Stop()
	defer hour.Stop()
	var retry <-chan time.Time
	for {
		select {
		case <-j.stop:
			return
		case <-j.failed:
			retry = time.After(retryInterval)
		case <-retry:
			if retry = nil; !j.resume() {
				retry = time.After(retryInterval)
			}
		case <-second.C:
			j.seal()
			j.calls.checkSpace()
			j.refusals.checkSpace()
		case <-hour.C:
			j.logHead()
		case now := <-minute.C:
			minute.Reset(untilMinute(now))
			if err := j.flushAdmissions(ctx); err != nil {
				j.cfg.Log.WarnContext(ctx, "counts of refused requests can't be written, so they stay in memory", "error", err)
			}
			j.calls.applyRetention(now)
			j.refusals.applyRetention(now)
		}
	}
}

func untilMinute(now time.Time) time.Duration {
	return now.Truncate(time.Minute).Add(time.Minute).Sub(now)
}
