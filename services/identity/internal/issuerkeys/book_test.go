package issuerkeys_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	identityv1 "github.com/sluice-mesh/sluice/gen/sluice/identity/v1"
	"github.com/sluice-mesh/sluice/services/identity/internal/issuerkeys"
)

var (
	corp    = issuerkeys.Source{Issuer: "https://login.example.com"}
	errAway = errors.New("the issuer is unavailable")
)

// provider is an issuer in a test.
type provider struct {
	mu      sync.Mutex
	keys    []*identityv1.IssuerKey
	err     error
	takes   time.Duration
	fetched atomic.Int64
	changes atomic.Int64
}

func (p *provider) fetch(context.Context, issuerkeys.Source) ([]*identityv1.IssuerKey, error) {
	p.fetched.Add(1)
	p.mu.Lock()
	defer p.mu.Unlock()
	time.Sleep(p.takes)
	return p.keys, p.err
}

func (p *provider) set(err error, ids ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.keys, p.err = nil, err
	for _, id := range ids {
		p.keys = append(p.keys, &identityv1.IssuerKey{Id: id})
	}
}

// run returns a running book with the issuer corp.
func (p *provider) run(t *testing.T) *issuerkeys.Book {
	t.Helper()
	book := issuerkeys.NewBook(p.fetch, func() { p.changes.Add(1) })
	book.Use([]issuerkeys.Source{corp})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- book.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	synctest.Wait()
	return book
}

func TestBook_FetchesEveryTenMinutes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := new(provider)
		p.set(nil, "a")
		book := p.run(t)
		if got := book.Status(corp); len(got.Keys) != 1 || p.changes.Load() != 1 {
			t.Fatalf("%+v", got)
		}
		time.Sleep(time.Hour)
		synctest.Wait() // the last fetch may begin at this instant
		if n := p.fetched.Load(); n != 7 || p.changes.Load() != 1 {
			t.Errorf("in an hour the same keys were fetched %d times, with %d changes; want 7 and 1", n, p.changes.Load())
		}
		p.set(nil, "a", "b")
		time.Sleep(11 * time.Minute)
		if got := book.Status(corp); len(got.Keys) != 2 || p.changes.Load() != 2 {
			t.Errorf("new keys: %+v", got)
		}
	})
}

// While an issuer is unavailable, its keys stay valid for a day. The book tries again after at most 30 s.
func TestBook_KeepsKeysForADay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := new(provider)
		p.set(nil, "a")
		book := p.run(t)
		p.set(errAway)
		time.Sleep(23 * time.Hour)
		if got := book.Status(corp); len(got.Keys) != 1 || !errors.Is(got.Problem, errAway) {
			t.Fatalf("after 23 hours: %+v", got)
		}
		time.Sleep(61 * time.Minute)
		if got := book.Status(corp); len(got.Keys) != 0 {
			t.Errorf("after a day: %+v", got)
		}
		p.set(nil, "b")
		time.Sleep(31 * time.Second)
		if got := book.Status(corp); len(got.Keys) != 1 || got.Problem != nil {
			t.Errorf("the issuer is available again: %+v", got)
		}
	})
}

func TestRefetch_HappensOnceInThirtySeconds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := new(provider)
		p.set(nil, "a")
		book := p.run(t)
		p.set(nil, "b")
		p.takes = time.Second
		isFetched := func(id string) bool {
			keys := book.Refetch(t.Context(), corp)
			return len(keys) == 1 && keys[0].GetId() == id
		}
		var calls sync.WaitGroup
		for range 10 {
			calls.Go(func() {
				if !isFetched("b") {
					t.Error("a call has not received the new key")
				}
			})
		}
		calls.Wait()
		if n := p.fetched.Load(); n != 2 {
			t.Errorf("the keys were fetched %d times, want twice", n)
		}
		p.set(nil, "c")
		if !isFetched("b") {
			t.Error("the keys were fetched again at once")
		}
		time.Sleep(31 * time.Second)
		if !isFetched("c") {
			t.Error("the keys were not fetched again after 31 s")
		}
		if keys := book.Refetch(t.Context(), issuerkeys.Source{Issuer: "https://other.example.com"}); keys != nil {
			t.Error("an issuer that is not used has keys")
		}
	})
}

func TestUse_KeepsTheKeysOfIssuersThatStay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := new(provider)
		p.set(nil, "a")
		book := p.run(t)
		other := issuerkeys.Source{Issuer: "https://other.example.com"}
		book.Use([]issuerkeys.Source{corp, other})
		if len(book.Status(corp).Keys) != 1 || len(book.Status(other).Keys) != 0 {
			t.Error("the keys of corp are lost, or other has keys already")
		}
		time.Sleep(2 * time.Second)
		book.Use([]issuerkeys.Source{other})
		if len(book.Status(corp).Keys) != 0 || len(book.Status(other).Keys) != 1 {
			t.Error("corp still has keys, or other has none")
		}
	})
}

// The keys of an earlier process are used until the issuer is available, but not longer than a day after they were fetched.
func TestRestore_UsesStoredKeysForADay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := new(provider)
		p.set(errAway)
		book := issuerkeys.NewBook(p.fetch, func() { p.changes.Add(1) })
		book.Use([]issuerkeys.Source{corp})
		stored := []*identityv1.IssuerKey{{Id: "stored"}}
		book.Restore(corp, stored, time.Now().Add(-25*time.Hour))
		if got := book.Status(corp); len(got.Keys) != 0 {
			t.Errorf("keys that were fetched 25 hours ago: %+v", got)
		}
		book.Restore(corp, stored, time.Now().Add(-23*time.Hour))
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go func() { _ = book.Run(ctx) }()
		synctest.Wait()
		if got := book.Status(corp); len(got.Keys) != 1 || got.Problem == nil {
			t.Errorf("the issuer is unavailable: %+v", got)
		}
		time.Sleep(61 * time.Minute)
		if got := book.Status(corp); len(got.Keys) != 0 || p.changes.Load() == 0 {
			t.Errorf("after a day: %+v", got)
		}
		p.set(nil, "new")
		time.Sleep(time.Minute)
		if got := book.Status(corp); len(got.Keys) != 1 || got.Keys[0].GetId() != "new" {
			t.Errorf("the issuer is available again: %+v", got)
		}
	})
}
