package store_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-mesh/sluice/services/identity/internal/store"
)

// sealed returns a sealer that writes the generation.
func sealed(text string) store.Sealer {
	return func(generation int64) ([]byte, error) { return fmt.Appendf(nil, "%s %d", text, generation), nil }
}

// wiki and other are keys of connections of no person, and those of two people.
var (
	wiki, other  = store.Key{Server: "wiki"}, store.Key{Server: "other"}
	anas, bens   = store.Key{Server: "wiki", Tenant: "default", Person: "ana"}, store.Key{Server: "wiki", Tenant: "default", Person: "ben"}
	anaElsewhere = store.Key{Server: "wiki", Tenant: "acme", Person: "ana"}
)

func connect(t *testing.T, s *store.Store, of store.Key) store.Connection {
	t.Helper()
	made, err := s.Connect(t.Context(), store.Connection{
		Key: of, Issuer: "https://as.example.com", Scopes: "read write", HasRefreshToken: true, ConnectedByTenant: "default", ConnectedBy: "root",
	}, sealed("first"))
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// A connection is stored, replaced and deleted. Its generation never becomes smaller, because gateways compare it.
func TestConnections_GenerationOnlyIncreases(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		one, two := open(), open()
		if _, err := two.Connection(t.Context(), wiki); !errors.Is(err, store.ErrConnectionUnknown) {
			t.Errorf("an unknown connection: %v", err)
		}
		made := connect(t, one, wiki)
		read, err := two.Connection(t.Context(), wiki)
		if diff := cmp.Diff(made, read); err != nil || diff != "" || read.Generation != 1 || string(read.Sealed) != "first 1" {
			t.Errorf("the other process reads (-want +got): %v\n%s", err, diff)
		}
		if err := two.Disconnect(t.Context(), wiki); err != nil {
			t.Fatal(err)
		}
		if gone, err := one.Connection(t.Context(), wiki); err != nil || len(gone.Sealed) != 0 || !gone.LoginRequired {
			t.Errorf("the deleted connection is %+v, %v", gone, err)
		}
		if err := one.Disconnect(t.Context(), wiki); !errors.Is(err, store.ErrConnectionUnknown) {
			t.Errorf("a second deletion: %v", err)
		}
		if again := connect(t, one, wiki); again.Generation != 3 {
			t.Errorf("the generation of the new connection is %d", again.Generation)
		}
	})
}

// Only one replica refreshes a connection at a time. If it ends without a result, another one begins after the lease.
func TestConnections_OneReplicaRefreshes(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		one, two := open(), open()
		made := connect(t, one, wiki)
		begin := func(s *store.Store, replica string, lease time.Duration) bool {
			_, begun, err := s.BeginRefresh(t.Context(), wiki, made.Generation, replica, lease)
			if err != nil {
				t.Fatal(err)
			}
			return begun
		}
		if !begin(one, "one", 0) || !begin(two, "two", time.Hour) || begin(one, "one", time.Hour) {
			t.Error("a lease that has ended blocks, or one that has not ended does not")
		}
		next := made
		next.Scopes = "read"
		if _, err := one.FinishRefresh(t.Context(), next, "one", sealed("second")); !errors.Is(err, store.ErrConnectionChanged) {
			t.Errorf("a replica without the lease: %v", err)
		}
		stored, err := two.FinishRefresh(t.Context(), next, "two", sealed("second"))
		if err != nil {
			t.Fatal(err)
		}
		read, err := one.Connection(t.Context(), wiki)
		if diff := cmp.Diff(stored, read); err != nil || diff != "" || read.Generation != 2 || string(read.Sealed) != "second 2" || read.Scopes != "read" {
			t.Errorf("the refreshed connection (-want +got): %v\n%s", err, diff)
		}
		if begin(one, "one", time.Hour) {
			t.Error("a refresh of the old generation has begun")
		}
	})
}

// After a failed refresh there is a pause. A refused refresh token is not used again.
func TestConnections_FailedRefreshIsRecorded(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		made := connect(t, s, wiki)
		for _, c := range []struct {
			ends  bool
			pause time.Duration
			again bool
		}{{pause: 0, again: true}, {ends: true, pause: 0}} {
			if _, begun, err := s.BeginRefresh(t.Context(), wiki, made.Generation, "one", time.Hour); err != nil || !begun {
				t.Fatal(begun, err)
			}
			if err := s.FailRefresh(t.Context(), wiki, made.Generation, "one", "HTTP 503", c.ends, c.pause); err != nil {
				t.Fatal(err)
			}
			found, begun, err := s.BeginRefresh(t.Context(), wiki, made.Generation, "two", 0)
			if err != nil || begun != c.again || found.Problem != "HTTP 503" || found.LoginRequired != c.ends {
				t.Errorf("%+v: %v, %+v, %v", c, begun, found, err)
			}
		}
		far := connect(t, s, other)
		if _, begun, err := s.BeginRefresh(t.Context(), other, far.Generation, "one", time.Hour); err != nil || !begun {
			t.Fatal(begun, err)
		}
		if err := s.FailRefresh(t.Context(), other, far.Generation, "one", "HTTP 503", false, time.Hour); err != nil {
			t.Fatal(err)
		}
		if _, begun, err := s.BeginRefresh(t.Context(), other, far.Generation, "two", time.Hour); err != nil || begun {
			t.Errorf("a refresh during the pause: %v, %v", begun, err)
		}
	})
}

// The connections of people are independent of each other, and of the connection of no person.
func TestConnections_OfPeopleAreIndependent(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		keys := []store.Key{wiki, anas, bens, anaElsewhere}
		for range 2 {
			for _, of := range keys {
				connect(t, s, of)
			}
		}
		first, err := s.Connection(t.Context(), anas)
		if err != nil || first.Generation != 2 {
			t.Fatalf("%+v, %v", first, err)
		}
		if _, begun, err := s.BeginRefresh(t.Context(), anas, 2, "one", time.Hour); err != nil || !begun {
			t.Fatal(begun, err)
		}
		if _, err := s.FinishRefresh(t.Context(), first, "one", sealed("of ana")); err != nil {
			t.Fatal(err)
		}
		if err := s.FailRefresh(t.Context(), bens, 2, "one", "no", true, 0); !errors.Is(err, store.ErrConnectionChanged) {
			t.Errorf("the lease of another person was accepted: %v", err)
		}
		if err := s.Disconnect(t.Context(), anaElsewhere); err != nil {
			t.Fatal(err)
		}
		for of, want := range map[store.Key]string{wiki: "first 2", anas: "of ana 3", bens: "first 2", anaElsewhere: ""} {
			if got, err := s.Connection(t.Context(), of); err != nil || string(got.Sealed) != want || got.Key != of {
				t.Errorf("%+v has %q, want %q: %v", of, got.Sealed, want, err)
			}
		}
		if usable, login, err := s.CountConnectionsOfPeople(t.Context()); err != nil || usable != 2 || login != 0 {
			t.Errorf("%d usable connections, %d without tokens: %v", usable, login, err)
		}
		if shared, err := s.Connections(t.Context()); err != nil || len(shared) != 1 || shared[0].Key != wiki {
			t.Errorf("the connections of no person are %+v, %v", shared, err)
		}
	})
}

// The connections of people are listed in pages, of all people or of one.
func TestConnections_OfPeopleAreListedInPages(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		for _, of := range []store.Key{bens, wiki, anas, {Server: "another", Tenant: "default", Person: "ben"}, anaElsewhere} {
			connect(t, s, of)
		}
		all := []store.Key{{Server: "another", Tenant: "default", Person: "ben"}, anaElsewhere, anas, bens}
		for name, c := range map[string]struct {
			tenant, person string
			want           []store.Key
		}{
			"all": {want: all}, "a tenant": {tenant: "acme", want: []store.Key{anaElsewhere}}, "a person": {tenant: "default", person: "ana", want: []store.Key{anas}}, "an unknown person": {tenant: "default", person: "eve"},
		} {
			var got []store.Key
			after := store.Key{}
			for {
				page, err := s.ConnectionsOfPeople(t.Context(), after, c.tenant, c.person, 2)
				if err != nil {
					t.Fatal(err)
				}
				for _, one := range page {
					got, after = append(got, one.Key), one.Key
				}
				if len(page) < 2 {
					break
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", name, diff)
			}
		}
	})
}

// A refused token is recorded until the server accepts it, or until the connection gets another token.
func TestConnections_RefusedTokenIsRecorded(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		made := connect(t, s, wiki)
		isRefused := func() bool {
			found, err := s.Connection(t.Context(), wiki)
			if err != nil {
				t.Fatal(err)
			}
			return found.IsRefused()
		}
		if err := s.RecordRefusal(t.Context(), wiki, made.Generation+1, true); err != nil || isRefused() {
			t.Errorf("another generation was refused: %v", err)
		}
		for _, want := range []bool{true, false, true} {
			if err := s.RecordRefusal(t.Context(), wiki, made.Generation, want); err != nil || isRefused() != want {
				t.Errorf("the token is refused: %t instead of %t, %v", !want, want, err)
			}
		}
		if _, begun, err := s.BeginRefresh(t.Context(), wiki, made.Generation, "one", time.Hour); err != nil || !begun {
			t.Fatal(begun, err)
		}
		if found, err := s.Connection(t.Context(), wiki); err != nil || found.Lease != "one" {
			t.Errorf("during a refresh: %+v, %v", found, err)
		}
		if _, err := s.FinishRefresh(t.Context(), made, "one", sealed("second")); err != nil || isRefused() {
			t.Errorf("the new token is recorded as refused: %v", err)
		}
		if found, err := s.Connection(t.Context(), wiki); err != nil || found.Lease != "" {
			t.Errorf("after a refresh: %+v, %v", found, err)
		}
	})
}

// The generations of a person's connection begin again only a day after she has deleted it, no matter how old its access
// token was. Gateways would otherwise confuse an old token with a new one of the same generation.
func TestConnections_GenerationStaysAfterDeletionOfOldToken(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		step := func(do func(context.Context, store.Key) error, of store.Key) {
			t.Helper()
			if err := do(t.Context(), of); err != nil {
				t.Fatal(err)
			}
		}
		moveBack := func(ctx context.Context, _ store.Key) error { return s.MoveBack(ctx, 25*time.Hour) }
		connect(t, s, anas)
		step(moveBack, anas)
		step(s.Disconnect, anas)
		connect(t, s, bens) // removes the rows of connections that were deleted long ago
		if again := connect(t, s, anas); again.Generation != 3 {
			t.Errorf("the generation of a connection that was just deleted is %d", again.Generation)
		}
		step(s.Disconnect, anas)
		step(moveBack, anas)
		connect(t, s, bens)
		if _, err := s.Connection(t.Context(), anas); !errors.Is(err, store.ErrConnectionUnknown) {
			t.Errorf("the row of a connection that was deleted long ago is stored: %v", err)
		}
	})
}

// During a rolling upgrade, a replica of the version before can store connections, which belong to no person.
func TestConnections_OldReplicaCanStore(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		if err := s.ConnectAsBefore(t.Context(), "wiki"); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Connection(t.Context(), wiki); err != nil || got.Generation != 1 || got.IsRefused() || got.LoginRequired {
			t.Errorf("%+v, %v", got, err)
		}
	})
}
