package store_test

import (
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

func connect(t *testing.T, s *store.Store, server string) store.Connection {
	t.Helper()
	made, err := s.Connect(t.Context(), store.Connection{
		Server: server, Issuer: "https://as.example.com", Scopes: "read write", HasRefreshToken: true, ConnectedByTenant: "default", ConnectedBy: "root",
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
		if _, err := two.Connection(t.Context(), "wiki"); !errors.Is(err, store.ErrConnectionUnknown) {
			t.Errorf("an unknown connection: %v", err)
		}
		made := connect(t, one, "wiki")
		read, err := two.Connection(t.Context(), "wiki")
		if diff := cmp.Diff(made, read); err != nil || diff != "" || read.Generation != 1 || string(read.Sealed) != "first 1" {
			t.Errorf("the other process reads (-want +got): %v\n%s", err, diff)
		}
		if err := two.Disconnect(t.Context(), "wiki"); err != nil {
			t.Fatal(err)
		}
		if gone, err := one.Connection(t.Context(), "wiki"); err != nil || len(gone.Sealed) != 0 || !gone.LoginRequired {
			t.Errorf("the deleted connection is %+v, %v", gone, err)
		}
		if err := one.Disconnect(t.Context(), "wiki"); !errors.Is(err, store.ErrConnectionUnknown) {
			t.Errorf("a second deletion: %v", err)
		}
		if again := connect(t, one, "wiki"); again.Generation != 3 {
			t.Errorf("the generation of the new connection is %d", again.Generation)
		}
	})
}

// Only one replica refreshes a connection at a time. If it ends without a result, another one begins after the lease.
func TestConnections_OneReplicaRefreshes(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		one, two := open(), open()
		made := connect(t, one, "wiki")
		begin := func(s *store.Store, replica string, lease time.Duration) bool {
			_, begun, err := s.BeginRefresh(t.Context(), "wiki", made.Generation, replica, lease)
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
		read, err := one.Connection(t.Context(), "wiki")
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
		made := connect(t, s, "wiki")
		for _, c := range []struct {
			ends  bool
			pause time.Duration
			again bool
		}{{pause: 0, again: true}, {ends: true, pause: 0}} {
			if _, begun, err := s.BeginRefresh(t.Context(), "wiki", made.Generation, "one", time.Hour); err != nil || !begun {
				t.Fatal(begun, err)
			}
			if err := s.FailRefresh(t.Context(), "wiki", made.Generation, "one", "HTTP 503", c.ends, c.pause); err != nil {
				t.Fatal(err)
			}
			found, begun, err := s.BeginRefresh(t.Context(), "wiki", made.Generation, "two", 0)
			if err != nil || begun != c.again || found.Problem != "HTTP 503" || found.LoginRequired != c.ends {
				t.Errorf("%+v: %v, %+v, %v", c, begun, found, err)
			}
		}
		other := connect(t, s, "other")
		if _, begun, err := s.BeginRefresh(t.Context(), "other", other.Generation, "one", time.Hour); err != nil || !begun {
			t.Fatal(begun, err)
		}
		if err := s.FailRefresh(t.Context(), "other", other.Generation, "one", "HTTP 503", false, time.Hour); err != nil {
			t.Fatal(err)
		}
		if _, begun, err := s.BeginRefresh(t.Context(), "other", other.Generation, "two", time.Hour); err != nil || begun {
			t.Errorf("a refresh during the pause: %v, %v", begun, err)
		}
	})
}

// A refused token is recorded until the server accepts it, or until the connection gets another token.
func TestConnections_RefusedTokenIsRecorded(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		made := connect(t, s, "wiki")
		isRefused := func() bool {
			found, err := s.Connection(t.Context(), "wiki")
			if err != nil {
				t.Fatal(err)
			}
			return found.IsRefused()
		}
		if err := s.RecordRefusal(t.Context(), "wiki", made.Generation+1, true); err != nil || isRefused() {
			t.Errorf("another generation was refused: %v", err)
		}
		for _, want := range []bool{true, false, true} {
			if err := s.RecordRefusal(t.Context(), "wiki", made.Generation, want); err != nil || isRefused() != want {
				t.Errorf("the token is refused: %t instead of %t, %v", !want, want, err)
			}
		}
		if _, begun, err := s.BeginRefresh(t.Context(), "wiki", made.Generation, "one", time.Hour); err != nil || !begun {
			t.Fatal(begun, err)
		}
		if found, err := s.Connection(t.Context(), "wiki"); err != nil || found.Lease != "one" {
			t.Errorf("during a refresh: %+v, %v", found, err)
		}
		if _, err := s.FinishRefresh(t.Context(), made, "one", sealed("second")); err != nil || isRefused() {
			t.Errorf("the new token is recorded as refused: %v", err)
		}
		if found, err := s.Connection(t.Context(), "wiki"); err != nil || found.Lease != "" {
			t.Errorf("after a refresh: %+v, %v", found, err)
		}
	})
}
