package store_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/sluice-mesh/sluice/services/identity/internal/store"
	"github.com/sluice-mesh/sluice/services/internal/eventually"
)

// tokenOf returns a token that expires in an hour. Its times are truncated to microseconds, because the stores do the
// same.
func tokenOf(name, tenant, agent, owner string) store.Token {
	return store.Token{
		Name: name, Tenant: tenant, Subject: name, Agent: agent, Owner: owner, Groups: []string{"developers", "on call"}, SHA256: sha256.Sum256([]byte(name)),
		Expires: time.Now().UTC().Add(time.Hour).Truncate(time.Microsecond), CreatedByTenant: tenant, CreatedBy: "root",
	}
}

func createToken(t *testing.T, s *store.Store, want store.Token) store.Token {
	t.Helper()
	made, set, err := s.CreateToken(t.Context(), want)
	if err != nil {
		t.Fatalf("create %s: %v", want.Name, err)
	}
	if made.Created.IsZero() || set.Version == 0 {
		t.Fatalf("%+v at version %d", made, set.Version)
	}
	return made
}

func namesOf(tokens []store.Token) []string {
	out := make([]string, 0, len(tokens))
	for _, t := range tokens {
		out = append(out, t.Name)
	}
	return out
}

// Two processes use the same store. The second process reads and revokes the tokens that the first process has created.
func TestTokens_AreStored(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		one, two := open(), open()
		ctx := t.Context()
		if set, err := one.TokensSince(ctx, -1); err != nil || set.Version != 0 || set.Valid != nil || set.Ended != nil {
			t.Fatalf("a new store has %+v: %v", set, err)
		}
		made := createToken(t, one, tokenOf("cursor-1", "default", "cursor", "ana"))
		createToken(t, one, tokenOf("claude-1", "default", "claude", "ana"))
		createToken(t, one, tokenOf("cursor-2", "acme", "cursor", "zoe"))
		set, err := two.TokensSince(ctx, 0)
		if diff := cmp.Diff([]string{"claude-1", "cursor-1", "cursor-2"}, namesOf(set.Valid)); diff != "" || err != nil || set.Version <= 0 {
			t.Fatalf("version %d, %v (-want +got):\n%s", set.Version, err, diff)
		}
		if diff := cmp.Diff(made, set.Valid[1]); diff != "" {
			t.Errorf("(-created +read):\n%s", diff)
		}
		if again, err := two.TokensSince(ctx, set.Version); err != nil || again.Version != set.Version || again.Valid != nil {
			t.Errorf("without a change: %+v, %v", again, err)
		}
		if _, _, err := two.CreateToken(ctx, tokenOf("cursor-1", "acme", "x", "y")); !errors.Is(err, store.ErrTokenExists) {
			t.Errorf("a second token of one name: %v", err)
		}

		// An operator of a tenant revokes only tokens of that tenant.
		acme := store.Revocation{OperatorTenant: "acme", Operator: "zoe"}
		for _, r := range []store.Revocation{{Name: "cursor-1"}, {Name: "absent"}, {Agent: "claude"}} {
			r.OperatorTenant, r.Operator = acme.OperatorTenant, acme.Operator
			if _, _, err := two.RevokeTokens(ctx, r); !errors.Is(err, store.ErrTokenUnknown) {
				t.Errorf("%+v: %v", r, err)
			}
		}
		acme.Agent = "cursor"
		revoked, set, err := two.RevokeTokens(ctx, acme)
		if err != nil || len(revoked) != 1 || revoked[0].Name != "cursor-2" || revoked[0].RevokedBy != "zoe" || revoked[0].Revoked.IsZero() {
			t.Fatalf("%+v: %v", revoked, err)
		}
		if diff := cmp.Diff([]string{"claude-1", "cursor-1"}, namesOf(set.Valid)); diff != "" || !cmp.Equal(namesOf(set.Ended), []string{"cursor-2"}) {
			t.Errorf("%v have ended (-want +got):\n%s", namesOf(set.Ended), diff)
		}
		again, _, err := one.RevokeTokens(ctx, store.Revocation{Name: "cursor-2", OperatorTenant: "default", Operator: "root", AnyTenant: true})
		if diff := cmp.Diff(revoked, again); err != nil || diff != "" {
			t.Errorf("revoked again, %v (-first +again):\n%s", err, diff)
		}
		all, err := open().Tokens(ctx)
		if err != nil || len(all) != 3 || !cmp.Equal(all[2], revoked[0]) {
			t.Errorf("%+v: %v", all, err)
		}
	})
}

// A token has expired. The set contains it as an ended token. An operator who tries to revoke the tokens of its agent
// gets the error ErrTokenUnknown.
func TestTokens_ExpiredTokensEnd(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		short := tokenOf("short", "default", "cursor", "")
		short.Expires = time.Now().UTC().Add(-time.Second).Truncate(time.Microsecond)
		_, set, err := s.CreateToken(t.Context(), short)
		if err != nil || len(set.Valid) != 0 || len(set.Ended) != 1 || !set.Ended[0].Revoked.IsZero() {
			t.Fatalf("%+v: %v", set, err)
		}
		if _, _, err := s.RevokeTokens(t.Context(), store.Revocation{Agent: "cursor", OperatorTenant: "default"}); !errors.Is(err, store.ErrTokenUnknown) {
			t.Errorf("revoke the expired tokens of an agent: %v", err)
		}
	})
}

func TestTokens_UsesOnlyMoveForward(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		createToken(t, s, tokenOf("cursor-1", "default", "cursor", "ana"))
		made, err := s.TokensSince(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		late := time.Now().UTC().Truncate(time.Microsecond)
		for _, at := range []time.Time{late, late.Add(-time.Minute)} {
			if err := s.UseTokens(t.Context(), map[string]time.Time{"cursor-1": at, "absent": at}); err != nil {
				t.Fatal(err)
			}
		}
		all, err := s.Tokens(t.Context())
		if err != nil || len(all) != 1 || !all[0].LastUsed.Equal(late) {
			t.Errorf("%+v: %v", all, err)
		}
		if set, err := s.TokensSince(t.Context(), 0); err != nil || set.Version != made.Version {
			t.Errorf("a use changes the version from %d to %d: %v", made.Version, set.Version, err)
		}
	})
}

func TestTokens_OfAnOwnerAreLimited(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		for n := range store.MaxTokensOfOwner {
			createToken(t, s, tokenOf(fmt.Sprint("t", n), "default", "cursor", "ana"))
		}
		if _, _, err := s.CreateToken(t.Context(), tokenOf("more", "default", "cursor", "ana")); !errors.Is(err, store.ErrTokensFull) {
			t.Errorf("too many tokens of an owner: %v", err)
		}
		createToken(t, s, tokenOf("ben", "default", "cursor", "ben"))
		createToken(t, s, tokenOf("of acme", "acme", "cursor", "ana"))
		if _, _, err := s.RevokeTokens(t.Context(), store.Revocation{Name: "t0", OperatorTenant: "default"}); err != nil {
			t.Fatal(err)
		}
		createToken(t, s, tokenOf("more", "default", "cursor", "ana"))
	})
}

// The clock is set back after a token was revoked, so the time of the revocation is in the future. The token stays
// revoked.
func TestTokens_RevokedTokenStaysRevokedWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "identity.db")
	s, err := store.Open(t.Context(), store.Config{Source: "sqlite", File: file, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	createToken(t, s, tokenOf("revoked", "default", "cursor", "ana"))
	if _, _, err := s.RevokeTokens(t.Context(), store.Revocation{Name: "revoked", OperatorTenant: "default"}); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("sqlite", file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }() // the statement reports errors
	if _, err := db.ExecContext(t.Context(), "UPDATE identity_tokens SET revoked = revoked + 3600000000, ended = ended + 3600000000"); err != nil {
		t.Fatal(err)
	}
	_, set, err := s.CreateToken(t.Context(), tokenOf("other", "default", "cursor", "ana"))
	if got := namesOf(set.Valid); err != nil || !slices.Equal(got, []string{"other"}) || !slices.Equal(namesOf(set.Ended), []string{"revoked"}) {
		t.Errorf("valid: %v, ended: %v, %v", got, namesOf(set.Ended), err)
	}
}

// The tokens of the policy service are imported once, with all their times. A later import changes nothing.
func TestImport_HappensOnce(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s, ctx := open(), t.Context()
		if state, err := s.ImportState(ctx); state != store.NotImported || err != nil {
			t.Fatalf("a new store: %d, %v", state, err)
		}
		past := time.Now().UTC().Add(-time.Hour).Truncate(time.Microsecond)
		valid, revoked := tokenOf("cursor-1", "default", "cursor", "ana"), tokenOf("cursor-2", "acme", "cursor", "zoe")
		valid.Created, valid.LastUsed = past, past.Add(time.Minute)
		revoked.Created, revoked.Revoked, revoked.RevokedByTenant, revoked.RevokedBy = past, past.Add(time.Minute), "acme", "root"
		if err := s.Import(ctx, []store.Token{valid, revoked}); err != nil {
			t.Fatal(err)
		}
		all, err := s.Tokens(ctx)
		if diff := cmp.Diff([]store.Token{valid, revoked}, all); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
		set, err := s.TokensSince(ctx, -1)
		if err != nil || !slices.Equal(namesOf(set.Valid), []string{"cursor-1"}) || !slices.Equal(namesOf(set.Ended), []string{"cursor-2"}) {
			t.Errorf("the set is %+v, %v", set, err)
		}
		if err := open().Import(ctx, []store.Token{tokenOf("other", "default", "other", "")}); err != nil {
			t.Fatal(err)
		}
		if again, err := s.TokensSince(ctx, set.Version); err != nil || again.Version != set.Version {
			t.Errorf("after another import: version %d, want %d, %v", again.Version, set.Version, err)
		}
		if state, err := s.ImportState(ctx); state != store.Imported || err != nil {
			t.Errorf("after the import: %d, %v", state, err)
		}
		if err := s.FinishImport(ctx); err != nil {
			t.Error(err)
		}
		if state, err := s.ImportState(ctx); state != store.Moved || err != nil {
			t.Errorf("after the end of the import: %d, %v", state, err)
		}
	})
}

// A replica that was seen recently and uses an older version is older. One that has stopped is not.
func TestOlderReplicas(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s, ctx := open(), t.Context()
		for id, version := range map[string]int64{"a": 3, "b": 5, "c": 4} {
			if err := s.ReportReplica(ctx, id, version); err != nil {
				t.Fatal(err)
			}
		}
		older := func(version int64, within time.Duration, want ...string) {
			t.Helper()
			if got, err := s.OlderReplicas(ctx, version, within); err != nil || !slices.Equal(got, want) {
				t.Errorf("older than %d: %v, %v; want %v", version, got, err, want)
			}
		}
		older(5, time.Minute, "a", "c")
		older(3, time.Minute)
		older(5, -time.Minute)
		if err := s.ReportReplica(ctx, "a", 5); err != nil {
			t.Fatal(err)
		}
		if err := s.LeaveReplica(ctx, "c", time.Hour); err != nil {
			t.Fatal(err)
		}
		older(5, time.Minute)
	})
}

// The secret of a token is replaced several times. Each replaced secret is stored with its end, but not longer than the
// token would have been valid. The token is valid for as long as after its creation.
func TestRotateToken(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s, ctx := open(), t.Context()
		made := createToken(t, s, tokenOf("cursor-1", "acme", "cursor", "ana"))
		life := made.Expires.Sub(made.Created)
		rotate := func(secret string, overlap time.Duration) (store.Token, error) {
			rotated, set, err := s.RotateToken(ctx, store.Rotation{Name: "cursor-1", OperatorTenant: "acme", SHA256: sha256.Sum256([]byte(secret)), Overlap: overlap})
			if err == nil && (len(set.Valid) != 1 || !cmp.Equal(set.Valid[0], rotated) || rotated.Created != made.Created || rotated.SHA256 != sha256.Sum256([]byte(secret))) {
				t.Errorf("%s: %+v, %+v", secret, rotated, set)
			}
			return rotated, err
		}
		first, err := rotate("second", 2*time.Hour)
		if err != nil || len(first.Previous) != 1 || first.Previous[0].SHA256 != hex.EncodeToString(made.SHA256[:]) || !first.Previous[0].Until.Equal(made.Expires) {
			t.Errorf("the first rotation: %+v, %v", first, err)
		}
		if got := time.Until(first.Expires); got > life || got < life-time.Minute {
			t.Errorf("the token is valid for %v, want about %v", got, life)
		}
		second, err := rotate("third", time.Minute)
		if err != nil || len(second.Previous) != 2 || second.Previous[1] != first.Previous[0] {
			t.Errorf("a second rotation: %+v, %v", second, err)
		}
		if third, err := rotate("fourth", 0); err != nil || third.Previous != nil {
			t.Errorf("a rotation without an overlap: %+v, %v", third, err)
		}
		for n := range 4 {
			if _, err := rotate(fmt.Sprint("next ", n), time.Minute); err != nil {
				t.Error(err)
			}
		}
		if _, err := rotate("too often", time.Minute); !errors.Is(err, store.ErrRotatedTooOften) {
			t.Errorf("a rotation while four earlier secrets are valid: %v", err)
		}
		for name, r := range map[string]store.Rotation{
			"unknown":           {Name: "other", AnyTenant: true},
			"of another tenant": {Name: "cursor-1", OperatorTenant: "default"},
		} {
			if _, _, err := s.RotateToken(ctx, r); !errors.Is(err, store.ErrTokenUnknown) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, _, err := s.RevokeTokens(ctx, store.Revocation{Name: "cursor-1", AnyTenant: true}); err != nil {
			t.Fatal(err)
		}
		if _, err := rotate("revoked", time.Minute); !errors.Is(err, store.ErrTokenEnded) {
			t.Errorf("a revoked token: %v", err)
		}
	})
}

// The database loses the last changes, as after a restore. A process that has seen them reads and changes nothing, because a
// revocation may be lost.
func TestTokensSince_FailsIfTheStoreHasLostChanges(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s, other, ctx := open(), open(), t.Context()
		createToken(t, s, tokenOf("cursor-1", "default", "cursor", "ana"))
		if _, err := other.TokensSince(ctx, 0); err != nil {
			t.Fatal(err)
		}
		if err := s.LoseChanges(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := other.TokensSince(ctx, 0); !errors.Is(err, store.ErrLost) {
			t.Errorf("a read: %v", err)
		}
		if _, _, err := other.CreateToken(ctx, tokenOf("cursor-2", "default", "cursor", "ana")); !errors.Is(err, store.ErrLost) {
			t.Errorf("a change: %v", err)
		}
		if _, err := open().TokensSince(ctx, -1); err != nil {
			t.Errorf("after a restart: %v", err)
		}
	})
}

// Callers leave while their changes are being stored, so that some transactions end without a commit. The store does not
// take this for lost changes.
func TestCreateToken_CancelledChangesAreNotLost(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		cancelled := 0
		for i := range 200 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*25*time.Microsecond)
			_, _, err := s.CreateToken(ctx, tokenOf(fmt.Sprintf("cursor-%d", i), "default", "cursor", fmt.Sprintf("person-%d", i)))
			if cancel(); err != nil {
				cancelled++
			}
			if errors.Is(err, store.ErrLost) {
				t.Fatalf("after %d cancelled changes: %v", cancelled, err)
			}
		}
		if cancelled == 0 {
			t.Fatal("no change was cancelled")
		}
		// PostgreSQL may need some time to accept new connections, because the cancelled changes have closed theirs.
		eventually.Holds(t, "a token can be created", func() bool {
			_, _, err := s.CreateToken(t.Context(), tokenOf("last", "default", "cursor", "ana"))
			return err == nil || errors.Is(err, store.ErrTokenExists)
		})
		if set, err := s.TokensSince(t.Context(), -1); err != nil || !slices.Contains(namesOf(set.Valid), "last") {
			t.Errorf("%v, %v", namesOf(set.Valid), err)
		}
	})
}

// Readers and writers of one process use the store at the same time.
func TestTokensSince_ConcurrentChangesAreNotLost(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s := open()
		var work errgroup.Group
		for w := range 3 {
			work.Go(func() error {
				for i := range 30 {
					if _, _, err := s.CreateToken(t.Context(), tokenOf(fmt.Sprintf("cursor-%d-%d", w, i), "default", "cursor", fmt.Sprintf("person-%d", w))); err != nil {
						return err
					}
					if _, err := s.TokensSince(t.Context(), 0); err != nil {
						return err
					}
				}
				return nil
			})
		}
		if err := work.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func TestKeys_AreStored(t *testing.T) {
	eachStore(t, func(t *testing.T, open func() *store.Store) {
		s, ctx := open(), t.Context()
		if keys, at, err := s.Keys(ctx, "corp"); keys != nil || !at.IsZero() || err != nil {
			t.Errorf("a new store: %x, %v, %v", keys, at, err)
		}
		for _, want := range []string{"first", "second"} {
			if err := s.SaveKeys(ctx, "corp", []byte(want)); err != nil {
				t.Fatal(err)
			}
			if keys, at, err := open().Keys(ctx, "corp"); string(keys) != want || time.Since(at) > time.Minute || err != nil {
				t.Errorf("%q, %v, %v", keys, at, err)
			}
		}
	})
}
